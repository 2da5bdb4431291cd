"""KV cache in blocks: a table of blocks per sequence, rollback, shared prefixes, exact accounting.

A block holds `BLOCK_TOKENS` positions of every layer. A block whose tokens are all committed may be
registered under those tokens and everything before them; a later sequence that begins alike takes
it over instead of computing it again. Registered blocks that nobody uses are kept until the space
is needed, the longest unused first. Memory is reserved, not touched: pages appear when written.
Knows no model but its shape.
"""

import itertools
import math
import mmap
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

BLOCK_TOKENS = 32
# Blocks for the side branches of trees, which live from a forward to the choice of a path.
_SCRATCH_BLOCKS = 16
# Value rows are padded to whole vectors (kernels/attention.c).
_VECTOR = 16

# What a registered block holds: the registration of the block before it, and its own tokens.
_Key = tuple[object, tuple[int, ...]]


class CapacityError(RuntimeError):
    """No block or no place for a sequence is free."""


@dataclass(frozen=True, slots=True)
class KvShape:
    """What one position of a model needs."""

    num_layers: int
    num_heads: int
    key_dim: int
    value_dim: int


@dataclass(eq=False, slots=True)
class SequenceCache:
    """The cached tokens of one sequence."""

    store: "BlockStore"
    length: int = 0
    blocks: list[int] = field(default_factory=list)
    # Cache slots of the last forward's draft rows, by offset; slot = block * BLOCK_TOKENS + column.
    drafted: list[int] = field(default_factory=list)
    is_live: bool = True
    num_registered: int = 0
    registration: object = None

    def slot(self, position: int) -> int:
        return self.blocks[position // BLOCK_TOKENS] * BLOCK_TOKENS + position % BLOCK_TOKENS

    def reserve(self, length: int) -> None:
        """Blocks for `length` tokens in all. Raises CapacityError and takes none."""
        self.blocks += self.store.take(self.num_missing(length))

    def num_missing(self, length: int) -> int:
        """Blocks that `reserve` would take."""
        return max(0, -(-length // BLOCK_TOKENS) - len(self.blocks))

    def adopt(self, token_ids: Sequence[int], *, salt: str = "") -> int:
        """Take over the computed blocks that a fresh sequence shares: number of tokens cached.

        At least the last token stays to be computed. `salt` keeps tenants apart.
        """
        assert not self.blocks
        self.registration = salt
        for block, registration in self.store.match(token_ids, salt):
            self.blocks.append(block)
            self.registration = registration
        self.num_registered = len(self.blocks)
        self.length = self.num_registered * BLOCK_TOKENS
        return self.length

    def register(self, token_ids: Sequence[int]) -> None:
        """Offer the whole blocks of committed tokens to later sequences. After `adopt` only."""
        while (self.num_registered + 1) * BLOCK_TOKENS <= min(self.length, len(token_ids)):
            start = self.num_registered * BLOCK_TOKENS
            key = (self.registration, tuple(token_ids[start : start + BLOCK_TOKENS]))
            self.registration = self.store.register(self.blocks[self.num_registered], key)
            self.num_registered += 1

    def rollback(self, length: int) -> None:
        """Forget what follows the first `length` tokens."""
        assert self.num_registered * BLOCK_TOKENS <= length <= self.length
        self.length = length
        keep = -(-length // BLOCK_TOKENS)
        self.store.give_back(self.blocks[keep:])
        del self.blocks[keep:]

    def keep(self, length: int, path: Sequence[int]) -> None:
        """Of the draft rows behind the first `length` tokens, keep those at the offsets `path`.

        A chain's beginning is only a rollback; a side branch moves to where plain decoding has it.
        """
        places = [(self.drafted[offset], length + depth) for depth, offset in enumerate(path)]
        moved = [(source, self.slot(p)) for source, p in places if source != self.slot(p)]
        if moved:
            self.store.move([source for source, _ in moved], [target for _, target in moved])
        self.rollback(length + len(path))

    def free(self) -> None:
        """Give everything back. Safe to repeat."""
        if self.is_live:
            self.store.give_back(self.blocks)
            self.store.num_live -= 1
            self.blocks, self.length, self.is_live = [], 0, False


class BlockStore:
    """All blocks of a model. keys [layers, blocks, heads, key_dim, BLOCK_TOKENS], so that a dot
    product with a block's keys is one pass of whole vectors; values [layers, blocks, heads,
    BLOCK_TOKENS, value_dim padded to whole vectors]."""

    def __init__(
        self,
        shape: KvShape,
        *,
        num_blocks: int,
        max_sequences: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.shape = shape
        self.blocks_total = num_blocks
        self.max_sequences = max_sequences
        self.num_live = 0
        self._device = device
        total = num_blocks + _SCRATCH_BLOCKS
        padded = -(-shape.value_dim // _VECTOR) * _VECTOR
        head = (shape.num_layers, total, shape.num_heads)
        self.keys = _zeros((*head, shape.key_dim, BLOCK_TOKENS), dtype, device)
        self.values = _zeros((*head, BLOCK_TOKENS, padded), dtype, device)
        self.scratch_slots = range(num_blocks * BLOCK_TOKENS, total * BLOCK_TOKENS)
        self._free = list(range(num_blocks - 1, -1, -1))
        self._users = [0] * num_blocks
        self._keys_of: dict[int, _Key] = {}
        self._registered: dict[_Key, tuple[int, object]] = {}
        # Registered blocks without users, the longest unused first.
        self._unused: OrderedDict[int, None] = OrderedDict()
        self._serial = itertools.count()

    def open(self) -> SequenceCache:
        """An empty cache for one more sequence. Raises CapacityError."""
        if self.num_live == self.max_sequences:
            raise CapacityError(f"all {self.max_sequences} sequences are in use")
        self.num_live += 1
        return SequenceCache(self)

    @property
    def blocks_free(self) -> int:
        """Blocks that `take` can give, unused registered ones included."""
        return len(self._free) + len(self._unused)

    @property
    def blocks_used(self) -> int:
        """Blocks in the table of a live sequence: blocks_used + blocks_free == blocks_total."""
        return self.blocks_total - self.blocks_free

    @property
    def blocks_reusable(self) -> int:
        """Free blocks that still hold a registered prefix."""
        return len(self._unused)

    def take(self, count: int) -> list[int]:
        """Blocks nobody uses. Raises CapacityError when there are fewer."""
        if count > self.blocks_free:
            raise CapacityError(f"{count} KV blocks are needed and {self.blocks_free} are free")
        taken = []
        for _ in range(count):
            if self._free:
                block = self._free.pop()
            else:
                block, _ = self._unused.popitem(last=False)
                del self._registered[self._keys_of.pop(block)]
            self._users[block] = 1
            taken.append(block)
        return taken

    def give_back(self, blocks: Sequence[int]) -> None:
        # The end of a chain first: what remains of an evicted chain is its beginning.
        for block in reversed(blocks):
            self._users[block] -= 1
            if self._users[block]:
                continue
            if block in self._keys_of:
                self._unused[block] = None
            else:
                self._free.append(block)

    def match(self, token_ids: Sequence[int], salt: str) -> list[tuple[int, object]]:
        """The longest registered beginning, in whole blocks; its blocks are in use from here on."""
        found: list[tuple[int, object]] = []
        registration: object = salt
        for end in range(BLOCK_TOKENS, len(token_ids), BLOCK_TOKENS):
            key = (registration, tuple(token_ids[end - BLOCK_TOKENS : end]))
            if key not in self._registered:
                break
            block, registration = self._registered[key]
            self._unused.pop(block, None)
            self._users[block] += 1
            found.append((block, registration))
        return found

    def register(self, block: int, key: _Key) -> object:
        """Name a computed block. Returns what the next block of its chain refers to."""
        if key in self._registered:
            # Computed twice at the same time: the first stays the one that is found.
            return self._registered[key][1]
        registration = next(self._serial)
        self._registered[key] = (block, registration)
        self._keys_of[block] = key
        return registration

    def forget(self) -> None:
        """Drop every registration, as if nothing had been computed before."""
        self._free += self._unused
        self._unused.clear()
        self._registered.clear()
        self._keys_of.clear()

    @torch.inference_mode()
    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy positions, named by slot, in every layer."""
        source = torch.tensor(sources, device=self._device)
        target = torch.tensor(targets, device=self._device)
        from_block, from_column = source // BLOCK_TOKENS, source % BLOCK_TOKENS
        to_block, to_column = target // BLOCK_TOKENS, target % BLOCK_TOKENS
        self.keys[:, to_block, :, :, to_column] = self.keys[:, from_block, :, :, from_column]
        self.values[:, to_block, :, to_column] = self.values[:, from_block, :, from_column]


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros whose pages appear when they are touched."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    pages = mmap.mmap(-1, math.prod(shape) * dtype.itemsize)
    return torch.frombuffer(pages, dtype=dtype).view(shape)
