"""Attention of many sequences' rows over the KV cache, in canonical shapes.

A row at position p reads two ranges of keys: the *prefix*, all whole blocks of `TAIL_TOKENS` before
its own, in place in its sequence's slot, and the *tail*, its own block up to itself, gathered row
by row. Both results meet by their log-sum-exp. The tail makes trees of draft tokens exact: a side
branch's tokens lie elsewhere in the cache, yet stand in the tail where plain decoding has them.
Query heads that share a key head become query rows, which reads each key once. A row's bits then
depend on its own keys alone: key lengths are padded (masked) to a multiple, and there are never
fewer query rows than the kernel needs to treat rows alike (design.md 4). Knows no tokens.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from paceline.model.cache import CacheStore

# Length of a tail block; a side branch of draft tokens must end with the block it begins in.
TAIL_TOKENS = 32
# Segments of at most this many rows share a padded prefix call and have a tail per row.
_SHARED_ROWS = 32


@dataclass(frozen=True, slots=True)
class Shape:
    """Canonical shape of a call."""

    key_multiple: int = 32
    min_query_rows: int = 2


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive rows of one forward that belong to one sequence.

    parents: of the last rows, drafted as a tree: each one's parent among them, -1 for the row
    before them. Empty: every row follows the one before it.
    """

    slot: int
    length: int  # tokens cached before
    num_rows: int
    parents: Sequence[int] = ()

    @property
    def positions(self) -> list[int]:
        """Position of each row in its own path."""
        start = self.length + self.num_rows - len(self.parents)
        positions = list(range(self.length, start))
        for parent in self.parents:
            positions.append(start if parent < 0 else positions[start - self.length + parent] + 1)
        return positions


@dataclass(slots=True)
class _Call:
    """One padded attention call: `size` entries of `num_rows` queries each."""

    size: int
    num_rows: int
    num_keys: int
    positions: Tensor  # int64 [size, num_rows], of each query
    key_positions: Tensor  # int64 [size or 1, 1, num_keys]
    limits: Tensor  # int64 [size, num_rows], keys at and beyond it are hidden
    gather: Tensor  # int64 [size * num_rows], flattened row of each query
    scatter: Tensor  # int64 [rows of this call], the query that answers each
    rows: list[int]  # flattened row of each answer
    is_dense: bool  # queries are the flattened rows in their order
    # Where the keys are: a range of slots, or flattened cache rows [size * num_keys].
    slots: slice | None = None
    key_rows: Tensor | None = None
    masks: dict[tuple[int, int | None], Tensor] = field(default_factory=dict)

    def mask(self, num_groups: int, window: int | None, dtype: torch.dtype) -> Tensor:
        """Additive, [size, 1, num_groups * num_rows, num_keys]."""
        key = (num_groups, window)
        if key not in self.masks:
            hidden = self.key_positions >= self.limits.unsqueeze(-1)
            if window is not None:
                hidden = hidden | (self.key_positions <= self.positions.unsqueeze(-1) - window)
            mask = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
            mask.masked_fill_(hidden, float("-inf"))
            # A row without visible keys weighs nothing in the end, but must stay finite.
            mask[..., 0].masked_fill_(hidden.all(-1), torch.finfo(dtype).min / 4)
            self.masks[key] = mask.repeat(1, num_groups, 1).unsqueeze(1)
        return self.masks[key]

    def run(
        self, query: Tensor, keys: Tensor, values: Tensor, scaling: float, window: int | None
    ) -> tuple[Tensor, Tensor]:
        """Outputs [rows of this call, num_heads, head_dim] and log-sum-exps [.., num_heads].

        query [num_heads, num_rows, head_dim]; keys, values [num_slots, max_context, heads, dim].
        """
        num_heads, _, head_dim = query.shape
        num_kv_heads = keys.shape[2]
        num_groups = num_heads // num_kv_heads
        q = query if self.is_dense else query.index_select(1, self.gather)
        if self.size > 1:
            q = q.view(num_heads, self.size, self.num_rows, head_dim).transpose(0, 1)
        q = q.reshape(self.size, num_kv_heads, num_groups * self.num_rows, head_dim)
        out, sums = _attention(
            q,
            self._keys(keys),
            self._keys(values),
            self.mask(num_groups, window, q.dtype),
            scaling,
        )
        out = out.reshape(self.size, num_heads, self.num_rows, -1).transpose(1, 2).flatten(0, 1)
        sums = sums.reshape(self.size, num_heads, self.num_rows).transpose(1, 2).flatten(0, 1)
        if self.is_dense:
            return out, sums
        return out.index_select(0, self.scatter), sums.index_select(0, self.scatter)

    def _keys(self, stored: Tensor) -> Tensor:
        """[size, num_kv_heads, num_keys, head_dim]"""
        if self.key_rows is None:
            return stored[self.slots, : self.num_keys].transpose(1, 2)
        gathered = stored.flatten(0, 1).index_select(0, self.key_rows)
        return gathered.view(self.size, self.num_keys, *stored.shape[2:]).transpose(1, 2)


def _attention(
    query: Tensor,  # [size, heads, rows, dim]
    keys: Tensor,  # [size, heads, keys, dim]
    values: Tensor,  # [size, heads, keys, dim]
    mask: Tensor,  # [size, 1, rows, keys], additive
    scaling: float,
) -> tuple[Tensor, Tensor]:
    """Outputs [size, heads, rows, dim] and natural log-sum-exps [size, heads, rows] in fp32."""
    if query.device.type == "cpu" and keys.shape[-1] == values.shape[-1]:
        out, sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, keys, values, attn_mask=mask, scale=scaling
        )
        return out, sums
    scores = (query @ keys.transpose(-1, -2)).float() * scaling + mask.float()
    sums = scores.logsumexp(-1)
    return (scores - sums.unsqueeze(-1)).exp().to(values.dtype) @ values, sums


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the flattened rows of one forward belong."""

    cache_rows: Tensor  # int64 [num_rows], slot * max_context + place
    prefix: list[_Call]  # empty when no row has a whole block before its own
    tail: list[_Call]
    # Flattened row -> its place among the calls' answers; None when they come in order.
    prefix_order: Tensor | None
    tail_order: Tensor | None


def lay_out(
    segments: Sequence[Segment],
    *,
    max_context: int,
    shape: Shape,
    device: torch.device,
) -> Layout:
    """Group the segments into calls. Pure; its cost is per forward, not per layer."""
    cache_rows: list[int] = []
    placed: list[_Placed] = []
    for segment in segments:
        start = segment.slot * max_context + segment.length
        placed.append(_Placed(segment, segment.positions, len(cache_rows)))
        cache_rows += range(start, start + segment.num_rows)
    num_rows = len(cache_rows)
    prefix: list[_Call] = []
    if any(p.positions[-1] >= TAIL_TOKENS or max(p.positions) >= TAIL_TOKENS for p in placed):
        alone = [[p] for p in placed if p.segment.num_rows > _SHARED_ROWS]
        shared = [p for p in placed if p.segment.num_rows <= _SHARED_ROWS]
        groups = alone + _neighbours(shared)
        prefix = [_prefix_call(group, num_rows, shape, device) for group in groups]
    entries = [e for p in placed if p.segment.num_rows <= _SHARED_ROWS for e in _row_tails(p)]
    blocks = [e for p in placed if p.segment.num_rows > _SHARED_ROWS for e in _block_tails(p)]
    tail = [
        _tail_call(part, max_context, num_rows, shape, device) for part in (entries, blocks) if part
    ]
    return Layout(
        torch.tensor(cache_rows, device=device),
        prefix,
        tail,
        _order(prefix, device),
        _order(tail, device),
    )


@dataclass(frozen=True, slots=True)
class _Placed:
    """A segment, its rows' positions and its first flattened row."""

    segment: Segment
    positions: list[int]
    first_row: int


@dataclass(frozen=True, slots=True)
class _Tail:
    """The rows that share a tail block, and the places of the block's keys within the slot."""

    slot: int
    start: int  # position of the block's first key
    rows: Sequence[int]
    positions: Sequence[int]
    places: Sequence[int]


def _row_tails(placed: _Placed) -> Iterable[_Tail]:
    """A tail per row. A row's path is its parents', so that branches never see each other.

    Raises ValueError for a side branch that goes on beyond the block in which it began: the keys
    before its block would not be where plain decoding has them.
    """
    segment = placed.segment
    first = segment.num_rows - len(segment.parents)
    # By row: the places of its tail, and where its path left the chain, if it did.
    tails: list[list[int]] = []
    lefts: list[int | None] = []
    for index, position in enumerate(placed.positions):
        parent = index - 1
        if index >= first:
            named = segment.parents[index - first]
            parent = first - 1 if named < 0 else first + named
        start = position - position % TAIL_TOKENS
        place = segment.length + index
        left = lefts[parent] if parent >= 0 else None
        if left is None and position != place:
            left = position
        if left is not None and left < start:
            raise ValueError("a side branch goes on beyond the tail block in which it began")
        lefts.append(left)
        if position == start:
            tails.append([place])
        elif parent >= 0:
            tails.append([*tails[parent], place])
        else:
            tails.append([*range(start, segment.length), place])
        yield _Tail(segment.slot, start, (placed.first_row + index,), (position,), tails[-1])


def _block_tails(placed: _Placed) -> Iterable[_Tail]:
    """A tail per block, for a long chain, whose keys all lie where their positions are."""
    segment = placed.segment
    assert not segment.parents, "a tree has at most 32 rows"
    end = segment.length + segment.num_rows
    for start in range(segment.length - segment.length % TAIL_TOKENS, end, TAIL_TOKENS):
        positions = range(max(start, segment.length), min(start + TAIL_TOKENS, end))
        offset = placed.first_row - segment.length
        yield _Tail(
            segment.slot,
            start,
            range(positions.start + offset, positions.stop + offset),
            positions,
            range(start, positions.stop),
        )


def _tail_call(
    tails: Sequence[_Tail],
    max_context: int,
    total_rows: int,
    shape: Shape,
    device: torch.device,
) -> _Call:
    key_rows: list[int] = []
    for tail in tails:
        base = tail.slot * max_context
        key_rows += (base + place for place in tail.places)
        # Hidden keys must exist and be finite: the block's first stands for them.
        key_rows += [base + tail.places[0]] * (TAIL_TOKENS - len(tail.places))
    queries = [(tail.rows, tail.positions, [p + 1 for p in tail.positions]) for tail in tails]
    starts = torch.tensor([tail.start for tail in tails], device=device)
    offsets = torch.arange(TAIL_TOKENS, device=device)
    call = _call(queries, TAIL_TOKENS, total_rows, shape, device)
    call.key_positions = (starts.unsqueeze(-1) + offsets).unsqueeze(1)
    call.key_rows = torch.tensor(key_rows, device=device)
    return call


def _prefix_call(
    group: Sequence[_Placed], total_rows: int, shape: Shape, device: torch.device
) -> _Call:
    first_slot = group[0].segment.slot
    slots = slice(first_slot, group[-1].segment.slot + 1)
    by_slot = {placed.segment.slot: placed for placed in group}
    queries: list[tuple[Sequence[int], Sequence[int], Sequence[int]]] = []
    for slot in range(slots.start, slots.stop):
        placed = by_slot.get(slot)
        if placed is None:
            queries.append(((), (), ()))
            continue
        rows = range(placed.first_row, placed.first_row + placed.segment.num_rows)
        limits = [p - p % TAIL_TOKENS for p in placed.positions]
        queries.append((rows, placed.positions, limits))
    num_keys = max(max(limits, default=0) for _, _, limits in queries)
    num_keys = max(-(-num_keys // shape.key_multiple), 1) * shape.key_multiple
    call = _call(queries, num_keys, total_rows, shape, device)
    call.slots = slots
    return call


def _call(
    queries: Sequence[tuple[Sequence[int], Sequence[int], Sequence[int]]],
    num_keys: int,
    total_rows: int,
    shape: Shape,
    device: torch.device,
) -> _Call:
    """Entries of (flattened rows, positions, limits), padded to the longest; padding repeats."""
    num_rows = max(shape.min_query_rows, *(len(rows) for rows, _, _ in queries))
    gather: list[int] = []
    all_positions: list[int] = []
    all_limits: list[int] = []
    answers: list[tuple[int, int]] = []  # (flattened row, query)
    for rows, positions, limits in queries:
        answers += zip(rows, range(len(gather), len(gather) + len(rows)), strict=True)
        missing = num_rows - len(rows)
        gather += [*rows, *[rows[-1] if rows else 0] * missing]
        all_positions += [*positions, *[positions[-1] if rows else 0] * missing]
        all_limits += [*limits, *[limits[-1] if rows else 0] * missing]
    answers.sort()
    size = len(queries)
    return _Call(
        size=size,
        num_rows=num_rows,
        num_keys=num_keys,
        positions=torch.tensor(all_positions, device=device).view(size, num_rows),
        key_positions=torch.arange(num_keys, device=device).view(1, 1, -1),
        limits=torch.tensor(all_limits, device=device).view(size, num_rows),
        gather=torch.tensor(gather, device=device),
        scatter=torch.tensor([query for _, query in answers], device=device),
        rows=[row for row, _ in answers],
        is_dense=len(gather) == total_rows and all(row == query for row, query in answers),
    )


def _order(calls: Sequence[_Call], device: torch.device) -> Tensor | None:
    rows = [row for call in calls for row in call.rows]
    if rows == sorted(rows):
        return None
    places = {row: place for place, row in enumerate(rows)}
    return torch.tensor([places[row] for row in range(len(rows))], device=device)


def _neighbours(entries: Sequence[_Placed]) -> list[list[_Placed]]:
    """Split by slot wherever sharing a call would read more padding than keys."""
    groups: list[list[_Placed]] = []
    work = longest = 0
    for entry in sorted(entries, key=lambda placed: placed.segment.slot):
        keys = entry.segment.length + entry.segment.num_rows + 64
        if groups:
            size = entry.segment.slot - groups[-1][0].segment.slot + 1
            if size * max(longest, keys) <= 2 * (work + keys):
                groups[-1].append(entry)
                work, longest = work + keys, max(longest, keys)
                continue
        groups.append([entry])
        work = longest = keys
    return groups


def attend(
    store: CacheStore,
    layer: int,
    layout: Layout,
    query: Tensor,  # [1, num_heads, num_rows, head_dim]
    key: Tensor,  # [1, num_kv_heads, num_rows, head_dim]
    value: Tensor,  # [1, num_kv_heads, num_rows, head_dim]
    *,
    scaling: float,
    window: int | None,
) -> Tensor:  # [1, num_rows, num_heads, head_dim]
    """Write the rows' keys and values, then attend from each row to its own path's past."""
    keys, values = store.write(
        layer, layout.cache_rows, key[0].transpose(0, 1), value[0].transpose(0, 1)
    )
    out, sums = _run(layout.tail, layout.tail_order, query[0], keys, values, scaling, window)
    if layout.prefix:
        before, before_sums = _run(
            layout.prefix, layout.prefix_order, query[0], keys, values, scaling, window
        )
        # Softmax works row by row; a plain exp takes another path where a vector is not full, and
        # a fused multiply-add another rounding. Both would make bits depend on the company.
        shares = torch.softmax(torch.stack((before_sums, sums), -1), -1).unsqueeze(2)
        out = (before * shares[..., 0] + out * shares[..., 1]).to(out.dtype)
    return out.unsqueeze(0)


def _run(
    calls: Sequence[_Call],
    order: Tensor | None,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    scaling: float,
    window: int | None,
) -> tuple[Tensor, Tensor]:
    answers = [call.run(query, keys, values, scaling, window) for call in calls]
    if len(answers) == 1:
        return answers[0]
    out = torch.cat([part for part, _ in answers])
    sums = torch.cat([part for _, part in answers])
    return (out, sums) if order is None else (out[order], sums[order])
