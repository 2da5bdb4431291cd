"""One forward over rows of many sequences: prefill chunks, plain tokens and draft blocks alike.

Takes token ids and caches, gives logits. Knows nothing of sampling, drafts, requests or text.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from paceline.model.attention import Attention, Layout
from paceline.model.cache import BLOCK_TOKENS, BlockStore, KvShape, SequenceCache
from paceline.model.compiled import TRACED_ROWS, compile_layers, restore_layers
from paceline.model.distilled import ReducedHead
from paceline.model.linear import CanonicalLinear, RowRange, make_canonical
from paceline.model.native import attention_kernel
from paceline.model.operators import handle

_instances = itertools.count()


@dataclass(frozen=True, slots=True)
class Rows:
    """Consecutive tokens of one sequence: appended to its cache by the forward.

    parents: the last tokens may be a tree of draft tokens instead of a chain: each one's parent
    among them, -1 for the token before them. Trees are kept by `SequenceCache.keep`.
    """

    cache: SequenceCache
    token_ids: Sequence[int]
    # Logits of the last `num_logits` rows are wanted.
    num_logits: int
    parents: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Identity:
    """What a model calls itself."""

    name: str
    model_fingerprint: str
    tokenizer_fingerprint: str
    vocab_size: int
    max_context: int
    eos_token_ids: frozenset[int]


class LanguageModel:
    """A transformers causal model with its KV cache. Use it from one thread."""

    def __init__(
        self,
        model: Any,
        identity: Identity,
        *,
        max_sequences: int,
        kv_tokens: int | None = None,
        kernel_folder: Path | None = None,
    ) -> None:
        """kv_tokens: room for the cached tokens of all sequences; without it for all of them at
        their longest. kernel_folder: where a compiled kernel is kept; without it there is none."""
        parameter = next(model.parameters())
        self.device = parameter.device
        self.dtype = parameter.dtype
        self.identity = identity
        config = model.config.get_text_config()
        num_query_heads = config.num_attention_heads
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // num_query_heads
        shape = KvShape(
            num_layers=config.num_hidden_layers,
            num_heads=getattr(config, "num_key_value_heads", None) or num_query_heads,
            key_dim=head_dim,
            value_dim=head_dim,
        )
        per_sequence = -(-identity.max_context // BLOCK_TOKENS)
        self.store = BlockStore(
            shape,
            num_blocks=-(-kv_tokens // BLOCK_TOKENS) if kv_tokens else per_sequence * max_sequences,
            max_sequences=max_sequences,
            dtype=self.dtype,
            device=self.device,
        )
        kernel = kernel_folder and attention_kernel(
            shape, num_query_heads, self.dtype, self.device, kernel_folder
        )
        self.attention = Attention(self.store, kernel or None)
        self.linear_rows = RowRange()
        # "exact" once a self-check has passed.
        self.numerics = "fast"
        self._model: Any = model.eval()
        # transformers looks attention up by name; each instance has its own, bound to its cache.
        name = f"paceline-{next(_instances)}"
        ALL_ATTENTION_FUNCTIONS.register(name, self._attention)
        self._model.config._attn_implementation = name
        self.linears: list[CanonicalLinear] = make_canonical(model, self.linear_rows)
        self.is_compiled = False
        # Logits are -inf for most ids.
        self.has_reduced_head = isinstance(model.get_output_embeddings(), ReducedHead)

    @property
    def name(self) -> str:
        return self.identity.name

    @property
    def vocab_size(self) -> int:
        """Without padding: the tokenizer's."""
        return self.identity.vocab_size

    @property
    def max_context(self) -> int:
        return self.identity.max_context

    @property
    def eos_token_ids(self) -> frozenset[int]:
        return self.identity.eos_token_ids

    @property
    def model_fingerprint(self) -> str:
        return self.identity.model_fingerprint

    @property
    def tokenizer_fingerprint(self) -> str:
        return self.identity.tokenizer_fingerprint

    def new_cache(self) -> SequenceCache:
        """An empty cache for one sequence. Raises CapacityError."""
        return self.store.open()

    @torch.inference_mode()
    def compile(self, folder: Path) -> None:
        """Fuse what each layer does between its linear layers, if that works for this model."""
        for module in self._model.modules():
            if hasattr(module, "layer_idx"):
                layer = partial(self._traced_attention, module.layer_idx)
                module.register_buffer("paceline_layer", handle(layer), persistent=False)
        cache = self.new_cache()
        try:
            self.is_compiled = compile_layers(
                self._model,
                lambda: self.forward([Rows(cache, [0] * TRACED_ROWS, 0)]),
                folder,
            )
        finally:
            cache.free()

    def restore(self) -> None:
        """Undo `compile`."""
        if self.is_compiled:
            restore_layers(self._model)
            self.is_compiled = False

    def _traced_attention(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int
    ) -> Tensor:
        return self.attention(layer, query, key, value, scaling=scaling, window=window or None)

    @torch.inference_mode()
    def forward(self, rows: Sequence[Rows]) -> Tensor:
        """Logits [sum of num_logits, at least vocab_size], in the order of `rows`.

        At most one `Rows` per sequence; caches grow by the tokens given. Raises CapacityError when
        blocks run out: nothing has changed then but blocks reserved for some of the sequences.
        """
        layout = Layout()
        token_ids: list[int] = []
        wanted: list[int] = []
        for part in rows:
            layout.add(part.cache, len(part.token_ids), part.parents)
            token_ids += part.token_ids
            wanted += range(len(token_ids) - part.num_logits, len(token_ids))
        self.attention.prepare(layout, self.device)
        output = self._model(
            input_ids=torch.tensor([token_ids], device=self.device),
            position_ids=torch.tensor([layout.positions], device=self.device),
            use_cache=False,
            # With nothing wanted the head still runs, on one row.
            logits_to_keep=torch.tensor(wanted or [0], device=self.device),
        )
        for part in rows:
            part.cache.length += len(part.token_ids)
        logits: Tensor = output.logits[0]
        return logits if wanted else logits[:0]

    def _attention(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        sliding_window: int | None = None,
        softcap: float | None = None,
        **_: Any,
    ) -> tuple[Tensor, None]:
        """What transformers calls instead of its own attention."""
        if softcap is not None:
            raise ValueError("attention with soft-capped scores is not supported")
        scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
        if isinstance(query, FakeTensor):
            traced = torch.ops.paceline.attend(
                query, key, value, module.paceline_layer, scaling, sliding_window or 0
            )
            return traced, None
        layer: Any = module.layer_idx
        out = self.attention(layer, query, key, value, scaling=scaling, window=sliding_window)
        return out, None
