"""Sampling: from the target model's logits to output tokens, with or without a draft block.

This module is what lossless means here. COUPLED (design.md 3): the token at a position is
argmax over y of log p(y) - log E_y, with E_y exponential noise that is a pure function of the seed
and the position. That is an exact sample from p (the exponential race), it does not depend on any
draft, and verifying a draft token is comparing it (Daliri, Musco, Suresh, arXiv 2408.07978).
REJECTION is in paceline.rejection. In both an empty block is plain decoding, on the same path.
Knows nothing of models, messages or services.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.noise import Purpose
from paceline.params import BANNED, SamplingMode, SamplingParams
from paceline.races import exponentials, token_offsets
from paceline.rejection import DraftDistribution, one_hot, verify_block

NEG_INF = float("-inf")
# top_p needs the likeliest tokens in order; nearly always these are enough, else all are sorted.
_NUCLEUS_GUESS = 512
# Scores whose maximum is looked at before any of them.
_CHUNK = 256


class NotFinite(ValueError):
    """The logits hold NaN or +infinity: the model failed, no token can be chosen."""


class NothingLeft(ValueError):
    """The request's constraints exclude every token."""


class SamplingState:
    """What choosing the next token of one sequence depends on, besides the logits.

    `append` follows the output as it grows, `pop` takes tokens back (drafters roll back; the
    verifier never does). Penalty counts are kept only when a penalty is set.
    """

    def __init__(
        self,
        params: SamplingParams,
        seed: int,
        prompt: Sequence[int],
        output: Sequence[int] = (),
        *,
        vocab_size: int,
        end_token_ids: Iterable[int] = (),
    ) -> None:
        self.params = params
        self.seed = seed
        self.num_prompt_tokens = len(prompt)
        self.output: list[int] = []
        self.end_token_ids = sorted({*end_token_ids, *params.stop_token_ids})
        self._bias: tuple[Tensor, Tensor] | None = None
        if params.logit_bias:
            values = [NEG_INF if b <= BANNED else b for b in params.logit_bias.values()]
            self._bias = torch.tensor(list(params.logit_bias)), torch.tensor(values)
        self._occurrences: Tensor | None = None  # of prompt and output, [vocab_size]
        self._output_counts: Tensor | None = None  # [vocab_size]
        if params.has_penalties:
            self._occurrences = torch.bincount(
                torch.tensor(list(prompt), dtype=torch.int64), minlength=vocab_size
            )
            self._output_counts = torch.zeros(vocab_size)
        for token_id in output:
            self.append(token_id)

    @property
    def position(self) -> int:
        """Index in the sequence of the token to be chosen next."""
        return self.num_prompt_tokens + len(self.output)

    def append(self, token_id: int) -> None:
        self.output.append(token_id)
        self._count(token_id, 1)

    def pop(self, num_tokens: int) -> None:
        for _ in range(num_tokens):
            self._count(self.output.pop(), -1)

    def _count(self, token_id: int, change: int) -> None:
        if self._occurrences is not None and self._output_counts is not None:
            self._occurrences[token_id] += change
            self._output_counts[token_id] += change

    def scores(self, logits: Tensor) -> Tensor:
        """Logits [vocab_size] after every sampling parameter, float32; -inf is never chosen.

        Order and meaning equal transformers' logits processors. Frequency and presence penalties,
        which transformers lacks, follow the repetition penalty (OpenAI's definition).
        """
        params = self.params
        scores = logits.float()
        if self._bias is not None:
            ids, values = self._bias
            scores = scores.index_add(0, ids, values)
        if self._occurrences is not None and self._output_counts is not None:
            if params.repetition_penalty != 1.0:
                penalty = params.repetition_penalty
                penalised = torch.where(scores < 0, scores * penalty, scores / penalty)
                scores = torch.where(self._occurrences > 0, penalised, scores)
            if params.frequency_penalty or params.presence_penalty:
                counts = self._output_counts
                scores = scores - params.frequency_penalty * counts
                scores = scores - params.presence_penalty * (counts > 0)
        if len(self.output) < params.min_tokens and self.end_token_ids:
            scores = scores.index_fill(0, torch.tensor(self.end_token_ids), NEG_INF)
        if params.temperature == 0.0:
            return scores
        if params.temperature != 1.0:
            scores = scores / params.temperature
        return filtered(scores, params) if params.has_filters else scores


def filtered(scores: Tensor, params: SamplingParams) -> Tensor:
    """Scores [vocab_size] with -inf outside top_k, then top_p, then min_p.

    Each filter is a threshold on the score, so tokens that tie with the last one kept are kept:
    the outcome depends on the row alone, never on a sort's order among equals.
    """
    if params.top_k and params.top_k < scores.numel():
        threshold = torch.topk(scores, params.top_k).values[-1]
        scores = scores.masked_fill(scores < threshold, NEG_INF)
    if params.top_p < 1.0:
        scores = scores.masked_fill(scores < _nucleus_threshold(scores, params.top_p), NEG_INF)
    if params.min_p > 0.0:
        probs = torch.softmax(scores, -1)
        scores = scores.masked_fill(probs < params.min_p * probs.max(), NEG_INF)
    return scores


def _nucleus_threshold(scores: Tensor, top_p: float) -> Tensor:
    """The lowest score in the smallest set of likeliest tokens with probability >= top_p."""
    log_total = torch.logsumexp(scores.double(), -1)
    size = min(_NUCLEUS_GUESS, scores.numel())
    while True:
        ordered = torch.topk(scores, size).values
        cumulative = (ordered.double() - log_total).exp().cumsum(-1)
        inside = int((cumulative < top_p).sum())
        if inside < size or size == scores.numel():
            return ordered[min(inside, size - 1)]
        size = scores.numel()


def _first_argmax(scores: Tensor) -> tuple[int, float]:
    """(lowest index of the largest score, that score); NaN counts as largest."""
    if scores.device.type == "cpu":
        # numpy's argmax is vectorised: 25 us for 49k entries against torch's 80 us.
        row = scores.numpy()
        index = int(row.argmax())
        return index, float(row[index])
    index = int(scores.argmax())
    return index, float(scores[index])


class Chooser:
    """Chooses tokens with the shared noise of one vocabulary."""

    def __init__(
        self, vocab_size: int, device: torch.device | str = "cpu", *, is_sparse: bool = False
    ) -> None:
        """is_sparse: most logits are -inf, so that it pays to draw noise for the others only."""
        self.vocab_size = vocab_size
        self._is_sparse = is_sparse
        self._offsets = token_offsets(vocab_size, device)

    def choose(self, logits: Tensor, state: SamplingState) -> int:
        """The next token of a sequence from its logits [at least vocab_size].

        Raises NotFinite or NothingLeft. Entries beyond the vocabulary (padding) are never chosen.
        """
        scores = state.scores(logits[: self.vocab_size])
        if state.params.temperature == 0.0:
            token_id, best = _first_argmax(scores)
        elif state.params.has_filters or self._is_sparse:
            token_id, best = self._race_of_few(scores, state)
        else:
            noise = exponentials(state.seed, Purpose.CHOOSE, state.position, self._offsets)
            token_id, best = _first_argmax(scores - noise.log_())
        if best != best or best == float("inf"):
            raise NotFinite("the target model's logits are not finite")
        if best == NEG_INF:
            raise NothingLeft("the constraints exclude every token")
        return token_id

    def probs(self, logits: Tensor, state: SamplingState) -> Tensor:
        """p at the next position: float64 [vocab_size]. Raises NotFinite or NothingLeft."""
        scores = state.scores(logits[: self.vocab_size])
        if state.params.temperature == 0.0:
            certain = torch.zeros(self.vocab_size, dtype=torch.float64, device=scores.device)
            certain[self.choose(logits, state)] = 1.0
            return certain
        best = float(scores.max())
        if best != best or best == float("inf"):
            raise NotFinite("the target model's logits are not finite")
        if best == NEG_INF:
            raise NothingLeft("the constraints exclude every token")
        return torch.softmax(scores.double(), -1)

    def _race_of_few(self, scores: Tensor, state: SamplingState) -> tuple[int, float]:
        # `> -inf` is false for NaN, which must not be lost among the filtered.
        ids = torch.nonzero(~(scores <= NEG_INF)).squeeze(-1)
        if not ids.numel():
            return 0, NEG_INF
        noise = exponentials(state.seed, Purpose.CHOOSE, state.position, self._offsets[ids])
        winner, best = _first_argmax(scores[ids] - noise.log_())
        return int(ids[winner]), best


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a round gave one sequence: token_ids are the accepted ones and one more.

    `path` are the accepted draft tokens' indices in the block. Tested are those and, if the last
    of them had any draft token after it, the rejection there.
    """

    token_ids: list[int]
    path: Sequence[int]
    num_tested: int

    @property
    def num_accepted(self) -> int:
        return len(self.path)


def verify(
    chooser: Chooser,
    logits: Tensor,  # [num_draft_tokens + 1, vocab_size]: row i follows draft token i - 1
    draft_token_ids: Sequence[int],
    state: SamplingState,
    distributions: Sequence[DraftDistribution] = (),
    parents: Sequence[int] = (),
) -> Verdict:
    """Verify a draft block, empty for plain decoding; `state` moves on by the tokens chosen.

    `parents` make the block a tree: each draft token's parent among them, -1 for the token before
    the block; parents come first. Without them it is a chain, the tree of one branch. REJECTION
    verifies chains only.

    `distributions` are what the draft tokens were sampled from, for REJECTION; without them every
    token counts as certain, which is exact for whatever was proposed before the coins were known.
    Raises as `Chooser.choose` does, with `state` at the token that failed.
    """
    if state.params.mode is SamplingMode.REJECTION:
        return _verify_rejection(chooser, logits, draft_token_ids, state, distributions)
    # A row is used only if every draft token on its path was accepted: the tokens are those that
    # plain decoding would choose, whatever the block. So rows are looked at one by one: on a CPU
    # choosing a token costs more than finding out that no more are needed.
    children: dict[tuple[int, int], int] = {}
    for index, token_id in enumerate(draft_token_ids):
        children.setdefault((parents[index] if parents else index - 1, token_id), index)
    inner = {parent for parent, _ in children}
    path: list[int] = []
    node = -1
    while True:
        token_id = chooser.choose(logits[node + 1], state)
        state.append(token_id)
        following = children.get((node, token_id))
        if following is None:
            num_tested = len(path) + (node in inner)
            return Verdict(state.output[-len(path) - 1 :], path, num_tested)
        node = following
        path.append(node)


def _verify_rejection(
    chooser: Chooser,
    logits: Tensor,
    draft_token_ids: Sequence[int],
    state: SamplingState,
    distributions: Sequence[DraftDistribution],
) -> Verdict:
    base, count = state.position, len(draft_token_ids)
    rows = [chooser.probs(logits[0], state)]
    for index, token_id in enumerate(draft_token_ids, start=1):
        # Penalties at a position see the draft tokens before it.
        state.append(token_id)
        rows.append(chooser.probs(logits[index], state))
    state.pop(count)
    block = verify_block(
        torch.stack(rows),
        draft_token_ids,
        distributions or [one_hot(token_id) for token_id in draft_token_ids],
        state.seed,
        base,
    )
    token_ids = [*draft_token_ids[: block.num_accepted], block.next_token_id]
    for token_id in token_ids:
        state.append(token_id)
    return Verdict(token_ids, range(block.num_accepted), min(block.num_accepted + 1, count))


def logprobs(
    logits: Tensor,  # [vocab_size], raw
    token_id: int,
    num_top: int,
) -> tuple[float, list[int], list[float]]:
    """(the token's, the likeliest ids, theirs): raw log-probabilities, before any parameter."""
    values = torch.log_softmax(logits.float(), -1)
    top = torch.topk(values, num_top) if num_top else None
    return (
        float(values[token_id]),
        top.indices.tolist() if top else [],
        top.values.tolist() if top else [],
    )


def top_tokens(
    logits: Tensor,  # [num_rows, vocab_size], raw
    num_top: int,
) -> list[tuple[list[int], list[float]]]:
    """Per row the likeliest ids, best first, and their raw log-probabilities."""
    scores = logits.float()
    num_chunks = scores.shape[1] // _CHUNK
    if num_chunks > 2 * num_top:
        # The chunks with the highest maxima, and what is left over, hold the highest scores: to
        # sort them all would take three times as long.
        whole = num_chunks * _CHUNK
        maxima = scores[:, :whole].view(-1, num_chunks, _CHUNK).amax(-1)
        chunks = torch.topk(maxima, num_top).indices
        within = torch.arange(_CHUNK, device=scores.device)
        rest = torch.arange(whole, scores.shape[1], device=scores.device)
        ids = torch.cat(
            [
                (chunks.unsqueeze(-1) * _CHUNK + within).flatten(1),
                rest.expand(len(scores), -1),
            ],
            1,
        )
        values, places = torch.topk(scores.gather(1, ids), num_top)
        ids = ids.gather(1, places)
    else:
        values, ids = torch.topk(scores, num_top)
    # On a CPU softmax takes half the time of logsumexp. The best has at least 1 / vocab_size.
    best = torch.softmax(scores, -1).gather(1, ids[:, :1])
    logprobs = values - values[:, :1] + best.log()
    return list(zip(ids.tolist(), logprobs.tolist(), strict=True))
