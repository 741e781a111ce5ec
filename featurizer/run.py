"""What is known about the run and the card besides the graph: RunSpec and DeviceSpec of the wire format."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from peakcast.featurizer.allocator_config import AllocatorConfig

# Below 1e-4 no calibration set of this size says anything; above 0.5 "upper" would lie under "expected".
LEAST_RISK = 1e-4
LARGEST_RISK = 0.5


def _checked_allocator(text: str) -> str:
    AllocatorConfig.parse(text)
    return text


# Strict: "4" and true are no numbers.
Bytes = Annotated[int, Field(strict=True, ge=0, le=1 << 50)]
Count = Annotated[int, Field(strict=True, ge=1, le=1 << 20)]
Allocator = Annotated[str, Field(max_length=256), AfterValidator(_checked_allocator)]


class _Wire(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RunSpec(_Wire):
    """The run that a graph was captured from. A prediction takes fields that are left out from the graph."""

    task: Literal["training", "inference"] = "training"
    optimizer: str | None = Field(default=None, max_length=64)  # class name, e.g. "AdamW"
    implementation: Literal["foreach", "fused", "loop"] | None = None
    autocast: Literal["bfloat16", "float16"] | None = None
    accumulation: Count = 1
    world_size: Count = 1
    allocator: Allocator = ""  # PYTORCH_CUDA_ALLOC_CONF
    step_of_interest: Literal["first", "steady", "resumed"] = "steady"


class DeviceSpec(_Wire):
    """The card the run is for. `already_allocated_bytes` is what this process holds beyond the step's own tensors."""

    name: str = Field(default="NVIDIA H200", max_length=128)
    total_bytes: Bytes = 150_754_820_096
    used_by_others_bytes: Bytes = 0
    already_allocated_bytes: Bytes = 0
