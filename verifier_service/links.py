"""Which sequence drafts with which drafter, and what each drafter is to be told.

Links are numbers with limits; the wire behind them is elsewhere. Updates gather here during a step
and leave together, one message per drafter. Used on the engine's thread. Pure but for the clock.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from opentelemetry.trace import SpanContext

from paceline.params import SamplingParams, Speculation
from verifier_service.mailbox import Commit
from verifier_service.sequence import VerifierSequence

# After a drafter refused a sequence, another attach is tried this much later.
_RETRY_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Attach:
    """A sequence for the drafter to follow, all of it."""

    sequence: int
    epoch: int
    token_ids: Sequence[int]
    num_prompt_tokens: int
    params: SamplingParams
    seed: int
    max_draft_tokens: int
    round: int
    trace: SpanContext | None
    tenant: str


@dataclass(frozen=True, slots=True)
class Committed:
    """Tokens that the target model decided."""

    sequence: int
    commit: Commit
    max_draft_tokens: int
    round: int


@dataclass(frozen=True, slots=True)
class Detach:
    """A sequence to forget. `finished`: its answer may be remembered, `token_ids` at its end."""

    sequence: int
    finished: bool = False
    token_ids: Sequence[int] = ()


Update = Attach | Committed | Detach


@dataclass(slots=True)
class _Link:
    max_context: int
    max_draft_tokens: int
    sequences: set[VerifierSequence]


class DraftLinks:
    """The links that are up, and their sequences."""

    def __init__(self) -> None:
        self._links: dict[int, _Link] = {}
        self._updates: dict[int, list[Update]] = {}

    def up(self, link: int, max_context: int, max_draft_tokens: int) -> None:
        self._links[link] = _Link(max_context, max_draft_tokens, set())

    def down(self, link: int) -> Iterable[VerifierSequence]:
        """Forget a link; its sequences are free for others."""
        self._updates.pop(link, None)
        lost = self._links.pop(link, None)
        for sequence in lost.sequences if lost else ():
            sequence.link = None
        return lost.sequences if lost else ()

    def load(self, link: int) -> int:
        return len(self._links[link].sequences) if link in self._links else 0

    def attach_new(
        self, sequences: Iterable[VerifierSequence], credit: Callable[[VerifierSequence], int]
    ) -> None:
        """Attach what has no link and wants one, to the link with the fewest sequences.

        credit: how far the drafter may run ahead.
        """
        if not self._links:
            return
        for sequence in sequences:
            if sequence.link is None and self._wants_link(sequence):
                self._attach(sequence, credit(sequence))

    def _wants_link(self, sequence: VerifierSequence) -> bool:
        return (
            sequence.may_attach
            and sequence.request.speculation is not Speculation.OFF
            and sequence.draft_limit > 0
            and time.monotonic_ns() >= sequence.retry_attach_ns
        )

    def _attach(self, sequence: VerifierSequence, credit: int) -> None:
        length = len(sequence.token_ids)
        fitting = [
            (len(link.sequences), number)
            for number, link in self._links.items()
            if not link.max_context or length < link.max_context
        ]
        if not fitting:
            return
        number = min(fitting)[1]
        link = self._links[number]
        link.sequences.add(sequence)
        sequence.link = number
        limit = min(credit, link.max_draft_tokens)
        sequence.mailbox.restart()
        sequence.untold_from = None
        sequence.attached_epoch = sequence.mailbox.epoch
        position = sequence.mailbox.position
        sequence.clock.told(sequence.mailbox.epoch, position, limit, time.monotonic_ns())
        self._tell(
            number,
            Attach(
                sequence=sequence.number,
                epoch=sequence.mailbox.epoch,
                token_ids=list(sequence.token_ids),
                num_prompt_tokens=len(sequence.request.prompt),
                params=sequence.params,
                seed=sequence.request.seed,
                max_draft_tokens=limit,
                round=sequence.round_number,
                trace=sequence.request.trace,
                tenant=sequence.request.tenant,
            ),
        )

    def commit(self, sequence: VerifierSequence, commit: Commit, credit: int) -> None:
        """Tell the drafter; while it rests, only when it is to go on, then all at once."""
        if sequence.link is None:
            return
        limit = min(credit, self._links[sequence.link].max_draft_tokens)
        position = sequence.mailbox.position
        if not limit and not sequence.clock.credit:
            if sequence.untold_from is None:
                sequence.untold_from = commit.base_position
            return
        if sequence.untold_from is not None:
            start, sequence.untold_from = sequence.untold_from, None
            commit = Commit(commit.epoch, start, 0, sequence.token_ids[start:position])
        sequence.clock.told(commit.epoch, position, limit, time.monotonic_ns())
        self._tell(sequence.link, Committed(sequence.number, commit, limit, sequence.round_number))

    def finish(self, sequence: VerifierSequence) -> None:
        """The answer is complete. A drafter may keep it unless the request says otherwise."""
        if sequence.request.keep:
            start = sequence.untold_from
            last = sequence.token_ids[sequence.mailbox.position if start is None else start :]
            self._leave(sequence, Detach(sequence.number, finished=True, token_ids=last))
        else:
            self.detach(sequence)

    def detach(self, sequence: VerifierSequence) -> None:
        """Safe to repeat."""
        self._leave(sequence, Detach(sequence.number))

    def attach_again(self, sequence: VerifierSequence) -> None:
        """Start over after a block that made no sense."""
        self._leave(sequence, Detach(sequence.number))
        sequence.mailbox.restart()

    def lost(self, sequence: VerifierSequence, *, may_help: bool) -> None:
        """The drafter has forgotten the sequence."""
        if sequence.link is not None:
            self._links[sequence.link].sequences.discard(sequence)
        sequence.link = None
        sequence.mailbox.restart()
        sequence.may_attach = may_help
        sequence.retry_attach_ns = time.monotonic_ns() + _RETRY_NS

    def _leave(self, sequence: VerifierSequence, detach: Detach) -> None:
        if sequence.link is None:
            return
        self._links[sequence.link].sequences.discard(sequence)
        self._tell(sequence.link, detach)
        sequence.link = None

    def _tell(self, link: int, update: Update) -> None:
        self._updates.setdefault(link, []).append(update)

    def take_updates(self) -> dict[int, list[Update]]:
        """What has gathered, by link."""
        updates, self._updates = self._updates, {}
        return updates
