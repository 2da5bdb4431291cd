"""The prompt lookup as a drafter: one index per sequence. Loads no torch."""

from collections.abc import Sequence

from drafter_service.state import DraftState
from drafter_service.updates import Distribution
from paceline.lookup.prompt_lookup import PromptLookup
from paceline.rounds import TokenSource


class PromptLookupDrafter:
    """Drafts what followed the last time the sequence ended like this."""

    name = "prompt-lookup"
    source = TokenSource.PROMPT_LOOKUP
    tokenizer_fingerprint = ""
    vocab_size = 0
    max_context = 0
    eos_token_ids: frozenset[int] = frozenset()

    def __init__(self) -> None:
        self._lookups: dict[DraftState, PromptLookup] = {}

    def attach(self, state: DraftState) -> None:
        self._lookups[state] = PromptLookup()

    def rollback(self, state: DraftState, length: int) -> None:
        lookup = self._lookups[state]
        lookup.rollback(min(length, len(lookup)))

    def detach(self, state: DraftState) -> None:
        del self._lookups[state]

    def extend(self, states: Sequence[DraftState]) -> list[list[int] | None]:
        return [self._propose(state) or None for state in states]

    def _propose(self, state: DraftState) -> list[int]:
        lookup = self._lookups[state]
        lookup.append(state.token_ids[len(lookup) :])
        return lookup.propose(state.num_wanted)

    def distributions(self, state: DraftState, start: int, end: int) -> Sequence[Distribution]:
        return ()
