"""What a graph document may hold at most, and the one error that says what was wrong with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

SpecErrorCode = Literal[
    "invalid_json",  # not JSON at all
    "unsupported_schema",  # JSON, but of another version
    "missing_key",
    "unknown_key",
    "wrong_type",
    "wrong_length",  # columns of one table that do not match
    "out_of_range",  # a number or an index outside what it may be
    "invalid_name",  # an op, dtype, plan or symbol name that cannot be one
    "inconsistent",  # two parts of the document that contradict each other
    "limit_exceeded",  # well formed, but larger than this reader accepts
]

# Characters of an offending value that are echoed in a message.
_SHOWN_CHARACTERS: Final = 60


class SpecError(ValueError):
    """Say why a document is not a GraphSpec.

    `code` is for machines, `path` is the JSON path of the offending value (`$.traces.eager.op`), and the message holds
    the path, what was wrong and what is allowed.
    """

    def __init__(self, code: SpecErrorCode, path: str, problem: str) -> None:
        # All three go to ValueError, so that the error survives being copied between processes.
        super().__init__(code, path, problem)
        self.code = code
        self.path = path
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds on a document from a stranger. Counts are per document unless the name says otherwise."""

    # A node takes about 80 bytes of JSON, so 200,000 nodes take 16 MiB.
    max_json_bytes: int = 32 << 20
    # Brackets and braces in the text. An empty array is 2 bytes of JSON and 64 in memory, so that without this
    # bound a body within the limit above could take a gigabyte. Polynomials need three a term, the rest a handful.
    max_containers: int = 2_000_000
    max_nodes: int = 200_000
    # With 2^45 bytes each, the sum over 200,000 storages stays below 2^63: no total can overflow int64.
    max_storages: int = 200_000
    max_storage_bytes: int = 1 << 45
    # A view such as `expand` may have more elements than its storage has bytes.
    max_numel: int = 1 << 50
    max_rank: int = 64
    # Entries of all `inputs` and `outputs`. A foreach optimizer reads every parameter in one node.
    max_edges: int = 4_000_000
    max_traces: int = 16
    max_ops: int = 4096
    max_dtypes: int = 64
    max_lines: int = 100_000
    max_line_characters: int = 1000
    max_name_characters: int = 200
    max_captured_with: int = 64
    max_symbols: int = 16
    # Terms of all polynomials: they are evaluated one by one in Python, about a microsecond each.
    max_terms: int = 300_000
    # Levels of `cond` inside `cond`.
    max_depth: int = 4


DEFAULT_LIMITS: Final = Limits()


def show(value: object) -> str:
    """Return a short, safe text of any value for a message."""
    if isinstance(value, bool | float) or value is None:
        return repr(value)
    if isinstance(value, int):
        # Python refuses to print integers of more than 4,300 digits.
        return str(value) if value.bit_length() <= 64 else f"an integer of {value.bit_length()} bits"
    if isinstance(value, str):
        text = value if len(value) <= _SHOWN_CHARACTERS else value[:_SHOWN_CHARACTERS] + "..."
        return ascii(text)
    if isinstance(value, list | tuple):
        return f"an array of {len(value)}"
    if isinstance(value, dict):
        return f"an object of {len(value)} keys"
    return f"a {type(value).__name__}"
