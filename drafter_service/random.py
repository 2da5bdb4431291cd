"""A drafter of random tokens, for load tests: it costs nothing and is nearly always wrong."""

import hashlib
from collections.abc import Sequence

from drafter_service.state import DraftState
from drafter_service.updates import Distribution
from paceline.rounds import TokenSource


class RandomDrafter:
    """Drafts ids that depend on the sequence's seed and the position alone."""

    name = "random"
    source = TokenSource.RANDOM
    tokenizer_fingerprint = ""
    vocab_size = 0
    max_context = 0
    eos_token_ids: frozenset[int] = frozenset()

    def attach(self, state: DraftState) -> None:
        pass

    def rollback(self, state: DraftState, length: int) -> None:
        pass

    def detach(self, state: DraftState) -> None:
        pass

    def extend(self, states: Sequence[DraftState]) -> list[list[int] | None]:
        return [
            [
                random_token_id(state.seed, position, state.vocab_size)
                for position in range(len(state.token_ids), len(state.token_ids) + state.num_wanted)
            ]
            for state in states
        ]

    def distributions(self, state: DraftState, start: int, end: int) -> Sequence[Distribution]:
        return ()


def random_token_id(seed: int, position: int, vocab_size: int) -> int:
    """An id below `vocab_size`, the same for the same arguments in every process."""
    digest = hashlib.blake2b(b"%d/%d" % (seed, position), digest_size=8).digest()
    return int.from_bytes(digest, "big") % vocab_size
