"""How often a training recompiles, why, and what stays alive after it."""

from peakcast.client.recompiles.watch import RecompileWatch

__all__ = ["RecompileWatch"]
