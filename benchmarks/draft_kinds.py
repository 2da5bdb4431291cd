"""Which kind of draft model learns fastest: the same answers, equal processor time each.

    paceline distill --out draft --minutes 30     # its work folder has the answers
    python benchmarks/draft_kinds.py draft-work

ends    the target's first and last layer (`paceline distill --shared-layers 0`)
shared  the target's first four layers as they are, below two that learn: the command's default
hidden  one layer on the newest token's embedding and the target's last hidden state before it,
        which a verifier would have to send: about 1.2 kB per token

For Llama-like targets. What the target computes for `shared` and `hidden` is computed beforehand
and not counted. Prints a line per fifth of the time and a last line of JSON.
"""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from paceline.distill.corpus import Corpus, Record
from paceline.distill.examples import column_of
from paceline.distill.losses import divergence
from paceline.distill.schedule import batches, learning_rate
from paceline.distill.vocabulary import coverage, expected_counts, ranked
from paceline.model.load import resolve

KINDS = ("ends", "shared", "hidden")
NUM_SHARED = 4
BATCH = 4
PEAK_RATE = 1e-3
DRAFT_VOCAB = 8192
HELD_OUT = 48
POINTS = 5
BF16 = torch.bfloat16


def normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x.float(), weight.shape, weight, eps).to(x.dtype)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


class Layer(nn.Module):
    """One of the target's layers, float32 weights, calculating in bf16."""

    def __init__(self, origin: Any, config: Any) -> None:
        super().__init__()
        self.eps = config.rms_norm_eps
        self.dim = config.hidden_size // config.num_attention_heads
        attention, mlp = origin.self_attn, origin.mlp
        self.weights = nn.ParameterDict(
            {
                "q": attention.q_proj.weight,
                "k": attention.k_proj.weight,
                "v": attention.v_proj.weight,
                "o": attention.o_proj.weight,
                "gate": mlp.gate_proj.weight,
                "up": mlp.up_proj.weight,
                "down": mlp.down_proj.weight,
                "before": origin.input_layernorm.weight,
                "between": origin.post_attention_layernorm.weight,
            }
        )
        for name, weight in self.weights.items():
            self.weights[name] = nn.Parameter(weight.detach().float().clone())

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        def linear(h: Tensor, name: str) -> Tensor:
            return F.linear(h, self.weights[name].to(BF16))

        h = normed(x, self.weights["before"], self.eps)
        q, k, v = (linear(h, n).unflatten(-1, (-1, self.dim)).transpose(1, 2) for n in "qkv")
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], 1) for t in (k, v))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + linear(out.transpose(1, 2).flatten(2), "o")
        h = normed(x, self.weights["between"], self.eps)
        return x + linear(F.silu(linear(h, "gate")) * linear(h, "up"), "down")


class Draft(nn.Module):
    """A draft model of one kind. Its features are what the target computed: `feature_of`."""

    def __init__(self, kind: str, target: Any, token_ids: Tensor) -> None:
        super().__init__()
        self.kind, self.eps = kind, target.config.rms_norm_eps
        origins = target.model.layers
        first = {"ends": [0], "shared": [NUM_SHARED], "hidden": []}[kind]
        self.layers = nn.ModuleList(
            Layer(origins[i], target.config) for i in (*first, len(origins) - 1)
        )
        self.norm = nn.Parameter(target.model.norm.weight.detach().float().clone())
        self.embeddings = target.get_input_embeddings().weight.detach().to(BF16)
        self.head = target.get_output_embeddings().weight.detach()[token_ids].to(BF16)
        self.rope = target.model.rotary_emb
        if kind == "hidden":
            size = target.config.hidden_size
            self.joint = nn.Parameter(torch.cat([torch.eye(size), torch.eye(size) * 0.5], 1))
            self.scales = nn.Parameter(torch.ones(2, size))

    def logits(self, input_ids: Tensor, features: Tensor, rows: Tensor) -> Tensor:
        x = features if self.kind == "shared" else self.embeddings[input_ids]
        if self.kind == "hidden":
            parts = [
                normed(x, self.scales[0], self.eps),
                normed(features, self.scales[1], self.eps),
            ]
            x = F.linear(torch.cat(parts, -1), self.joint.to(BF16))
        positions = torch.arange(input_ids.shape[1])[None]
        cos, sin = (t[:, None] for t in self.rope(x, positions))
        for layer in self.layers:
            x = layer(x, cos, sin)
        return F.linear(normed(x.flatten(0, 1)[rows], self.norm, self.eps), self.head)


def sequence_of(record: Record) -> list[int]:
    return [*record.prompt, *record.output[:-1]]


def padded(sequences: Sequence[list[int]]) -> Tensor:
    width = max(map(len, sequences))
    return torch.tensor([ids + [0] * (width - len(ids)) for ids in sequences])


@torch.inference_mode()
def target_features(target: Any, records: Sequence[Record]) -> dict[int, dict[str, Tensor]]:
    """By record: the stream behind the shared layers, and behind all of them one position ago."""
    taken: dict[str, Tensor] = {}

    def keep(name: str) -> Any:
        return lambda module, given, out: taken.update(
            {name: out[0] if isinstance(out, tuple) else out}
        )

    layers = target.model.layers
    layers[NUM_SHARED - 1].register_forward_hook(keep("shared"))
    layers[-1].register_forward_hook(keep("hidden"))
    found: dict[int, dict[str, Tensor]] = {}
    ordered = sorted(records, key=lambda record: len(sequence_of(record)))
    for start in range(0, len(ordered), 16):
        part = ordered[start : start + 16]
        target.model(padded([sequence_of(record) for record in part]), use_cache=False)
        for index, record in enumerate(part):
            length = len(sequence_of(record))
            hidden = taken["hidden"][index, :length]
            before = torch.cat([torch.zeros_like(hidden[:1]), hidden[:-1]])
            shared = taken["shared"][index, :length].clone()
            found[record.index] = {"ends": shared[:0], "shared": shared, "hidden": before}
    return found


class Data:
    """Batches of records for one kind."""

    def __init__(self, features: dict[int, dict[str, Tensor]], columns: Tensor, size: int) -> None:
        self._features, self._columns, self._size = features, columns, size

    def batch(self, records: Sequence[Record], kind: str) -> tuple[Tensor, ...]:
        input_ids = padded([sequence_of(record) for record in records])
        width = input_ids.shape[1]
        features = torch.zeros(len(records), width, self._size, dtype=BF16)
        rows = []
        for index, record in enumerate(records):
            feature = self._features[record.index][kind]
            features[index, : len(feature)] = feature
            rows.append(torch.arange(len(record.output)) + index * width + len(record.prompt) - 1)
        columns = torch.cat([self._columns[record.top_ids.long()] for record in records])
        logprobs = torch.cat([record.top_logprobs for record in records]).float()
        return input_ids, features, torch.cat(rows), columns, logprobs


@torch.no_grad()
def measured(
    draft: Draft, data: Data, held_out: Sequence[Record], ids: Tensor
) -> tuple[float, float]:
    """(KL, share of the tokens said at temperature 0 that it would have proposed)."""
    kl = weight = 0.0
    matches = total = 0
    for start in range(0, len(held_out), 16):
        part = held_out[start : start + 16]
        input_ids, features, rows, columns, logprobs = data.batch(part, draft.kind)
        logits = draft.logits(input_ids, features, rows).float()
        here, rows_weight = divergence(logits, columns, logprobs)
        kl, weight = kl + float(here), weight + float(rows_weight)
        said = torch.tensor([token_id for record in part for token_id in record.output])
        is_greedy = torch.tensor([r.temperature == 0.0 for r in part for _ in r.output])
        matches += int((ids[logits.argmax(-1)] == said)[is_greedy].sum())
        total += int(is_greedy.sum())
    return kl / weight, matches / max(1, total)


def learn(
    draft: Draft,
    data: Data,
    train: Sequence[Record],
    held_out: Sequence[Record],
    ids: Tensor,
    seconds: float,
) -> list[dict[str, Any]]:
    """Points of its curve. Seconds are the process's own, of training alone."""
    optimizer = torch.optim.AdamW(draft.parameters(), lr=0.0, betas=(0.9, 0.95), weight_decay=0.05)
    order = batches([len(r.prompt) + len(r.output) for r in train], BATCH, 1)
    points: list[dict[str, Any]] = []
    used, num_tokens = 0.0, 0
    while used < seconds:
        started = time.process_time()
        optimizer.param_groups[0]["lr"] = learning_rate(used / seconds, PEAK_RATE)
        input_ids, features, rows, columns, logprobs = data.batch(
            [train[index] for index in next(order)], draft.kind
        )
        kl, weight = divergence(draft.logits(input_ids, features, rows), columns, logprobs)
        (kl / weight).backward()
        torch.nn.utils.clip_grad_norm_(draft.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        num_tokens += len(rows)
        before, used = used, used + time.process_time() - started
        if int(used / seconds * POINTS) > int(before / seconds * POINTS):
            loss, match = measured(draft, data, held_out, ids)
            points.append(
                {"seconds": round(used), "tokens": num_tokens, "loss": loss, "accepted_t0": match}
            )
            print(
                f"{draft.kind:7} {used:4.0f} s {num_tokens:8,} tokens  held-out KL {loss:.3f}  "
                f"accepted at T 0 {match:.3f}",
                flush=True,
            )
    return points


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("work", type=Path, help="work folder of paceline distill")
    parser.add_argument("--target", default="embedded")
    parser.add_argument("--seconds", type=float, default=70.0, help="of training, for each kind")
    parser.add_argument("--threads", type=int, default=1)
    flags = parser.parse_args()
    torch.set_num_threads(flags.threads)
    folder = flags.work / "corpus"
    records = Corpus(folder, json.loads((folder / "corpus.json").read_text())).read()
    train = [record for record in records if not record.is_held_out]
    held_out = [record for record in records if record.is_held_out][:HELD_OUT]
    target = AutoModelForCausalLM.from_pretrained(resolve(flags.target), dtype=BF16).eval()
    vocab_size = target.config.vocab_size
    eos = target.generation_config.eos_token_id
    token_ids = ranked(
        expected_counts(train, vocab_size), DRAFT_VOCAB, [eos] if isinstance(eos, int) else eos
    )
    ids = torch.tensor(token_ids)
    print(
        f"{len(train)} answers to learn from, {sum(len(r.output) for r in train):,} tokens; "
        f"{len(held_out)} held out, {coverage(held_out, token_ids):.3f} of them in the vocabulary",
        flush=True,
    )
    features = target_features(target, [*train, *held_out])
    data = Data(features, column_of(token_ids, vocab_size), target.config.hidden_size)
    curves = {}
    for kind in KINDS:
        torch.manual_seed(1)
        draft = Draft(kind, target, ids)
        curves[kind] = learn(draft, data, train, held_out, ids, flags.seconds)
    print(json.dumps(curves))


if __name__ == "__main__":
    main()
