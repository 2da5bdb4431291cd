"""KV cache: one slot per sequence, append and rollback, exact accounting.

A slot is a contiguous range of rows, so attention on a CPU reads it in place and a rollback is a
number. Memory is reserved, not touched: a slot costs what its longest sequence used. Counted in
blocks of `BLOCK_TOKENS`. Knows no model: layers appear when they are first written.
"""

import math
import mmap
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

BLOCK_TOKENS = 32


class CapacityError(RuntimeError):
    """No slot is free."""


@dataclass(eq=False, slots=True)
class SequenceCache:
    """The cached tokens of one sequence."""

    store: "CacheStore"
    slot: int
    length: int = 0

    def rollback(self, length: int) -> None:
        """Forget what follows the first `length` tokens."""
        assert 0 <= length <= self.length
        self.length = length

    def keep(self, length: int, path: Sequence[int]) -> None:
        """Of the rows behind the first `length`, keep those at the offsets `path`, in order.

        A chain's beginning is only a rollback; a side branch moves to where plain decoding has it.
        """
        moved = [(offset, place) for place, offset in enumerate(path) if offset != place]
        if moved:
            start = self.slot * self.store.max_context + length
            self.store.move(
                [start + offset for offset, _ in moved], [start + place for _, place in moved]
            )
        self.rollback(length + len(path))

    def free(self, *, poisoned: bool = False) -> None:
        """Give the slot back; `poisoned` rows (not finite) are erased first. Safe to repeat."""
        if self.slot >= 0:
            if poisoned:
                self.store.erase(self.slot)
            self.store.release(self.slot)
            self.slot, self.length = -1, 0


class CacheStore:
    """All slots of a model. Per layer, keys and values [num_slots, max_context, heads, dim]."""

    def __init__(
        self, num_slots: int, max_context: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        # Attention reads whole multiples of this many rows.
        self.max_context = -(-max_context // 512) * 512
        self.num_slots = num_slots
        self._dtype, self._device = dtype, device
        self._free = list(range(num_slots - 1, -1, -1))
        self._live: dict[int, SequenceCache] = {}
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def acquire(self) -> SequenceCache:
        """The lowest free slot, so that live slots stay close together. Raises CapacityError."""
        if not self._free:
            raise CapacityError(f"all {self.num_slots} sequences are in use")
        slot = self._free.pop()
        self._live[slot] = SequenceCache(self, slot)
        return self._live[slot]

    def release(self, slot: int) -> None:
        del self._live[slot]
        self._free.append(slot)
        self._free.sort(reverse=True)

    @torch.inference_mode()
    def erase(self, slot: int) -> None:
        for keys, values in self._layers.values():
            keys[slot].zero_()
            values[slot].zero_()

    @torch.inference_mode()
    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy rows (slot * max_context + place) within every layer."""
        source = torch.tensor(sources, device=self._device)
        target = torch.tensor(targets, device=self._device)
        for layer in self._layers.values():
            for stored in layer:
                rows = stored.flatten(0, 1)
                rows.index_copy_(0, target, rows.index_select(0, source))

    @property
    def num_live(self) -> int:
        return len(self._live)

    @property
    def blocks_total(self) -> int:
        return self.num_slots * self.max_context // BLOCK_TOKENS

    @property
    def blocks_used(self) -> int:
        return sum(-(-cache.length // BLOCK_TOKENS) for cache in self._live.values())

    def write(
        self,
        layer: int,
        rows: Tensor,  # int64 [num_rows], slot * max_context + position
        keys: Tensor,  # [num_rows, num_kv_heads, head_dim]
        values: Tensor,  # [num_rows, num_kv_heads, head_dim]
    ) -> tuple[Tensor, Tensor]:
        """Stores rows and returns all of the layer: [num_slots, max_context, heads, dim] each."""
        if layer not in self._layers:
            shape = (self.num_slots, self.max_context)
            self._layers[layer] = (
                self._zeros((*shape, *keys.shape[1:])),
                self._zeros((*shape, *values.shape[1:])),
            )
        stored_keys, stored_values = self._layers[layer]
        stored_keys.flatten(0, 1).index_copy_(0, rows, keys)
        stored_values.flatten(0, 1).index_copy_(0, rows, values)
        return stored_keys, stored_values

    def _zeros(self, shape: tuple[int, ...]) -> Tensor:
        """Zeros, since a masked row has weight 0 and 0 * NaN is NaN; pages appear when touched."""
        if self._device.type != "cpu":
            return torch.zeros(shape, dtype=self._dtype, device=self._device)
        pages = mmap.mmap(-1, math.prod(shape) * self._dtype.itemsize)
        return torch.frombuffer(pages, dtype=self._dtype).view(shape)
