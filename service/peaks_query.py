"""What `POST /peaks` brings, apart from the graph: checked by pydantic. The graph itself is checked by GraphSpec."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from peakcast.featurizer.run import Bytes, DeviceSpec, RunSpec
from peakcast.featurizer.vocabulary import QUANTITIES
from peakcast.service.query import PlanName

# Printable ASCII: it is shown on terminals.
_Text = Annotated[str, Field(max_length=128, pattern="^[ -~]*$")]
_MeasuredName = Annotated[str, Field(max_length=64, pattern="^[a-z][a-z0-9_]*_bytes$")]
_VersionName = Annotated[str, Field(max_length=64, pattern="^[A-Za-z0-9_.-]+$")]


class PeakQuery(BaseModel):
    """Report one run of one graph under one plan: `graph_id` of a graph sent before, or `graph` beside this."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    key: str = Field(
        pattern="^[A-Za-z0-9._:-]{8,128}$",
        description="the same for every try to send this peak, and for no other peak: a UUID or a hash",
    )
    graph_id: str | None = Field(default=None, pattern="^[0-9a-f]{64}$", description="a graph sent before")
    captured_with: dict[str, str] | None = Field(
        default=None,
        max_length=64,
        description="with graph_id: the graph's own; a held graph captured otherwise is not the one meant",
    )
    run: RunSpec | None = Field(
        default=None, description="the run the graph was captured from; each field left out: as it says"
    )
    device: DeviceSpec = Field(description="the card it ran on; name and total_bytes are needed")
    plan: PlanName = Field(description="the plan it ran under")
    measured: dict[_MeasuredName, Bytes] = Field(
        max_length=32,
        description="bytes by quantity, e.g. steady_allocated_bytes; what else was read may be there too",
    )
    out_of_memory: bool = Field(default=False, strict=True, description="whether the run ended so")
    cache: Literal["cold", "warm"] = Field(description="the compiler's cache before the first step")
    source: Literal["measured", "replayed"] = Field(
        default="measured", description="measured on the card, or replayed from the compiler's buffer plan"
    )
    versions: dict[_VersionName, _Text] = Field(
        default_factory=dict, max_length=32, description="torch, cuda, driver, ...; left out: torch as the graph says"
    )
    architecture: Annotated[str, Field(max_length=128, pattern="^[A-Za-z_][A-Za-z0-9_.]*$")] | None = Field(
        default=None,
        description="the model's class, e.g. GPT2LMHeadModel; nothing depends on it but which peaks are kept apart",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        missing = [name for name in ("name", "total_bytes") if name not in self.device.model_fields_set]
        if missing:
            raise ValueError(f"device: {' and '.join(missing)} of the card must be said")
        if not self.out_of_memory and not any(f"{quantity}_bytes" in self.measured for quantity in QUANTITIES):
            names = ", ".join(f"{quantity}_bytes" for quantity in QUANTITIES)
            raise ValueError(f"measured: holds no quantity; at least one of {names}")
        return self


class PeakKept(BaseModel):
    """The reply of `POST /peaks`: the peak is on the disk. Asked again with the same content it is the same."""

    key: str
    graph_id: str
    stored: Literal[True] = True
