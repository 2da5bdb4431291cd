"""Trials of what ends an answer: all judged exactly, by the answer that nothing ended. Pure."""

from collections.abc import Sequence
from dataclasses import replace

from paceline.certify.trial import STOP_AT, Replies, Trial, with_params
from paceline.events import Request
from paceline.rounds import FinishReason

# Where an answer is cut, and until when a stop token is held back.
_CUT = 5
_HELD_UNTIL = 10


def min_tokens(base: Sequence[Request]) -> Trial:
    """A stop token that the plain answer soon has is not chosen before its time."""

    def requests(plain: Replies) -> list[Request]:
        return [
            with_params(request, stop_token_ids=(reply.token_ids[STOP_AT],), min_tokens=_HELD_UNTIL)
            for request, reply in zip(base, plain, strict=True)
        ]

    def judge(plain: Replies, replies: Replies) -> str:
        for before, reply in zip(plain, replies, strict=True):
            if before.token_ids[STOP_AT] in reply.token_ids[:_HELD_UNTIL]:
                return f"a stop token was chosen before {_HELD_UNTIL} tokens"
            if len(reply.token_ids) < _HELD_UNTIL:
                return f"{len(reply.token_ids)} tokens came, min_tokens is {_HELD_UNTIL}"
        return ""

    return Trial("min_tokens", requests, judge)


def max_tokens(base: Sequence[Request]) -> Trial:
    """The head of the plain answer."""

    def requests(_: Replies) -> list[Request]:
        return [with_params(request, max_tokens=_CUT) for request in base]

    def judge(plain: Replies, replies: Replies) -> str:
        ends = [(before.token_ids[:_CUT], FinishReason.LENGTH) for before in plain]
        if ends != [(reply.token_ids, reply.finish_reason) for reply in replies]:
            return f"not the first {_CUT} tokens of the longer answer"
        return ""

    return Trial("max_tokens", requests, judge)


def stop_token_ids(base: Sequence[Request]) -> Trial:
    """The plain answer up to the token, which is part of it."""

    def requests(plain: Replies) -> list[Request]:
        return [
            with_params(request, stop_token_ids=(reply.token_ids[STOP_AT],))
            for request, reply in zip(base, plain, strict=True)
        ]

    def judge(plain: Replies, replies: Replies) -> str:
        for before, reply in zip(plain, replies, strict=True):
            end = before.token_ids.index(before.token_ids[STOP_AT]) + 1
            if (reply.token_ids, reply.finish_reason) != (
                before.token_ids[:end],
                FinishReason.STOP,
            ):
                return "not the longer answer up to and with the stop token"
        return ""

    return Trial("stop_token_ids", requests, judge)


def stop_in(text: str) -> str:
    """A piece of an answer's text to stop at; empty when it has no whole characters there."""
    pieces = (text[start : start + 2] for start in range(2, len(text) - 2))
    return next((piece for piece in pieces if "\ufffd" not in piece), "")


def stop(base: Sequence[Request]) -> Trial:
    """The plain text up to the stop string, which is not part of it."""

    def stops(plain: Replies) -> list[tuple[int, str]]:
        return [(i, stop) for i, reply in enumerate(plain) if (stop := stop_in(reply.text))]

    def requests(plain: Replies) -> list[Request]:
        return [replace(base[index], stop=(stop,)) for index, stop in stops(plain)]

    def judge(plain: Replies, replies: Replies) -> str:
        for (index, stop), reply in zip(stops(plain), replies, strict=True):
            text, token_ids = plain[index].text, plain[index].token_ids
            if (reply.text, reply.stop, reply.finish_reason) != (
                text[: text.index(stop)],
                stop,
                FinishReason.STOP,
            ):
                return "not the longer text up to the stop string"
            if reply.token_ids != token_ids[: len(reply.token_ids)]:
                return "the token ids before the stop string are others"
        return "" if replies else "no answer has text to stop at"

    return Trial("stop", requests, judge)
