"""What drafters send, sorted into the mailboxes of the sequences it is for.

Whatever fits nowhere is dropped and counted. Used on the engine's thread; knows no wire.
"""

from collections.abc import Sequence

from verifier_service.links import DraftLinks
from verifier_service.mailbox import Block
from verifier_service.places import Places
from verifier_service.sequence import VerifierSequence


def take_blocks(
    link: int, blocks: Sequence[Block], arrived_ns: int, places: Places, links: DraftLinks
) -> tuple[int, int]:
    """How many of one link's blocks were stale, and how many malformed."""
    stale = malformed = 0
    for block in blocks:
        sequence = _of_link(link, block.sequence, places)
        if sequence is None:
            # Either ended a moment ago, or never this drafter's: of no use in both cases.
            stale += 1
            continue
        receipt = sequence.mailbox.offer(block)
        if receipt is receipt.MALFORMED:
            malformed += 1
            links.attach_again(sequence)
            continue
        # A block that came too late tells as much about the drafter as one in time.
        sequence.clock.heard(
            block,
            sequence.token_ids[block.base_position :],
            len(sequence.mailbox),
            sequence.pacing,
            arrived_ns,
            is_late=receipt is receipt.STALE,
        )
        stale += receipt is receipt.STALE
    return stale, malformed


def take_lost(
    link: int, lost: Sequence[tuple[int, int, bool]], places: Places, links: DraftLinks
) -> None:
    """Let go of (sequence, epoch, whether another attach may help) that a drafter lost."""
    for number, epoch, may_help in lost:
        sequence = _of_link(link, number, places)
        # Epochs go on while the drafter rests and is told of none.
        if sequence is not None and epoch >= sequence.attached_epoch:
            links.lost(sequence, may_help=may_help)


def _of_link(link: int, number: int, places: Places) -> VerifierSequence | None:
    sequence = places.find(number)
    return sequence if sequence is not None and sequence.link == link else None
