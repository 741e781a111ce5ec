"""What kind of work an operator does, for the summary: a class by name, pointwise where nothing says otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from peakcast.featurizer.workspace import CUBLAS_OPS, op_name

# Tried in this order; a part of the name decides. `_backward` stays in the class of its forward.
_BY_PART: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    ("foreach", ("_foreach_", "_fused_adam", "_fused_sgd", "_fused_adagrad")),
    ("attention_flash", ("flash_attention",)),
    ("attention_efficient", ("efficient_attention",)),
    ("attention_cudnn", ("cudnn_attention",)),
    ("attention_math", ("dot_product_attention", "multi_head_attention")),
    ("rnn", ("cudnn_rnn", "_thnn_fused", "lstm", "gru")),
    ("norm", ("layer_norm", "batch_norm", "group_norm", "rms_norm", "instance_norm")),
    ("conv", ("convolution", "conv1d", "conv2d", "conv3d", "conv_transpose")),
    ("embedding", ("embedding",)),
    ("loss", ("nll_loss", "cross_entropy", "mse_loss", "l1_loss", "kl_div", "log_softmax", "ctc_loss")),
    ("softmax", ("softmax",)),
    ("pooling", ("pool", "upsample", "interpolate", "grid_sampler")),
    ("scatter", ("scatter", "index_add", "index_put", "index_copy", "index_fill", "_backward_index")),
    ("gather", ("index_select", "gather", "index.", "take", "masked_select", "nonzero", "unique")),
    ("sort", ("sort", "topk", "cumsum", "cumprod", "histc", "bincount")),
    ("random", ("dropout", "bernoulli", "rand", "normal_", "uniform_", "multinomial", "philox")),
    ("fft", ("fft",)),
    ("collective", ("c10d", "all_reduce", "all_gather", "reduce_scatter", "broadcast_", "wait_tensor")),
)
_BY_NAME: Final[dict[str, frozenset[str]]] = {
    "view": frozenset({
        "alias", "as_strided", "detach", "diagonal", "expand", "permute", "reshape", "select", "slice", "split",
        "split_with_sizes", "squeeze", "t", "transpose", "unbind", "unfold", "unsqueeze", "view", "_unsafe_view",
        "view_as_real", "view_as_complex",
    }),
    "copy": frozenset({"_to_copy", "clone", "copy", "copy_", "contiguous", "to"}),
    "cat": frozenset({"cat", "stack", "constant_pad_nd", "repeat", "roll", "flip"}),
    "create": frozenset({
        "arange", "empty", "empty_like", "empty_strided", "full", "full_like", "new_empty", "new_zeros", "ones",
        "ones_like", "scalar_tensor", "zeros", "zeros_like", "new_empty_strided", "new_full", "new_ones",
    }),
    "reduction": frozenset({
        "all", "amax", "amin", "any", "argmax", "argmin", "logsumexp", "max", "mean", "min", "norm", "prod", "std",
        "linalg_vector_norm", "sum", "var", "var_mean",
    }),
}  # fmt: skip
# Append only: the order is that of the features.
OP_CLASSES: Final = (
    "matmul",
    *(name for name, _ in _BY_PART),
    *_BY_NAME,
    "pointwise",
    "custom",
    "control",
)


@lru_cache(maxsize=8192)
def op_class(op: str) -> str:
    """Return the class of an operator given as `aten.mm.default`."""
    name = op_name(op)
    if op.startswith("higher_order"):
        return "control"
    if name in CUBLAS_OPS:
        return "matmul"
    for known, names in _BY_NAME.items():
        if name in names or name.rstrip("_") in names:
            return known
    for known, parts in _BY_PART:
        if any(part in f"{name}." or part in op for part in parts):
            return known
    return "pointwise" if op.startswith(("aten.", "prims.")) else "custom"


def class_codes(ops: Sequence[str]) -> NDArray[np.int64]:
    """Return the index into OP_CLASSES of each operator."""
    return np.fromiter(map(_class_code, ops), np.int64, len(ops))


@lru_cache(maxsize=8192)
def _class_code(op: str) -> int:
    return OP_CLASSES.index(op_class(op))
