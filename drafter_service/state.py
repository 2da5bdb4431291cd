"""One sequence as the drafter sees it: a state machine without models, messages or clocks.

Events come in, effects go out: `open_state` and `commit` say what became of the tokens, `extend`
takes what was drafted, `take_block` hands out what may be sent. The rules are those of
protos/paceline/v1/drafter.proto.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from drafter_service.updates import (
    Attach,
    Block,
    Commit,
    Distribution,
    Limits,
    Lost,
    LostReason,
)
from paceline.params import SamplingMode, SamplingParams
from paceline.rounds import TokenSource


@dataclass(slots=True, eq=False)
class DraftState:
    """Committed tokens, our draft beyond them, and how much more of it is wanted.

    Equality and hash are identity: drafters key what they keep per sequence on the state.
    """

    sequence: int
    params: SamplingParams
    seed: int
    vocab_size: int
    num_prompt_tokens: int
    max_length: int
    max_context: int
    max_draft_tokens: int
    stop_token_ids: frozenset[int]
    # All that is committed, then our draft.
    token_ids: list[int]
    num_committed: int
    epoch: int
    round: int
    credit: int
    # Leading draft tokens that the verifier was sent under this epoch.
    num_sent: int = 0
    # The verifier committed other tokens than we had sent before it saw ours. It will raise the
    # epoch when it sees them, so until its next word nothing of this epoch is worth sending.
    is_muted: bool = False
    # The drafter had nothing to add, and the verifier was told so.
    is_resting: bool = False
    has_told: bool = False
    # Where the present run of drafting began: the base of draws in REJECTION.
    run_start: int = 0
    tenant: str = ""
    # The answer is complete and may be remembered; `token_ids` is all of it, and no draft.
    is_finished: bool = False

    @property
    def num_drafted(self) -> int:
        return len(self.token_ids) - self.num_committed

    @property
    def num_wanted(self) -> int:
        """Draft tokens to be made now. 0 while resting, out of credit or after a stop token."""
        if self.is_resting or self._has_ended():
            return 0
        room = min(self.credit, self.max_length - self.num_committed)
        return max(room - self.num_drafted, 0)

    def commit(self, event: Commit) -> int | Lost:
        """Applies a commit: how many leading tokens of `token_ids` are the same as before."""
        if (
            event.base_position != self.num_committed
            or event.epoch < self.epoch
            or event.num_agreed > self.num_sent
        ):
            return Lost(self.sequence, event.epoch, LostReason.OUT_OF_STEP)
        agreed_end = self.num_committed + event.num_agreed
        end = agreed_end + len(event.token_ids)
        if end > self.max_context:
            return Lost(self.sequence, event.epoch, LostReason.CONTEXT)

        sent_end = self.num_committed + self.num_sent
        length = len(self.token_ids)
        kept = agreed_end + _common(self.token_ids[agreed_end:end], event.token_ids)
        if kept < end:
            self.token_ids[kept:] = event.token_ids[kept - agreed_end :]
        else:
            kept = length
        is_new_epoch = event.epoch > self.epoch
        if is_new_epoch:
            self.run_start = end
            if self.params.mode is SamplingMode.REJECTION:
                # What was drawn under the old epoch may have met a coin: none of it goes out again.
                del self.token_ids[end:]
                kept = min(kept, end)
        self.num_committed = end
        # What stands of our draft goes out again under a new epoch: the verifier dropped the old.
        self.num_sent = 0 if is_new_epoch or kept < end else max(sent_end - end, 0)
        self.is_muted = not is_new_epoch and kept < min(end, sent_end)
        self.is_resting = self.has_told = False
        self.epoch, self.round = event.epoch, event.round
        self.credit = min(event.max_draft_tokens, self.max_draft_tokens)
        return kept

    def finish(self, token_ids: Sequence[int]) -> None:
        """The answer is complete: these tokens after the last commit, and no more."""
        self.token_ids[self.num_committed :] = token_ids
        self.num_committed = len(self.token_ids)
        self.is_finished = True

    def extend(self, token_ids: Sequence[int]) -> None:
        """Takes newly drafted tokens, as many as are wanted, up to the first stop token."""
        for token_id in token_ids[: self.num_wanted]:
            self.token_ids.append(token_id)
            if token_id in self.stop_token_ids:
                return

    def rest(self) -> None:
        """Asks for no more until the next commit."""
        self.is_resting = True

    @property
    def num_sendable(self) -> int:
        if self.is_muted:
            return 0
        return max(min(self.num_drafted, self.credit) - self.num_sent, 0)

    def take_block(
        self,
        source: TokenSource,
        draft_us: int,
        distributions: Callable[[int, int], Sequence[Distribution]] = lambda start, end: (),
    ) -> Block | None:
        """The draft tokens that were not sent yet and may be: they count as sent from here on.

        An empty block, once, when there is nothing to propose until the next commit.
        `distributions` gives what the tokens of a range of positions were sampled from.
        """
        if not self.num_sendable:
            if not self.is_resting or self.num_drafted or self.is_muted or self.has_told:
                return None
            self.has_told = True
        start = self.num_committed + self.num_sent
        end = start + self.num_sendable
        self.num_sent += self.num_sendable
        return Block(
            sequence=self.sequence,
            epoch=self.epoch,
            base_position=start,
            token_ids=self.token_ids[start:end],
            round=self.round,
            source=source,
            draft_us=draft_us,
            distributions=distributions(start, end),
        )

    def _has_ended(self) -> bool:
        is_output = len(self.token_ids) > self.num_prompt_tokens
        return is_output and self.token_ids[-1] in self.stop_token_ids


def open_state(event: Attach, limits: Limits) -> DraftState | Lost:
    """The state of a newly attached sequence."""
    if len(event.token_ids) > limits.max_context:
        return Lost(event.sequence, event.epoch, LostReason.CONTEXT)
    eos_token_ids = frozenset[int]() if event.params.ignore_eos else limits.eos_token_ids
    return DraftState(
        sequence=event.sequence,
        params=event.params,
        seed=event.seed,
        vocab_size=limits.vocab_size,
        num_prompt_tokens=event.num_prompt_tokens,
        max_length=min(
            limits.max_length,
            limits.max_context,
            event.num_prompt_tokens + event.params.max_tokens,
        ),
        max_context=limits.max_context,
        max_draft_tokens=limits.max_draft_tokens,
        stop_token_ids=eos_token_ids | frozenset(event.params.stop_token_ids),
        token_ids=list(event.token_ids),
        num_committed=len(event.token_ids),
        epoch=event.epoch,
        round=event.round,
        credit=min(event.max_draft_tokens, limits.max_draft_tokens),
        run_start=len(event.token_ids),
        tenant=event.tenant,
    )


def _common(ours: Sequence[int], theirs: Sequence[int]) -> int:
    """Length of the common prefix."""
    count = 0
    for our_id, their_id in zip(ours, theirs, strict=False):
        if our_id != their_id:
            break
        count += 1
    return count
