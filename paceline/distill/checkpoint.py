"""A training run on disk: weights, AdamW's averages, and where it was. Written whole or not."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

_AVERAGES = ("exp_avg", "exp_avg_sq", "step")


def save_checkpoint(
    path: Path,
    parameters: Mapping[str, nn.Parameter],
    optimizer: torch.optim.Optimizer,
    state: dict[str, Any],
) -> None:
    """state: anything that JSON holds."""
    tensors: dict[str, Tensor] = {}
    for name, parameter in parameters.items():
        tensors[f"weight.{name}"] = parameter.detach().cpu()
        for average in _AVERAGES:
            if parameter in optimizer.state:
                tensors[f"{average}.{name}"] = optimizer.state[parameter][average].cpu()
    part = path.with_suffix(".part")
    save_file(tensors, part, metadata={"state": json.dumps(state)})
    part.replace(path)


def read_state(path: Path) -> dict[str, Any] | None:
    """What `save_checkpoint` was given; None where there is no checkpoint."""
    if not path.is_file():
        return None
    with safe_open(path, framework="pt") as file:
        state: dict[str, Any] = json.loads(file.metadata()["state"])
    return state


@torch.no_grad()
def restore(
    path: Path, parameters: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer
) -> None:
    """Weights and averages as they were."""
    with safe_open(path, framework="pt") as file:
        names = set(file.keys())
        for name, parameter in parameters.items():
            parameter.copy_(file.get_tensor(f"weight.{name}"))
            if f"step.{name}" not in names:
                continue
            averages = {average: file.get_tensor(f"{average}.{name}") for average in _AVERAGES}
            for average in _AVERAGES[:2]:
                averages[average] = averages[average].to(parameter.device)
            optimizer.state[parameter] = averages
