"""What is known about the run and the card besides the graph: RunSpec and DeviceSpec of the wire format."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Bytes = Annotated[int, Field(ge=0, le=1 << 50)]


class _Wire(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RunSpec(_Wire):
    """The run that a graph was captured from. A prediction takes fields that are left out from the graph."""

    task: Literal["training", "inference"] = "training"
    optimizer: str | None = Field(default=None, max_length=64)  # class name, e.g. "AdamW"
    implementation: Literal["foreach", "fused", "loop"] | None = None
    autocast: Literal["bfloat16", "float16"] | None = None
    accumulation: int = Field(default=1, ge=1, le=1 << 20)
    world_size: int = Field(default=1, ge=1, le=1 << 20)
    allocator: str = Field(default="", max_length=256)  # PYTORCH_CUDA_ALLOC_CONF
    step_of_interest: Literal["first", "steady", "resumed"] = "steady"


class DeviceSpec(_Wire):
    """The card the run is for. `already_allocated_bytes` is what this process holds beyond the step's own tensors."""

    name: str = Field(default="NVIDIA H200", max_length=128)
    total_bytes: Bytes = 150_754_820_096
    used_by_others_bytes: Bytes = 0
    already_allocated_bytes: Bytes = 0
