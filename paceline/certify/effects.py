"""Trials of parameters that change which tokens come, and of log-probabilities. Pure."""

from collections.abc import Sequence
from itertools import combinations

from paceline.certify.trial import Replies, Trial, ids_of, reseeded, with_params
from paceline.events import Request
from paceline.params import BANNED

_NUM_LOGPROBS = 3
# Raw log-probabilities differ by less where numerics are not exact.
LOGPROB_TOLERANCE = 1e-4


def effect(base: Sequence[Request], name: str, *values: float) -> Trial:
    """Every value, and leaving the parameter out, gives other token ids for one prompt at least."""

    def requests(_: Replies) -> list[Request]:
        return [with_params(request, **{name: value}) for value in values for request in base]

    def judge(plain: Replies, replies: Replies) -> str:
        groups = {f"another {name}": ids_of(plain)}
        for index, value in enumerate(values):
            start = index * len(base)
            groups[f"{name} {value:g}"] = ids_of(replies[start : start + len(base)])
        for (one, ids), (other, other_ids) in combinations(groups.items(), 2):
            if ids == other_ids:
                return f"no effect: {other} and {one} give the same token ids for every prompt"
        return ""

    return Trial(name, requests, judge)


def temperature(base: Sequence[Request]) -> Trial:
    """Two temperatures besides the base's, and at 0 nothing depends on the seed."""
    others = effect(base, "temperature", 0.7, 1.5)
    greedy = [index for index, request in enumerate(base) if request.params.temperature == 0.0]

    def requests(plain: Replies) -> list[Request]:
        return others.requests(plain) + [reseeded(base[index]) for index in greedy]

    def judge(plain: Replies, replies: Replies) -> str:
        if ids_of(replies[-len(greedy) :]) != ids_of([plain[index] for index in greedy]):
            return "at temperature 0 the token ids depend on the seed"
        return others.judge(plain, replies)

    return Trial("temperature", requests, judge)


def logit_bias(base: Sequence[Request]) -> Trial:
    """The first token of each plain answer is banned."""

    def requests(plain: Replies) -> list[Request]:
        return [
            with_params(request, logit_bias={reply.token_ids[0]: BANNED})
            for request, reply in zip(base, plain, strict=True)
        ]

    def judge(plain: Replies, replies: Replies) -> str:
        banned = [reply.token_ids[0] for reply in plain]
        found = [i for i, r in zip(banned, replies, strict=True) if i in r.token_ids]
        return f"token {found[0]} is banned and appears" if found else ""

    return Trial("logit_bias", requests, judge)


def seed(base: Sequence[Request]) -> Trial:
    """The same seeds give the same answers, others do not."""

    def requests(_: Replies) -> list[Request]:
        return [*base, *map(reseeded, base)]

    def judge(plain: Replies, replies: Replies) -> str:
        same, others = replies[: len(base)], replies[len(base) :]
        if ids_of(same) != ids_of(plain):
            return "the same seeds give other token ids the second time"
        if ids_of(others) == ids_of(plain):
            return "no effect: other seeds give the same token ids"
        return ""

    return Trial("seed", requests, judge)


def logprobs(base: Sequence[Request]) -> Trial:
    """One entry per token, with the likeliest ones in order, and the same tokens as without."""

    def requests(_: Replies) -> list[Request]:
        return [with_params(request, num_logprobs=_NUM_LOGPROBS) for request in base]

    def judge(plain: Replies, replies: Replies) -> str:
        if ids_of(replies) != ids_of(plain):
            return "asking for log-probabilities changes the token ids"
        for reply in replies:
            if len(reply.logprobs) != len(reply.token_ids):
                return f"{len(reply.logprobs)} entries for {len(reply.token_ids)} tokens"
            if not any(entry.logprob for entry in reply.logprobs):
                return "every log-probability is 0"
            for token_id, entry in zip(reply.token_ids, reply.logprobs, strict=True):
                top = dict(zip(entry.top_token_ids, entry.top_logprobs, strict=False))
                ordered = sorted(top.values(), reverse=True)
                if len(top) != _NUM_LOGPROBS or list(entry.top_logprobs) != ordered:
                    return f"not the {_NUM_LOGPROBS} likeliest tokens, best first"
                # One that is not among them is no likelier than the last of them.
                bound = top.get(token_id, min(top.values()))
                wrong = abs(entry.logprob - bound) if token_id in top else entry.logprob - bound
                if wrong > LOGPROB_TOLERANCE:
                    return "a token's log-probability contradicts those of the likeliest ones"
        return ""

    return Trial("logprobs", requests, judge)
