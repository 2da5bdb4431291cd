"""The trials of the parameter checks: what is asked, and what must hold of the replies. Pure.

What cannot be known without the model (which token a parameter should choose) is not judged, only
that the parameter matters; where the plain answer tells what must come, that is judged exactly.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from paceline.certify.asker import Reply
from paceline.events import Request
from paceline.params import BANNED, SamplingParams
from paceline.rounds import FinishReason

NUM_TOKENS = 16
# An answer is cut here, and one stops at the token that stands there: inside a draft block.
_CUT = 5
_STOP_AT = 3
_HELD_UNTIL = 10
_NUM_LOGPROBS = 3
# Raw log-probabilities differ by less where numerics are not exact.
LOGPROB_TOLERANCE = 1e-4
# Texts that repeat themselves, for drafts to be there; and others, with much left to chance.
_PROMPTS = (
    ("hello hello hello hello hello hello", 0.0),
    ("one two three four one two three four one two", 0.7),
    ("red, green, red, blue, red, green, red,", 1.2),
    ("Once upon a time there was a", 1.2),
)

Replies = Sequence[Reply]


@dataclass(frozen=True, slots=True)
class Trial:
    """Made from the plain answers to `base_requests`; `judge` says what is wrong with the replies
    to `requests`, or nothing."""

    name: str
    requests: Callable[[Replies], list[Request]]
    judge: Callable[[Replies, Replies], str]


def base_requests(seed: int) -> list[Request]:
    """What every trial varies."""
    return [
        Request(
            prompt=text,
            params=SamplingParams(temperature=temperature, max_tokens=NUM_TOKENS, ignore_eos=True),
            seed=(seed + number) % 2**64,
        )
        for number, (text, temperature) in enumerate(_PROMPTS)
    ]


def unusable(plain: Replies) -> str:
    """Why no trial can be made from these answers to `base_requests`; empty when all can."""
    shortest = min(len(reply.token_ids) for reply in plain)
    if shortest > _STOP_AT:
        return ""
    return f"an answer ended after {shortest} tokens, asked to go on for {NUM_TOKENS}"


def trials(base: Sequence[Request]) -> list[Trial]:
    """One for each parameter; `base` are `base_requests`."""
    return [
        _temperature(base),
        _effect(base, "top_p", 0.3),
        _effect(base, "top_k", 2),
        _effect(base, "min_p", 0.5),
        _effect(base, "repetition_penalty", 1.8),
        _effect(base, "presence_penalty", 2.0, -2.0),
        _effect(base, "frequency_penalty", 2.0, -2.0),
        _logit_bias(base),
        _seed(base),
        _min_tokens(base),
        _max_tokens(base),
        _stop_token_ids(base),
        _stop(base),
        _logprobs(base),
    ]


def _effect(base: Sequence[Request], name: str, *values: float) -> Trial:
    """Every value, and leaving the parameter out, gives other token ids for one prompt at least."""

    def requests(_: Replies) -> list[Request]:
        return [_with(request, **{name: value}) for value in values for request in base]

    def judge(plain: Replies, replies: Replies) -> str:
        groups = {f"another {name}": _ids(plain)}
        for index, value in enumerate(values):
            start = index * len(base)
            groups[f"{name} {value:g}"] = _ids(replies[start : start + len(base)])
        for (one, ids), (other, other_ids) in combinations(groups.items(), 2):
            if ids == other_ids:
                return f"no effect: {other} and {one} give the same token ids for every prompt"
        return ""

    return Trial(name, requests, judge)


def _temperature(base: Sequence[Request]) -> Trial:
    """Two temperatures besides the base's, and at 0 nothing depends on the seed."""
    others = _effect(base, "temperature", 0.7, 1.5)
    greedy = [index for index, request in enumerate(base) if request.params.temperature == 0.0]

    def requests(plain: Replies) -> list[Request]:
        return others.requests(plain) + [_reseeded(base[index]) for index in greedy]

    def judge(plain: Replies, replies: Replies) -> str:
        if _ids(replies[-len(greedy) :]) != _ids([plain[index] for index in greedy]):
            return "at temperature 0 the token ids depend on the seed"
        return others.judge(plain, replies)

    return Trial("temperature", requests, judge)


def _logit_bias(base: Sequence[Request]) -> Trial:
    """The first token of each plain answer is banned."""

    def requests(plain: Replies) -> list[Request]:
        return [
            _with(request, logit_bias={reply.token_ids[0]: BANNED})
            for request, reply in zip(base, plain, strict=True)
        ]

    def judge(plain: Replies, replies: Replies) -> str:
        banned = [reply.token_ids[0] for reply in plain]
        found = [i for i, r in zip(banned, replies, strict=True) if i in r.token_ids]
        return f"token {found[0]} is banned and appears" if found else ""

    return Trial("logit_bias", requests, judge)


def _seed(base: Sequence[Request]) -> Trial:
    """The same seeds give the same answers, others do not."""

    def requests(_: Replies) -> list[Request]:
        return [*base, *map(_reseeded, base)]

    def judge(plain: Replies, replies: Replies) -> str:
        same, others = replies[: len(base)], replies[len(base) :]
        if _ids(same) != _ids(plain):
            return "the same seeds give other token ids the second time"
        return (
            "no effect: other seeds give the same token ids" if _ids(others) == _ids(plain) else ""
        )

    return Trial("seed", requests, judge)


def _min_tokens(base: Sequence[Request]) -> Trial:
    """A stop token that the plain answer soon has is not chosen before its time."""

    def requests(plain: Replies) -> list[Request]:
        return [
            _with(request, stop_token_ids=(reply.token_ids[_STOP_AT],), min_tokens=_HELD_UNTIL)
            for request, reply in zip(base, plain, strict=True)
        ]

    def judge(plain: Replies, replies: Replies) -> str:
        for before, reply in zip(plain, replies, strict=True):
            if before.token_ids[_STOP_AT] in reply.token_ids[:_HELD_UNTIL]:
                return f"a stop token was chosen before {_HELD_UNTIL} tokens"
            if len(reply.token_ids) < _HELD_UNTIL:
                return f"{len(reply.token_ids)} tokens came, min_tokens is {_HELD_UNTIL}"
        return ""

    return Trial("min_tokens", requests, judge)


def _max_tokens(base: Sequence[Request]) -> Trial:
    """The head of the plain answer."""

    def requests(_: Replies) -> list[Request]:
        return [_with(request, max_tokens=_CUT) for request in base]

    def judge(plain: Replies, replies: Replies) -> str:
        ends = [(before.token_ids[:_CUT], FinishReason.LENGTH) for before in plain]
        if ends != [(reply.token_ids, reply.finish_reason) for reply in replies]:
            return f"not the first {_CUT} tokens of the longer answer"
        return ""

    return Trial("max_tokens", requests, judge)


def _stop_token_ids(base: Sequence[Request]) -> Trial:
    """The plain answer up to the token, which is part of it."""

    def requests(plain: Replies) -> list[Request]:
        return [
            _with(request, stop_token_ids=(reply.token_ids[_STOP_AT],))
            for request, reply in zip(base, plain, strict=True)
        ]

    def judge(plain: Replies, replies: Replies) -> str:
        for before, reply in zip(plain, replies, strict=True):
            end = before.token_ids.index(before.token_ids[_STOP_AT]) + 1
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


def _stop(base: Sequence[Request]) -> Trial:
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


def _logprobs(base: Sequence[Request]) -> Trial:
    """One entry per token, with the likeliest ones in order, and the same tokens as without."""

    def requests(_: Replies) -> list[Request]:
        return [_with(request, num_logprobs=_NUM_LOGPROBS) for request in base]

    def judge(plain: Replies, replies: Replies) -> str:
        if _ids(replies) != _ids(plain):
            return "asking for log-probabilities changes the token ids"
        for reply in replies:
            if len(reply.logprobs) != len(reply.token_ids):
                return f"{len(reply.logprobs)} entries for {len(reply.token_ids)} tokens"
            if not any(entry.logprob for entry in reply.logprobs):
                return "every log-probability is 0"
            for token_id, entry in zip(reply.token_ids, reply.logprobs, strict=True):
                top = dict(zip(entry.top_token_ids, entry.top_logprobs, strict=True))
                if len(top) != _NUM_LOGPROBS or list(top.values()) != sorted(
                    top.values(), reverse=True
                ):
                    return f"not the {_NUM_LOGPROBS} likeliest tokens, best first"
                # One that is not among them is no likelier than the last of them.
                bound = top.get(token_id, min(top.values()))
                wrong = abs(entry.logprob - bound) if token_id in top else entry.logprob - bound
                if wrong > LOGPROB_TOLERANCE:
                    return "a token's log-probability contradicts those of the likeliest ones"
        return ""

    return Trial("logprobs", requests, judge)


def _with(request: Request, **params: object) -> Request:
    return replace(request, params=replace(request.params, **params))  # type: ignore[arg-type]


def _reseeded(request: Request) -> Request:
    return replace(request, seed=((request.seed or 0) + 1000) % 2**64)


def _ids(replies: Replies) -> list[list[int]]:
    return [reply.token_ids for reply in replies]
