"""Where the rows of one forward belong: which cache slots they are written to and which they read.

A row reads the tokens of its own path in the order of their positions. A chain's tokens lie in the
blocks of its sequence's table. A tree's first branch does too; the tokens of its other branches lie
in scratch blocks and stand, for the rows behind them, in place of the table's (design.md 4). Such a
branch must end with the block in which it left the first one. Knows no tensors' values.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from paceline.model.cache import BLOCK_TOKENS, BlockStore, SequenceCache
from paceline.model.gathered import Path, Shape, attend_gathered
from paceline.model.native import AttentionKernel, RowPlaces


@dataclass(slots=True)
class Layout:
    """The rows of one forward, flattened over its sequences."""

    positions: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    tables: list[int] = field(default_factory=list)
    table_starts: list[int] = field(default_factory=list)
    # Per row: where its own block's slots begin in `paths`, or -1 for the table's.
    path_starts: list[int] = field(default_factory=list)
    paths: list[int] = field(default_factory=list)
    # Per sequence: first row, first side row, end.
    spans: list[tuple[int, int, int]] = field(default_factory=list)
    num_scratch: int = 0

    def add(self, cache: SequenceCache, num_rows: int, parents: Sequence[int]) -> None:
        """Rows behind the cached ones; the last `len(parents)` of them are a tree.

        parents: as in `engine.Rows`. Takes blocks as needed: raises CapacityError before any change
        to the layout, and ValueError for a side branch beyond its block.
        """
        chain = num_rows - len(parents)
        depths, lefts = _depths(parents, cache.length + chain)
        side = next((i for i, left in enumerate(lefts) if left is not None), len(parents))
        end = cache.length + chain + max(depths, default=-1) + 1
        scratch = cache.store.scratch_slots
        if self.num_scratch + len(parents) - side > len(scratch):
            raise ValueError("more side branches in one forward than there are scratch slots")
        cache.reserve(end)
        first = len(self.positions)
        table_start = len(self.tables)
        self.tables += cache.blocks[: -(-end // BLOCK_TOKENS)]
        self.table_starts += [table_start] * num_rows
        self.positions += range(cache.length, cache.length + chain + side)
        self.slots += map(cache.slot, range(cache.length, cache.length + chain + side))
        self.path_starts += [-1] * (chain + side)
        cache.drafted = self.slots[len(self.slots) - side :] if side else []
        for index in range(side, len(parents)):
            position = cache.length + chain + depths[index]
            slot = scratch[self.num_scratch]
            self.num_scratch += 1
            cache.drafted.append(slot)
            start = position - position % BLOCK_TOKENS
            own = [cache.slot(p) for p in range(start, position)]
            ancestor = parents[index]
            while ancestor >= side:
                own[cache.length + chain + depths[ancestor] - start] = cache.drafted[ancestor]
                ancestor = parents[ancestor]
            self.path_starts.append(len(self.paths))
            self.paths += [*own, slot]
            self.positions.append(position)
            self.slots.append(slot)
        self.spans.append((first, first + chain + side, first + num_rows))

    def rows(self) -> RowPlaces:
        def tensor(values: Sequence[int]) -> Tensor:
            return torch.tensor(values, dtype=torch.int32)

        return RowPlaces(
            slots=tensor(self.slots),
            positions=tensor(self.positions),
            table_starts=tensor(self.table_starts),
            tables=tensor(self.tables),
            path_starts=tensor(self.path_starts),
            paths=tensor(self.paths),
            longest=max(self.positions),
        )

    def gathered(self) -> list[Path]:
        """One path for each sequence's chain, and one for each side row."""
        found = []
        for first, side, end in self.spans:
            last = self.positions[side - 1]
            rows = range(first, side)
            found.append(Path(self._table_slots(first, last + 1), rows, self.positions[first:side]))
            for row in range(side, end):
                position = self.positions[row]
                start = self.path_starts[row]
                slots = [
                    *self._table_slots(row, position - position % BLOCK_TOKENS),
                    *self.paths[start : start + position % BLOCK_TOKENS + 1],
                ]
                found.append(Path(slots, (row,), (position,)))
        return found

    def _table_slots(self, row: int, end: int) -> list[int]:
        start = self.table_starts[row]
        return [
            self.tables[start + position // BLOCK_TOKENS] * BLOCK_TOKENS + position % BLOCK_TOKENS
            for position in range(end)
        ]


def _depths(parents: Sequence[int], start: int) -> tuple[list[int], list[int | None]]:
    """Per node: its depth, and the position at which its path left the first branch, if it did."""
    depths: list[int] = []
    lefts: list[int | None] = []
    for index, parent in enumerate(parents):
        if not -1 <= parent < index:
            raise ValueError(f"draft token {index} has no parent before it")
        depth = 0 if parent < 0 else depths[parent] + 1
        left = lefts[parent] if parent >= 0 else None
        if left is None and (depth != index or any(x is not None for x in lefts)):
            left = start + depth
        if left is not None and (start + depth) // BLOCK_TOKENS != left // BLOCK_TOKENS:
            raise ValueError("a side branch goes on beyond the block in which it began")
        depths.append(depth)
        lefts.append(left)
    return depths, lefts


class Attention:
    """Computes a layer's attention for the layout at hand, by kernel where there is one."""

    def __init__(self, store: BlockStore, kernel: AttentionKernel | None) -> None:
        self.shape = Shape()
        self._store = store
        self._kernel = kernel
        self._rows: RowPlaces | None = None
        self._slots = torch.empty(0)
        self._paths: list[Path] = []

    @property
    def is_native(self) -> bool:
        return self._kernel is not None

    @property
    def kernel_name(self) -> str:
        """Empty where torch computes attention."""
        return self._kernel.name if self._kernel else ""

    def prepare(self, layout: Layout, device: torch.device) -> None:
        """Before the layers of a forward."""
        if self._kernel is not None:
            self._rows = layout.rows()
        else:
            self._slots = torch.tensor(layout.slots, device=device)
            self._paths = layout.gathered()

    def __call__(
        self,
        layer: int,
        query: Tensor,  # [1, num_query_heads, num_rows, key_dim]
        key: Tensor,  # [1, num_heads, num_rows, key_dim]
        value: Tensor,  # [1, num_heads, num_rows, value_dim]
        *,
        scaling: float,
        window: int | None,
    ) -> Tensor:  # [1, num_rows, num_query_heads, value_dim]
        """Write the rows' keys and values, then attend from each row to its own path."""
        q, k, v = query[0].transpose(0, 1), key[0].transpose(0, 1), value[0].transpose(0, 1)
        keys, values = self._store.keys[layer], self._store.values[layer]
        if self._kernel is not None:
            assert self._rows is not None
            out = self._kernel(q, k, v, keys, values, self._rows, scaling=scaling, window=window)
        else:
            out = attend_gathered(
                q,
                k,
                v,
                keys,
                values,
                self._slots,
                self._paths,
                self.shape,
                scaling=scaling,
                window=window,
            )
        return out.unsqueeze(0)
