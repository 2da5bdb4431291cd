"""Waiting for drafts that are on their way, as long as pacing finds it worth its time.

Sits between the choice of a step's turns and its forward. Knows no price and no message.
"""

import time
from collections.abc import Callable

from verifier_service.inbox import Inbox
from verifier_service.rule import Wait
from verifier_service.sequence import VerifierSequence
from verifier_service.turns import Step


def sit_out(step: Step, wait: Wait, inbox: Inbox, take_turns: Callable[[], Step]) -> Step:
    """The step after the wait: other turns, if something came. Runs what the inbox brings."""
    if wait.wait_us <= 0:
        return step
    start_ns = time.monotonic_ns()
    deadline_ns = start_ns + int(wait.wait_us * 1e3)
    wanted = {
        turn.sequence: count
        for turn, count in zip(step.turns, wait.num_wanted, strict=True)
        if count > len(turn.sequence.mailbox)
    }
    while (left_ns := deadline_ns - time.monotonic_ns()) > 0:
        inbox.read(block=True, timeout_s=left_ns / 1e9)
        if not any(_is_short(sequence, count) for sequence, count in wanted.items()):
            break
    now_ns = time.monotonic_ns()
    for sequence in wanted:
        if _is_short(sequence, 1):
            sequence.pacing.arrival.missed(sequence.clock.since_us(0, now_ns))
    step = take_turns()
    for turn in step.turns:
        turn.wait_us = (now_ns - start_ns) / 1e3
        turn.waited = turn.sequence in wanted
    return step


def _is_short(sequence: VerifierSequence, num_wanted: int) -> bool:
    """More draft tokens may still come than these."""
    mailbox = sequence.mailbox
    if sequence.link is None or mailbox.is_empty_handed:
        return False
    return len(mailbox) < min(num_wanted, sequence.clock.credit)
