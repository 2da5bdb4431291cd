"""The sources of one sequence's draft tokens: its own lookups, and what its drafter has sent.

Puts them into one trie per round and tells them what the target chose. Knows no tensors, threads
or messages. The stores behind it are of one tenant and live as long as the engine.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from paceline.lookup.confidence import Confidences
from paceline.lookup.guesses import Guess, Predictor
from paceline.lookup.lookahead import Lookahead
from paceline.lookup.luck import Luck
from paceline.lookup.past_answers import PastAnswers, PastGuesses
from paceline.lookup.priors import GREEDY, SAMPLED
from paceline.lookup.prompt_lookup import PromptGuesses, PromptLookup
from paceline.lookup.recycling import RecycledGuesses, RecyclingTable
from paceline.lookup.tenants import Tenants
from paceline.lookup.thoughts import Thoughts
from paceline.lookup.trie import Tree, Trie
from paceline.lookup.warm_table import WarmTable, read_table, shipped_table
from paceline.params import SamplingParams
from paceline.rounds import TokenSource

PROMPT_LOOKUP, PAST_ANSWERS, RECYCLED = "prompt_lookup", "past_answers", "recycled"
LOOKAHEAD = "lookahead"
SOURCES = (PROMPT_LOOKUP, PAST_ANSWERS, RECYCLED, LOOKAHEAD)
# Lookahead gives these next to nothing more (docs/log.md).
DEFAULT_SOURCES = (PROMPT_LOOKUP, PAST_ANSWERS, RECYCLED)


class Stores:
    """What outlives a sequence, by tenant. `warm` is of the target, and everybody's."""

    def __init__(self, warm: WarmTable | None = None) -> None:
        self.past_answers = Tenants(PastAnswers)
        self.new_recycling = partial(RecyclingTable, warm=warm)
        self.recycling = Tenants(self.new_recycling)


def warm_table(name: str, model: str, tokenizer: str, vocab_size: int) -> WarmTable | None:
    """`name` is a file, "auto" for what came with the package for this model, or "none"; the
    tokenizer is named by its fingerprint. Raises BadTable."""
    if name == "none":
        return None
    if name == "auto":
        return shipped_table(model, tokenizer, vocab_size)
    return read_table(Path(name), tokenizer, vocab_size)


@dataclass(frozen=True, slots=True)
class Chain:
    """What a drafter has sent, as a source of the trie. A state is how much of it was followed."""

    token_ids: Sequence[int] = ()
    sources: Sequence[TokenSource] = ()

    def root(self) -> int:
        return 0

    def step(self, state: int, token_id: int) -> int:
        follows = state < len(self.token_ids) and self.token_ids[state] == token_id
        return state + 1 if follows else len(self.token_ids)

    def guesses(self, state: int, position: int) -> list[Guess]:
        if state >= len(self.token_ids):
            return []
        source = self.sources[state]
        return [Guess(self.token_ids[state], source, ("drafter", int(source)))]


class Sources:
    """Draft tokens of one sequence, for the engine's thread."""

    def __init__(
        self,
        names: Sequence[str],
        stores: Stores,
        *,
        prompt: Sequence[int],
        token_ids: Sequence[int],
        params: SamplingParams,
        seed: int,
        branch_block: int,
        tenant: str = "",
        keep: bool = True,
        confidences: Confidences | None = None,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`names` are of SOURCES. `token_ids` is the sequence's own list, prompt included, which
        grows before `committed` tells of it. Nothing is kept for later sequences without `keep`.
        `confidences` are of the shipped priors unless they are given."""
        sampled = params.temperature > 0.0
        luck = Luck(seed, params.temperature) if sampled else None
        self._confidences = confidences or Confidences(SAMPLED if sampled else GREEDY)
        self._prompt = prompt
        self._token_ids = token_ids
        self._branch_block = branch_block
        self._keep = keep
        self._now_ns = now_ns
        self._spent_ns = 0
        self._predictors: list[Predictor] = []
        self._lookup: PromptLookup | None = None
        self._past: PastAnswers | None = None
        self._recycling: RecyclingTable | None = None
        self._lookahead: Lookahead | None = None
        self._trie: Trie | None = None
        self._chain = Chain()
        if PROMPT_LOOKUP in names:
            self._lookup = PromptLookup(min_ngram=1)
            self._lookup.append(token_ids)
            self._predictors.append(PromptGuesses(self._lookup, luck))
        if PAST_ANSWERS in names:
            self._past = stores.past_answers.of(tenant)
            self._predictors.append(PastGuesses(self._past, token_ids, luck))
        if RECYCLED in names:
            self._recycling = stores.recycling.of(tenant) if keep else stores.new_recycling()
            self._predictors.append(RecycledGuesses(self._recycling, token_ids, luck))
        if LOOKAHEAD in names:
            self._lookahead = Lookahead(token_ids, luck, seed)
            self._predictors.append(self._lookahead.guesses)

    @property
    def has_own(self) -> bool:
        """Whether it can draft without a drafter."""
        return bool(self._predictors)

    @property
    def needs_every_step(self) -> bool:
        """Whether it falls behind where a step is left out."""
        return self._lookahead is not None

    @property
    def wants_thoughts(self) -> bool:
        """Whether `committed` has a use for what the target thought at every row."""
        return self._lookahead is not None or self._recycling is not None

    def draft(self, chain: Chain, max_depth: int, count: int, min_probability: float = 0.0) -> Tree:
        """The likeliest `count` draft tokens above `min_probability`, rows of a lookahead window
        among them for what such a row is worth; otherwise as `trie`."""
        begin_ns = self._now_ns()
        tree = self._pick(chain, max_depth, count, min_probability)
        self._spent_ns += self._now_ns() - begin_ns
        return tree

    def take_spent_us(self) -> float:
        """Time that `draft` took since this was last asked."""
        spent_ns, self._spent_ns = self._spent_ns, 0
        return spent_ns / 1e3

    def _pick(self, chain: Chain, max_depth: int, count: int, min_probability: float) -> Tree:
        trie = self.trie(chain, max_depth)
        if self._lookahead is None:
            return trie.pick(count, min_probability)
        if self._lookahead.credit <= min_probability:
            return trie.pick(count, min_probability)
        tree = trie.pick(count, self._lookahead.credit)
        return self._lookahead.graft(tree, count - len(tree), max_depth, self._branch_block)

    def trie(self, chain: Chain, max_depth: int) -> Trie:
        """The trie of the coming round; the same one until tokens are committed or `chain`, what
        the drafter has sent, changes. `max_depth` counts tokens, 0 for none."""
        if self._trie is None or chain != self._chain:
            self._chain = chain
            self._trie = Trie(
                [chain, *self._predictors] if chain.token_ids else self._predictors,
                self._confidences,
                position=len(self._token_ids),
                max_depth=max_depth,
                branch_block=self._branch_block,
            )
        return self._trie

    @property
    def has_guesses(self) -> bool:
        """Whether the coming round could have any draft token."""
        return self._lookahead is not None or (self._trie is not None and self._trie.has_guesses)

    def committed(self, token_ids: Sequence[int], thoughts: Thoughts | None = None) -> None:
        """A round's tokens, now at the end of the sequence, and what the target thought."""
        if self._trie is not None:
            self._trie.learn(token_ids)
            self._trie = None
        if self._recycling is not None and thoughts is not None:
            known = self._token_ids
            start = len(known) - len(token_ids)
            before = known[start - 2] if start > 1 else 0
            for context in thoughts.contexts(before, known[start - 1]):
                self._recycling.put(*context)
        if self._lookup is not None:
            self._lookup.append(token_ids)
        if self._lookahead is not None and thoughts is not None:
            self._lookahead.learn(len(token_ids), thoughts)

    def finished(self) -> None:
        """The answer is complete: keep it, if that is wanted."""
        if self._past is not None and self._keep:
            self._past.add(self._prompt, self._token_ids[len(self._prompt) :])
