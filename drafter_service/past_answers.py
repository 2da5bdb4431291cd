"""Past answers as a drafter: one store per tenant, of all verifiers together. Loads no torch."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from drafter_service.state import DraftState
from drafter_service.updates import Distribution
from paceline.lookup.confidence import Confidences
from paceline.lookup.luck import Luck
from paceline.lookup.past_answers import PastAnswers, PastGuesses
from paceline.lookup.priors import GREEDY, SAMPLED
from paceline.lookup.tenants import Tenants
from paceline.rounds import TokenSource

# A draft goes on for as long as this likely to stand: longer matches give longer ones.
_MIN_PROBABILITY = 0.05


@dataclass(slots=True)
class _Followed:
    """What was matched of one sequence: committed tokens, which never change."""

    guesses: PastGuesses
    confidences: Confidences
    token_ids: list[int] = field(default_factory=list)


class PastAnswersDrafter:
    """Drafts what followed in the tenant's past answers where the text ended like this."""

    name = "past-answers"
    source = TokenSource.PAST_ANSWERS
    tokenizer_fingerprint = ""
    vocab_size = 0
    max_context = 0
    eos_token_ids: frozenset[int] = frozenset()

    def __init__(self) -> None:
        self._stores = Tenants(PastAnswers)
        self._followed: dict[DraftState, _Followed] = {}

    def attach(self, state: DraftState) -> None:
        temperature = state.params.temperature
        luck = Luck(state.seed, temperature) if temperature > 0.0 else None
        token_ids: list[int] = []
        self._followed[state] = _Followed(
            PastGuesses(self._stores.of(state.tenant), token_ids, luck),
            Confidences(SAMPLED if luck else GREEDY),
            token_ids,
        )

    def rollback(self, state: DraftState, length: int) -> None:
        """Nothing to do: what was matched is committed."""

    def detach(self, state: DraftState) -> None:
        del self._followed[state]
        if state.is_finished:
            start = state.num_prompt_tokens
            answer = state.token_ids[start:]
            self._stores.of(state.tenant).add(state.token_ids[:start], answer)

    def extend(self, states: Sequence[DraftState]) -> list[list[int] | None]:
        return [self._propose(state) or None for state in states]

    def _propose(self, state: DraftState) -> list[int]:
        """The likeliest continuation, as far as it is likely to stand behind the last commit."""
        followed = self._followed[state]
        guesses, known = followed.guesses, followed.token_ids
        known += state.token_ids[len(known) : state.num_committed]
        match, probability = guesses.root(), 1.0
        proposed: list[int] = []
        for position in range(state.num_committed, len(state.token_ids) + state.num_wanted):
            found = guesses.guesses(match, position)
            drafted = position < len(state.token_ids)
            token_id = state.token_ids[position] if drafted else -1
            ranked = [
                (followed.confidences[guess.bucket], guess.token_id)
                for guess in found
                if not drafted or guess.token_id == token_id
            ]
            if not ranked:
                break
            confidence, token_id = max(ranked, key=itemgetter(0))
            probability *= confidence
            if probability < _MIN_PROBABILITY:
                break
            if not drafted:
                proposed.append(token_id)
            match = guesses.step(match, token_id)
        return proposed

    def distributions(self, state: DraftState, start: int, end: int) -> Sequence[Distribution]:
        return ()
