"""Linear layers whose rows do not depend on how many rows share the call.

bf16 weights on a CPU are re-ordered once for oneDNN (1.3-2x faster; docs/log.md), and projections
of the same input are one call. Calls are chunked and padded to a range of row counts in which the
self-check saw equal bits. Knows no architecture: it replaces nn.Linear modules by their names.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from transformers.pytorch_utils import Conv1D

from paceline.model.operators import handle

# Projections that transformers' attention and MLP modules apply to one and the same input.
_FUSED_NAMES = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


@dataclass(slots=True)
class RowRange:
    """Row counts of one call. Shared by all layers of a model, set by the self-check."""

    minimum: int = 1
    maximum: int = 2**31


class CanonicalLinear(nn.Module):
    """y = x W^T + b for x [..., in_features], in calls of a canonical number of rows."""

    def __init__(self, weight: Tensor, bias: Tensor | None, rows: RowRange) -> None:
        super().__init__()
        self.in_features, self.out_features = weight.shape[1], weight.shape[0]
        self._rows = rows
        self.register_buffer("handle", handle(self.compute), persistent=False)
        self._call = _packed(weight, bias) or (lambda x: F.linear(x, weight, bias))

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(x, FakeTensor):
            traced: Tensor = torch.ops.paceline.linear(x, self.handle, self.out_features)
            return traced
        return self.compute(x)

    def compute(self, x: Tensor) -> Tensor:
        num_rows = x.numel() // self.in_features
        if self._rows.minimum <= num_rows <= self._rows.maximum:
            return self._call(x)
        flat = x.reshape(-1, self.in_features)
        y = torch.cat([self._padded(chunk) for chunk in torch.split(flat, self._rows.maximum)])
        return y.view(*x.shape[:-1], self.out_features)

    def _padded(self, x: Tensor) -> Tensor:
        missing = self._rows.minimum - x.shape[0]
        return (
            self._call(F.pad(x, (0, 0, 0, missing)))[: x.shape[0]] if missing > 0 else self._call(x)
        )

    def call(self, x: Tensor) -> Tensor:
        """One plain call, for the self-check."""
        return self._call(x)


def _packed(weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor] | None:
    """oneDNN's own weight layout, where it exists."""
    if weight.device.type != "cpu" or weight.dtype != torch.bfloat16:
        return None
    if not (torch.backends.mkldnn.enabled and torch.ops.mkldnn._is_mkldnn_bf16_supported()):
        return None
    # Packed for one row, oneDNN keeps the same blocking of K for every number of rows; packed for
    # more, bits change from 33 rows up (measured, docs/log.md).
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, 1)
    return lambda x: torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")


class _Shared:
    """One fused projection and the parts of its last output."""

    def __init__(self, linear: CanonicalLinear, sizes: Sequence[int]) -> None:
        self.linear = linear
        self._sizes = list(sizes)
        self._input: Tensor | None = None
        self._parts: tuple[Tensor, ...] = ()

    def part(self, x: Tensor, index: int) -> Tensor:
        if self._input is not x:
            self._input, self._parts = x, torch.split(self.linear(x), self._sizes, dim=-1)
        return self._parts[index]


class _Part(nn.Module):
    """One of the projections that share an input."""

    def __init__(self, shared: _Shared, index: int) -> None:
        super().__init__()
        self.linear = shared.linear
        self._shared, self._index = shared, index

    def forward(self, x: Tensor) -> Tensor:
        return self._shared.part(x, self._index)


def make_canonical(model: nn.Module, rows: RowRange) -> list[CanonicalLinear]:
    """Replaces every linear layer of the model, in place. Returns the new layers."""
    made: list[CanonicalLinear] = []
    for parent in list(model.modules()):
        for names in _FUSED_NAMES:
            children = [getattr(parent, name, None) for name in names]
            if all(type(child) is nn.Linear for child in children):
                made.append(_fuse(parent, names, rows))
        linear: Any
        for name, linear in list(parent.named_children()):
            if type(linear) is nn.Linear:
                weight = linear.weight.detach()
            elif type(linear) is Conv1D:
                # GPT-2's linear layer, its weight the other way round.
                weight = linear.weight.detach().T.contiguous()
            else:
                continue
            layer = CanonicalLinear(weight, _detached(linear.bias), rows)
            setattr(parent, name, layer)
            made.append(layer)
    return made


def _fuse(parent: nn.Module, names: Sequence[str], rows: RowRange) -> CanonicalLinear:
    children = [getattr(parent, name) for name in names]
    weight = torch.cat([child.weight.detach() for child in children])
    biases = [child.bias for child in children]
    bias = None if biases[0] is None else torch.cat([b.detach() for b in biases])
    linear = CanonicalLinear(weight, bias, rows)
    shared = _Shared(linear, [child.out_features for child in children])
    for index, name in enumerate(names):
        setattr(parent, name, _Part(shared, index))
    return linear


def _detached(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else bias.detach()
