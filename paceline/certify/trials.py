"""The trials of all parameters, in the order they are reported."""

from collections.abc import Sequence

from paceline.certify.effects import effect, logit_bias, logprobs, seed, temperature
from paceline.certify.endings import max_tokens, min_tokens, stop, stop_token_ids
from paceline.certify.trial import Trial
from paceline.events import Request


def trials(base: Sequence[Request]) -> list[Trial]:
    """One for each parameter; `base` are `base_requests`."""
    return [
        temperature(base),
        effect(base, "top_p", 0.3),
        effect(base, "top_k", 2),
        effect(base, "min_p", 0.5),
        effect(base, "repetition_penalty", 1.8),
        effect(base, "presence_penalty", 2.0, -2.0),
        effect(base, "frequency_penalty", 2.0, -2.0),
        logit_bias(base),
        seed(base),
        min_tokens(base),
        max_tokens(base),
        stop_token_ids(base),
        stop(base),
        logprobs(base),
    ]
