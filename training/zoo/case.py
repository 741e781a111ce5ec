"""One case to measure: which model, how large, and how its step runs. The plan is not part of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

Autocast = Literal["none", "bfloat16"]
Task = Literal["training", "inference"]
Loop = Literal["standard", "clip", "accumulate"]
Trained = Literal["all", "head", "lora"]
Parallel = Literal["none", "ddp", "ddp_view", "fsdp2", "fsdp2_keep", "fsdp2_bf16"]

# Name in a case -> class name in the run specification.
OPTIMIZERS: Final = {"adamw": "AdamW", "sgd": "SGD", "sgd_momentum": "SGD", "adafactor": "Adafactor"}
IMPLEMENTATIONS: Final = ("foreach", "fused", "loop")
ACCUMULATION_STEPS: Final = 2
# As many as were measured.
RANKS: Final = 2
# Field -> what it usually says, and all it may say.
_RARE: Final = {"trained": ("all", get_args(Trained)), "parallel": ("none", get_args(Parallel))}


@dataclass(frozen=True, slots=True)
class Case:
    """Name one workload of the zoo.

    Args:
        model: a name in the zoo.
        batch: samples in one step; under `accumulate`, in each of its two micro-batches.
        optimizer: None exactly for inference.
        implementation: of the optimizer; None means "foreach", what PyTorch takes on a GPU unless asked otherwise.
        loop: the standard loop, gradient clipping before the step, or two micro-batches a step.
        trained: all parameters, those of the last layer alone, or low-rank adapters (see `trained.py`).
        parallel: how the model is spread over two ranks (see `parallel.py`), each with a batch of its own.
        allocator: the PYTORCH_CUDA_ALLOC_CONF of the process.

    Raises:
        ValueError: on a value outside of those, or an optimizer that does not fit the task.
    """

    model: str
    batch: int
    autocast: Autocast = "none"
    task: Task = "training"
    optimizer: str | None = "adamw"
    implementation: str | None = None
    loop: Loop = "standard"
    trained: Trained = "all"
    parallel: Parallel = "none"
    allocator: str = ""

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise ValueError(f"batch must be at least 1, got {self.batch}")
        if self.autocast not in ("none", "bfloat16"):
            raise ValueError(f"autocast must be none or bfloat16, got {self.autocast!r}")
        if self.task not in ("training", "inference"):
            raise ValueError(f"task must be training or inference, got {self.task!r}")
        if (self.task == "training") != (self.optimizer is not None):
            raise ValueError(f"{self.task} with optimizer {self.optimizer!r}: training needs one, inference has none")
        if self.optimizer is not None and self.optimizer not in OPTIMIZERS:
            raise ValueError(f"optimizer must be one of {', '.join(OPTIMIZERS)}, got {self.optimizer!r}")
        if self.implementation is not None and self.implementation not in IMPLEMENTATIONS:
            raise ValueError(f"implementation must be one of {', '.join(IMPLEMENTATIONS)}, got {self.implementation!r}")
        if self.loop != "standard" and self.task != "training":
            raise ValueError(f"loop {self.loop!r} needs a training case")
        for name, (usual, allowed) in _RARE.items():
            value = getattr(self, name)
            if value not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")
            if value != usual and self.task != "training":
                raise ValueError(f"{name} {value!r} needs a training case")

    @property
    def key(self) -> str:
        """Name the case in one string, the same in every process and version."""
        implementation = self.implementation or ("foreach" if self.task == "training" else "-")
        parts = (self.model, f"b{self.batch}", self.autocast, self.task, self.optimizer or "-", implementation)
        return "|".join((*parts, self.loop, *self._rare().values()))

    @property
    def ranks(self) -> int:
        """Say how many processes the case runs in."""
        return 1 if self.parallel == "none" else RANKS

    def to_dict(self) -> dict[str, Any]:
        """Give the fields as JSON values."""
        return {
            "model": self.model,
            "batch": self.batch,
            "autocast": self.autocast,
            "task": self.task,
            "optimizer": self.optimizer,
            "implementation": self.implementation,
            "loop": self.loop,
            **self._rare(),
        }

    def _rare(self) -> dict[str, str]:
        """Give the fields that are left out where they say the usual, as in records made before there were any."""
        found = {name: getattr(self, name) for name, (usual, _) in _RARE.items() if getattr(self, name) != usual}
        return {**found, **({"allocator": self.allocator} if self.allocator else {})}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Case:
        """Read what `to_dict` wrote. Raises ValueError on an unknown or missing field."""
        try:
            return cls(**fields)
        except TypeError as error:
            raise ValueError(f"not a case: {dict(fields)!r} ({error})") from error

    def run(self) -> dict[str, Any]:
        """Give the run specification of the wire format that belongs to this case."""
        training = self.task == "training"
        return {
            "task": self.task,
            "optimizer": OPTIMIZERS[self.optimizer] if self.optimizer is not None else None,
            "implementation": (self.implementation or "foreach") if training else None,
            "autocast": None if self.autocast == "none" else self.autocast,
            "accumulation": ACCUMULATION_STEPS if self.loop == "accumulate" else 1,
            **({} if self.parallel == "none" else {"world_size": self.ranks}),
            **({"allocator": self.allocator} if self.allocator else {}),
        }
