"""Attention of many sequences' rows over the KV cache, in canonical shapes.

Rows of all sequences come flattened. Sequences with few rows share one padded call; a long prefill
chunk has its own. Query heads that share a key head become query rows, which reads each key once.
A row's bits then depend on its own keys alone: the key length is padded (masked) to a multiple,
and there are never fewer query rows than the kernel needs to treat rows alike (design.md 4).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.model.cache import CacheStore

# Sequences with at most this many rows share a call.
_SHARED_ROWS = 32


@dataclass(frozen=True, slots=True)
class Shape:
    """Canonical shape of a call."""

    key_multiple: int = 32
    min_query_rows: int = 2


@dataclass(slots=True)
class _Call:
    """One padded attention call: `size` cache slots from `first_slot`, `num_rows` rows each."""

    first_slot: int
    size: int
    num_rows: int
    num_keys: int
    positions: Tensor  # int64 [size, num_rows], of each query
    gather: Tensor  # int64 [size * num_rows], flattened row of each query; padding repeats row 0
    rows: Tensor  # int64 [rows of this call], their flattened rows, ascending
    scatter: Tensor  # int64 [rows of this call], the query that answers each
    # Every slot is in use with num_rows rows, in the order of the flattened rows.
    is_dense: bool
    masks: dict[tuple[int, int | None], Tensor] = field(default_factory=dict)

    def mask(self, num_groups: int, window: int | None, dtype: torch.dtype) -> Tensor:
        """Additive, [size, 1, num_groups * num_rows, num_keys]."""
        key = (num_groups, window)
        if key not in self.masks:
            queries = self.positions.unsqueeze(-1)  # [size, num_rows, 1]
            keys = torch.arange(self.num_keys, device=queries.device)
            hidden = keys > queries
            if window is not None:
                hidden = hidden | (keys <= queries - window)
            mask = torch.zeros(hidden.shape, dtype=dtype, device=queries.device)
            mask.masked_fill_(hidden, float("-inf"))
            self.masks[key] = mask.repeat(1, num_groups, 1).unsqueeze(1)
        return self.masks[key]


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the flattened rows of one forward belong."""

    cache_rows: Tensor  # int64 [num_rows], slot * max_context + position
    calls: list[_Call]


def lay_out(
    segments: Sequence[tuple[int, int, int]],  # (slot, cached length, rows), in row order
    *,
    max_context: int,
    shape: Shape,
    device: torch.device,
) -> Layout:
    """Group the segments into calls. Pure; its cost is per forward, not per layer."""
    cache_rows: list[int] = []
    shared: list[tuple[int, int, int, int]] = []
    alone: list[tuple[int, int, int, int]] = []
    for slot, length, num_rows in segments:
        entry = (slot, length, num_rows, len(cache_rows))
        (shared if num_rows <= _SHARED_ROWS else alone).append(entry)
        start = slot * max_context + length
        cache_rows += range(start, start + num_rows)
    groups = [[entry] for entry in alone] + _neighbours(shared)
    calls = [_call(group, len(cache_rows), shape, device) for group in groups]
    return Layout(torch.tensor(cache_rows, device=device), calls)


def _neighbours(
    entries: list[tuple[int, int, int, int]],
) -> list[list[tuple[int, int, int, int]]]:
    """Split by slot wherever sharing a call would read more padding than keys."""
    groups: list[list[tuple[int, int, int, int]]] = []
    work = longest = 0
    for entry in sorted(entries):
        keys = entry[1] + entry[2] + 64
        if groups:
            size = entry[0] - groups[-1][0][0] + 1
            if size * max(longest, keys) <= 2 * (work + keys):
                groups[-1].append(entry)
                work, longest = work + keys, max(longest, keys)
                continue
        groups.append([entry])
        work = longest = keys
    return groups


def _call(
    entries: list[tuple[int, int, int, int]],
    total_rows: int,
    shape: Shape,
    device: torch.device,
) -> _Call:
    first_slot = entries[0][0]
    size = entries[-1][0] - first_slot + 1
    num_rows = max(shape.min_query_rows, *(rows for _, _, rows, _ in entries), 1)
    num_keys = max(length + rows for _, length, rows, _ in entries)
    num_keys = -(-num_keys // shape.key_multiple) * shape.key_multiple
    gather = [0] * (size * num_rows)
    positions = [0] * (size * num_rows)
    answers: list[tuple[int, int]] = []  # (flattened row, query)
    for slot, length, rows, first_row in entries:
        base = (slot - first_slot) * num_rows
        for index in range(num_rows):
            gather[base + index] = first_row + min(index, rows - 1)
            positions[base + index] = length + min(index, rows - 1)
        answers += ((first_row + index, base + index) for index in range(rows))
    is_dense = answers == [(row, row) for row in range(total_rows)] and total_rows == len(gather)
    answers.sort()
    return _Call(
        first_slot=first_slot,
        size=size,
        num_rows=num_rows,
        num_keys=num_keys,
        positions=torch.tensor(positions, device=device).view(size, num_rows),
        gather=torch.tensor(gather, device=device),
        scatter=torch.tensor([query for _, query in answers], device=device),
        is_dense=is_dense,
        rows=torch.tensor([row for row, _ in answers], device=device),
    )


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
    """Write the rows' keys and values, then attend from each row to its own sequence's past."""
    keys, values = store.write(
        layer, layout.cache_rows, key[0].transpose(0, 1), value[0].transpose(0, 1)
    )
    num_heads, _, head_dim = query.shape[1:]
    num_kv_heads = keys.shape[2]
    num_groups = num_heads // num_kv_heads
    outputs = []
    for call in layout.calls:
        # Query heads that share a key head become rows of it: [group, row].
        q = query[0] if call.is_dense else query[0].index_select(1, call.gather)
        if call.size > 1:
            q = q.view(num_heads, call.size, call.num_rows, head_dim).transpose(0, 1)
        q = q.reshape(call.size, num_kv_heads, num_groups * call.num_rows, head_dim)
        slots = slice(call.first_slot, call.first_slot + call.size)
        out = F.scaled_dot_product_attention(
            q,
            keys[slots, : call.num_keys].transpose(1, 2),
            values[slots, : call.num_keys].transpose(1, 2),
            attn_mask=call.mask(num_groups, window, q.dtype),
            scale=scaling,
        )  # [size, num_kv_heads, num_groups * num_rows, value_dim]
        out = out.reshape(call.size, num_heads, call.num_rows, -1).transpose(1, 2)
        out = out.reshape(call.size * call.num_rows, num_heads, -1)
        outputs.append(out if call.is_dense else out.index_select(0, call.scatter))
    if len(outputs) == 1:
        return outputs[0].unsqueeze(0)
    result = torch.cat(outputs)
    order = torch.cat([call.rows for call in layout.calls])
    return torch.empty_like(result).index_copy_(0, order, result).unsqueeze(0)
