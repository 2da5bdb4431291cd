"""Attention over the KV cache in blocks by torch alone: any device, any dtype, no compiler.

Keys and values of each path are gathered into the order of their positions and padded (masked) to
canonical lengths, so that a row's bits depend on its own path alone (design.md 4). Slower than
kernels/attention.c, which does the same in place.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.model.cache import BLOCK_TOKENS


@dataclass(frozen=True, slots=True)
class Shape:
    """Canonical shape of a call."""

    key_multiple: int = 32
    min_query_rows: int = 2


@dataclass(frozen=True, slots=True)
class Path:
    """Rows of one sequence that share a path: each sees the slots up to its own position."""

    slots: Sequence[int]
    rows: Sequence[int]
    positions: Sequence[int]


@torch.inference_mode()
def attend_gathered(
    query: Tensor,  # [num_rows, num_query_heads, key_dim]
    key: Tensor,  # [num_rows, num_heads, key_dim]
    value: Tensor,  # [num_rows, num_heads, value_dim]
    keys: Tensor,  # one layer of BlockStore.keys
    values: Tensor,  # one layer of BlockStore.values
    slots: Tensor,  # int64 [num_rows], where the rows are stored
    paths: Sequence[Path],
    shape: Shape,
    *,
    scaling: float,
    window: int | None,
) -> Tensor:  # [num_rows, num_query_heads, value_dim]
    blocks, columns = slots // BLOCK_TOKENS, slots % BLOCK_TOKENS
    keys[blocks, :, :, columns] = key
    values[blocks, :, columns, : value.shape[-1]] = value
    out = query.new_empty(*query.shape[:2], value.shape[-1])
    num_groups = query.shape[1] // key.shape[1]
    for path in paths:
        rows = torch.tensor(path.rows, device=query.device)
        answers = _attend_path(
            query[rows], keys, values, path, shape, num_groups, value.shape[-1], scaling, window
        )
        out[rows] = answers
    return out


def _attend_path(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    path: Path,
    shape: Shape,
    num_groups: int,
    value_dim: int,
    scaling: float,
    window: int | None,
) -> Tensor:
    device = query.device
    num_keys = -(-len(path.slots) // shape.key_multiple) * shape.key_multiple
    # Hidden keys must be finite: the first of the path stands for them.
    padded = [*path.slots, *[path.slots[0]] * (num_keys - len(path.slots))]
    slots = torch.tensor(padded, device=device)
    blocks, columns = slots // BLOCK_TOKENS, slots % BLOCK_TOKENS
    k = keys[blocks, :, :, columns].transpose(0, 1)  # [num_heads, num_keys, key_dim]
    v = values[blocks, :, columns, :value_dim].transpose(0, 1)
    num_rows = max(len(path.rows), shape.min_query_rows)
    q = F.pad(query.transpose(0, 1), (0, 0, 0, num_rows - len(path.rows)))
    q = q.reshape(k.shape[0], num_groups * num_rows, -1)  # heads that share keys become rows
    queries = torch.tensor(path.positions, device=device)
    queries = F.pad(queries, (0, num_rows - len(path.rows))).unsqueeze(-1)
    positions = torch.arange(num_keys, device=device)
    hidden = positions > queries
    if window is not None:
        hidden = hidden | (positions <= queries - window)
    mask = torch.zeros(hidden.shape, dtype=q.dtype, device=device)
    mask = mask.masked_fill_(hidden, float("-inf")).repeat(num_groups, 1)
    out = F.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=mask, scale=scaling)[
        0
    ]
    out = out.reshape(query.shape[1], num_rows, value_dim)
    return out.transpose(0, 1)[: len(path.rows)]
