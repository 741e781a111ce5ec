"""Write `featurizer/op_kinds.json` from torch's own tags and inductor's lowering tables.

What is tagged pointwise or has a lowering that is no fallback is inlined where that pays. The tables do not say which
lowerings make a buffer all the same: those are named here, each group with its reason.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import orjson
import typer

from peakcast.featurizer.op_kinds import OpKind, stem

_NAMESPACES: Final = ("aten", "prims", "rngprims", "inductor")


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Lowered to templates and library calls, which read and write buffers.
_LIBRARIES: Final = _names("""
    _convolution _cudnn_rnn _cudnn_rnn_backward _grouped_mm _int_mm _scaled_grouped_mm _scaled_mm _scaled_mm_v2
    _sparse_semi_structured_mm _weight_int4pack_mm_for_cpu _weight_int8pack_mm addbmm addmm baddbmm bmm convolution
    convolution_backward mkldnn_rnn_layer mm
""")
# Lowered to a kernel over whole rows, or left to ATen where a row is long.
_WHOLE_ROWS: Final = _names("fractional_max_pool2d fractional_max_pool3d kthvalue median mode searchsorted sort topk")
# All seeds of a graph are drawn into one small buffer.
_SEEDS: Final = _names("inductor_seed inductor_seeds")
# Taken apart before anything is lowered; one that a graph still holds runs as ATen's own kernel.
_TAKEN_APART: Final = _names("""
    _log_softmax _softmax embedding_dense_backward native_batch_norm native_dropout native_group_norm
    native_layer_norm native_layer_norm_backward
""")
# Complex numbers, and an encoder layer's inference in one: inductor makes the fallback only when it meets one, so that
# its tables do not list them.
_WHEN_MET: Final = _names("""
    _conj _conj_physical _fft_c2c _fft_c2r _transformer_encoder_layer_fwd conj_physical view_as_real
""")
# Work on the memory itself, or on its contents as the host sees them.
_MEMORY: Final = _names("_local_scalar_dense equal resize_storage_bytes set")
# Loops of reductions and scans. Some are taken apart first (`std`), some fall back for a few dtypes (`cummax`).
_REDUCTIONS: Final = _names("""
    all amax amin any argmax argmin cummax cummin cumprod cumsum linalg_vector_norm logcumsumexp logsumexp max mean min
    norm prepare_softmax_online prod std std_mean sum var var_mean xor_sum
""")
# Lowered to a write into a copy of the first input.
_SCATTERS: Final = _names("""
    _unsafe_index_put _unsafe_masked_index_put_accumulate index_put scatter scatter_add scatter_reduce
""")
# Taken apart except in bfloat16 (inductor's decomposition.py): one that a graph still holds runs as ATen's own kernel.
_LEFT_TO_ATEN: Final = _names("index_add")
# Pointwise over what they write, but each input element is read by many outputs: their lowerings realise it first.
_WINDOWS: Final = _names("""
    _adaptive_avg_pool2d _low_memory_max_pool_offsets_to_indices _low_memory_max_pool_with_offsets
    _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d adaptive_max_pool2d avg_pool2d
    avg_pool2d_backward avg_pool3d avg_pool3d_backward constant_pad_nd max_pool2d_with_indices
    max_pool2d_with_indices_backward max_pool3d_with_indices upsample_nearest1d upsample_nearest2d
    upsample_nearest2d_backward upsample_nearest3d
""")
_CONCATS: Final = _names("cat")

_NAMED: Final[dict[OpKind, frozenset[str]]] = {
    OpKind.EXTERN: _LIBRARIES | _WHOLE_ROWS | _SEEDS | _TAKEN_APART | _WHEN_MET | _MEMORY | _LEFT_TO_ATEN,
    OpKind.REDUCTION: _REDUCTIONS,
    OpKind.SCATTER: _SCATTERS,
    OpKind.WINDOW: _WINDOWS,
    OpKind.CONCAT: _CONCATS,
}


@dataclass(frozen=True, slots=True)
class _Torch:
    """What torch says of its operators, by stem. An operator counts where one of its overloads does."""

    pointwise: frozenset[str]  # tagged so
    lowered: frozenset[str]  # has an entry in inductor's table of lowerings
    fallback: frozenset[str]  # of those, the ones that call ATen's kernel


def op_kinds() -> dict[OpKind, list[str]]:
    """Return the stems of each kind in alphabetical order, for the torch that is installed."""
    torch = _ask_torch()
    named = frozenset[str]().union(*_NAMED.values())
    inlined = {
        name
        for name in (torch.pointwise | torch.lowered) - torch.fallback - named
        # Lists of tensors, checks without a result but the one that is computed in a kernel, torch's own test operator.
        if name == "_assert_async" or not name.startswith(("_foreach", "_assert", "_foobar"))
    }
    kinds = _NAMED | {OpKind.EXTERN: _NAMED[OpKind.EXTERN] | (torch.fallback - named), OpKind.POINTWISE: inlined}
    return {kind: sorted(kinds[kind]) for kind in OpKind}


def _ask_torch() -> _Torch:
    import torch
    from torch._inductor import lowering

    # By name from the dispatcher: `dir(torch.ops.aten)` lists only what something has used before.
    overloads = [
        (stem(f"{namespace}.{packet}"), _overload(torch.ops, namespace, packet, overload))
        for namespace, packet, overload in map(_split, torch._C._dispatch_get_all_op_names())  # noqa: SLF001
        if namespace in _NAMESPACES
    ]
    return _Torch(
        pointwise=frozenset(name for name, overload in overloads if torch.Tag.pointwise in overload.tags),
        lowered=_stems_in(lowering.lowerings, overloads),
        fallback=_stems_in(lowering.fallbacks, overloads),
    )


def _split(full_name: str) -> tuple[str, str, str]:
    """Take `aten::add.Tensor` apart; an overload without a name is torch's `default`."""
    namespace, _, name = full_name.partition("::")
    packet, _, overload = name.partition(".")
    return namespace, packet, overload or "default"


def _overload(ops: Any, namespace: str, packet: str, overload: str) -> Any:
    return getattr(getattr(getattr(ops, namespace), packet), overload)


def _stems_in(table: Iterable[Any], overloads: Iterable[tuple[str, Any]]) -> frozenset[str]:
    known = set(table)
    return frozenset(name for name, overload in overloads if overload in known)


def to_json(kinds: dict[OpKind, list[str]]) -> bytes:
    """Return the file's contents: the stems by kind, a line each."""
    document = {kind.name.lower(): names for kind, names in kinds.items()}
    return orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def main(output: Annotated[Path, typer.Argument(help="The file to write, e.g. featurizer/op_kinds.json.")]) -> None:
    """Write the kinds of the installed torch's operators."""
    kinds = op_kinds()
    output.write_bytes(to_json(kinds))
    typer.echo(f"{sum(map(len, kinds.values()))} operators in {output}")


if __name__ == "__main__":
    typer.run(main)
