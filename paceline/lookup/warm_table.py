"""Warm table: what a target tends to say after two tokens, or one, before it has said anything.

Made once from answers of that target (`paceline recycling-table`), never changed, shared by all
tenants: where a recycling table has not seen a context yet, this one may have. Knows token ids and
log-probabilities, no model.
"""

import json
import sys
import zlib
from array import array
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from paceline.lookup.recycling import NUM_TOP, Top

_FORMAT = 1
# Log-probabilities are kept in steps of this, down to -15.9.
_STEP = 1 / 16
_SHIPPED = "tables"
_SUFFIX = ".table"


class BadTable(Exception):
    """The file is no warm table, or its ids are another tokenizer's."""


class WarmTable:
    """From a context to the ids that may follow, best first. Immutable."""

    def __init__(self, model: str, tokenizer: str, tops: Mapping[int, Top]) -> None:
        """`model` is the name of whose answers they are, `tokenizer` its tokenizer's fingerprint.
        Contexts are those of `recycling.after`. Raises ValueError unless every top has NUM_TOP
        ids."""
        self.model = model
        self.tokenizer = tokenizer
        self._rows = {context: row for row, context in enumerate(tops)}
        self._token_ids = array("I", (i for top in tops.values() for i in top.token_ids))
        self._levels = bytes(
            min(round(-p / _STEP), 255) for top in tops.values() for p in top.logprobs
        )
        if not len(self._token_ids) == len(self._levels) == NUM_TOP * len(tops):
            raise ValueError(f"every context needs {NUM_TOP} ids")

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, context: int) -> Top | None:
        row = self._rows.get(context)
        if row is None:
            return None
        here = slice(row * NUM_TOP, (row + 1) * NUM_TOP)
        return Top(self._token_ids[here], [-level * _STEP for level in self._levels[here]])

    def write(self, path: Path) -> None:
        """Raises OSError."""
        header = {
            "format": _FORMAT,
            "model": self.model,
            "tokenizer": self.tokenizer,
            "contexts": len(self),
        }
        numbers = _little(array("Q", self._rows)) + _little(self._token_ids)
        packed = zlib.compress(numbers + self._levels, 9)
        path.write_bytes(json.dumps(header).encode() + b"\n" + packed)


def read_table(path: Path, tokenizer: str, vocab_size: int) -> WarmTable:
    """The table of a file. Raises BadTable unless its ids are those of this tokenizer."""
    try:
        line, _, packed = path.read_bytes().partition(b"\n")
        header = json.loads(line)
        if header["format"] != _FORMAT:
            raise BadTable(f"{path} has format {header['format']}, not {_FORMAT}")
        if header["tokenizer"] != tokenizer:
            raise BadTable(f"{path} is of a model with another tokenizer")
        tops = _unpacked(header["contexts"], zlib.decompress(packed), vocab_size)
        return WarmTable(header["model"], tokenizer, tops)
    except (OSError, ValueError, KeyError, TypeError, zlib.error) as error:
        raise BadTable(f"{path} is no recycling table ({error})") from None


def shipped_table(model: str, tokenizer: str, vocab_size: int) -> WarmTable | None:
    """The table that came with the package for this model, if one did."""
    with resources.as_file(resources.files(__package__) / _SHIPPED) as folder:
        for path in sorted(folder.glob(f"*{_SUFFIX}")):
            with path.open("rb") as file:
                header = json.loads(file.readline())
            if (header["model"], header["tokenizer"]) == (model, tokenizer):
                return read_table(path, tokenizer, vocab_size)
    return None


def _unpacked(num_contexts: int, content: bytes, vocab_size: int) -> dict[int, Top]:
    """Raises ValueError."""
    contexts, token_ids = array("Q"), array("I")
    ends = [size * num_contexts for size in (8, 8 + 4 * NUM_TOP, 8 + 5 * NUM_TOP)]
    if len(content) != ends[-1]:
        raise ValueError(f"{len(content)} bytes instead of {ends[-1]}")
    contexts.frombytes(content[: ends[0]])
    token_ids.frombytes(content[ends[0] : ends[1]])
    if sys.byteorder == "big":
        contexts.byteswap()
        token_ids.byteswap()
    if max(token_ids, default=0) >= vocab_size:
        raise ValueError(f"an id is outside the vocabulary of {vocab_size}")
    logprobs = [-level * _STEP for level in content[ends[1] :]]
    return {
        context: Top(token_ids[row : row + NUM_TOP], logprobs[row : row + NUM_TOP])
        for context, row in zip(contexts, range(0, len(token_ids), NUM_TOP), strict=True)
    }


def _little(numbers: "array[int]") -> bytes:
    if sys.byteorder == "big":
        numbers = array(numbers.typecode, numbers)
        numbers.byteswap()
    return numbers.tobytes()
