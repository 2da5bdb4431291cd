"""A distilled draft model's folder: a few layers, and the ids that their head may propose.

It is an ordinary transformers folder but for two things. What it shares with the target model, its
embeddings and often its first layers, is taken from there unless the folder holds it itself.
`draft_vocab.json` names the draft vocabulary: the head has the target's rows of these ids alone,
and no other id is ever proposed.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

DRAFT_VOCAB = "draft_vocab.json"
# Of most architectures' parameters: the layer's index is the first number in the name.
_LAYER = re.compile(r"(?<=\.)\d+(?=\.)")


class IncompleteError(ValueError):
    """The folder's missing weights are not to be had; the text says why."""


@dataclass(frozen=True, slots=True)
class DraftVocab:
    """Which ids a distilled model proposes, and what of which target completes it."""

    # The target as the distilling command was given it: a source of `load_model`.
    target: str
    # Which of the target's layers stand where in it, or stood there before it learnt.
    layers: tuple[int, ...]
    # Of the target's tensors that the model shares, under the target's names.
    shared_fingerprint: str
    # Ascending.
    token_ids: tuple[int, ...]

    def write(self, folder: Path) -> None:
        (folder / DRAFT_VOCAB).write_text(json.dumps(asdict(self)), encoding="utf-8")


def read_draft_vocab(folder: Path) -> DraftVocab | None:
    """None where the folder is not a distilled model's. Raises IncompleteError."""
    file = folder / DRAFT_VOCAB
    if not file.is_file():
        return None
    try:
        given = json.loads(file.read_text(encoding="utf-8"))
        token_ids = tuple(int(token_id) for token_id in given["token_ids"])
        vocab = DraftVocab(
            str(given["target"]),
            tuple(int(layer) for layer in given["layers"]),
            str(given["shared_fingerprint"]),
            tuple(sorted(token_ids)),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise IncompleteError(f"{DRAFT_VOCAB} cannot be read ({type(error).__name__})") from None
    if not token_ids or len(set(token_ids)) != len(token_ids):
        raise IncompleteError(f"{DRAFT_VOCAB} needs at least one id, and each only once")
    return vocab


class ReducedHead(nn.Module):
    """Logits of the whole vocabulary in which all but the draft vocabulary's are -inf."""

    token_ids: Tensor

    def __init__(
        self,
        rows: Tensor,  # [num_ids, hidden_size]
        token_ids: Tensor,  # [num_ids]
        vocab_size: int,
    ) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        # One logit per id of the draft vocabulary, in its order.
        self.linear = nn.Linear(rows.shape[1], rows.shape[0], bias=False, dtype=rows.dtype)
        self.linear.weight = nn.Parameter(rows, requires_grad=False)
        self.register_buffer("token_ids", token_ids, persistent=False)

    def forward(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.linear(hidden)
        everywhere = logits.new_full((*logits.shape[:-1], self.vocab_size), float("-inf"))
        return everywhere.index_copy(-1, self.token_ids, logits)


def stored_tensors(folder: Path, names: Iterable[str]) -> dict[str, Tensor]:
    """Those of the named tensors that a folder's safetensors hold, in their own dtype."""
    wanted, found = set(names), {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as tensors:
            for name in wanted & set(tensors.keys()):
                found[name] = tensors.get_tensor(name)
    return found


def layer_of(name: str) -> int | None:
    """The index of the layer that a parameter belongs to."""
    found = _LAYER.search(name)
    return int(found.group()) if found else None


def origin(name: str, layers: Sequence[int]) -> str:
    """The target's name of a parameter of a model that has these of its layers."""
    return _LAYER.sub(lambda match: str(layers[int(match.group())]), name, count=1)


def fingerprint(tensors: dict[str, Tensor]) -> str:
    """SHA-256 over the names and bytes of tensors."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def embedding_names(model: Any) -> list[str]:
    """Of a model's state: the input embeddings and, where they are not the same, the head."""
    # A tied head is one parameter under two names; the first is the embeddings'.
    ends = [model.get_input_embeddings(), model.get_output_embeddings()]
    weights = {id(end.weight) for end in ends}
    return [name for name, parameter in model.named_parameters() if id(parameter) in weights]


def reduce_head(model: Any, token_ids: Iterable[int]) -> None:
    """Replaces the head by the rows of these ids. Raises IncompleteError."""
    head = model.get_output_embeddings()
    ids = torch.tensor(list(token_ids), dtype=torch.int64, device=head.weight.device)
    if int(ids.min()) < 0 or int(ids.max()) >= head.weight.shape[0]:
        raise IncompleteError("the draft vocabulary has ids that the model does not know")
    if getattr(head, "bias", None) is not None:
        raise IncompleteError("a head with a bias cannot be reduced")
    rows = head.weight.detach()[ids].clone()
    model.set_output_embeddings(ReducedHead(rows, ids, head.weight.shape[0]))


def open_distilled(
    folder: Path, vocab: DraftVocab, dtype: torch.dtype, resolve: Callable[[str], Path]
) -> Any:
    """The transformers model of a folder, completed. `resolve` finds the target's own folder.

    Raises IncompleteError, and whatever `resolve` raises.
    """
    config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=False)
    if config.num_hidden_layers != len(vocab.layers):
        raise IncompleteError(f"{DRAFT_VOCAB} does not name the layers that the model has")
    names = [name for name, _ in model.named_parameters()]
    tensors = stored_tensors(folder, names)
    shared = {name: origin(name, vocab.layers) for name in names if name not in tensors}
    if shared:
        found = stored_tensors(resolve(vocab.target), shared.values())
        if fingerprint(found) != vocab.shared_fingerprint:
            raise IncompleteError(f"it was distilled from another model than {vocab.target}")
        tensors |= {name: found[theirs] for name, theirs in shared.items() if theirs in found}
    missing = [name for name in names if name not in tensors]
    if missing:
        raise IncompleteError(f"it has no weights for {missing[0]}")
    model.load_state_dict(tensors, strict=False)
    reduce_head(model, vocab.token_ids)
    return model
