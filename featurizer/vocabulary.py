"""The fixed code tables of the wire format: what each small integer in a trace means."""

from __future__ import annotations

from typing import Final

# The order is the wire format: append only, never reorder.
PHASES: Final = ("forward", "loss", "backward", "optimizer")
FORWARD, LOSS, BACKWARD, OPTIMIZER = range(4)

ROLES: Final = (
    "parameter",
    "buffer",
    "input",
    "gradient",
    "optimizer_state",
    "saved",
    "temporary",
    "output",
)
PARAMETER, BUFFER, INPUT, GRADIENT, OPTIMIZER_STATE, SAVED, TEMPORARY, OUTPUT = range(8)

# The placement hint of the node vectors; "gpu" is whatever accelerator the caching allocator serves.
PLACEMENTS: Final = ("cpu", "gpu", "tpu")
CPU, GPU, TPU = range(3)

# Dtypes whose element size the models know. A trace may name others: they answer `unknown`.
DTYPE_BYTES: Final[dict[str, int]] = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
}

QUANTITIES: Final = (
    "steady_allocated",
    "steady_reserved",
    "first_allocated",
    "first_reserved",
    "required",
)

# What names a node of a replayed trace that is one of the compiler's own kernels.
KERNEL: Final = "inductor.kernel"
