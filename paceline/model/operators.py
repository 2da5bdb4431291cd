"""Operators by which a compiled layer calls back: linear layers and attention stay ours.

Layers that are alike share one compiled graph, so a layer's own weights and cache come in as a
number, its handle. torch's operators are global, and so is the table of handles.
"""

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_targets: dict[int, Callable[..., Tensor]] = {}
_numbers = itertools.count()

_library: Any = torch.library.Library("paceline", "DEF")  # type: ignore[no-untyped-call]
_library.define("linear(Tensor x, Tensor handle, int out_features) -> Tensor")
_library.define(
    "attend(Tensor query, Tensor key, Tensor value, Tensor handle, float scaling, int window)"
    " -> Tensor"
)


def handle(target: Callable[..., Tensor]) -> Tensor:
    """A number that a graph can carry in place of `target`."""
    number = next(_numbers)
    _targets[number] = target
    return torch.tensor(number)


def _linear(x: Tensor, number: Tensor, out_features: int) -> Tensor:
    return _targets[int(number.item())](x)


def _attend(
    query: Tensor, key: Tensor, value: Tensor, number: Tensor, scaling: float, window: int
) -> Tensor:
    return _targets[int(number.item())](query, key, value, scaling, window)


def _linear_shape(x: Tensor, number: Tensor, out_features: int) -> Tensor:
    return x.new_empty((*x.shape[:-1], out_features))


def _attend_shape(
    query: Tensor, key: Tensor, value: Tensor, number: Tensor, scaling: float, window: int
) -> Tensor:
    return query.new_empty((query.shape[0], query.shape[2], query.shape[1], value.shape[3]))


_library.impl("linear", _linear, "CPU")
_library.impl("attend", _attend, "CPU")
torch.library.register_fake("paceline::linear", _linear_shape, lib=_library)
torch.library.register_fake("paceline::attend", _attend_shape, lib=_library)
