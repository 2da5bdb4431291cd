"""One answer as it arrives, and what is reported of it afterwards. Knows no terminal."""

from typing import Any

from paceline.events import Event, Finished, Started, TokenLogprobs
from paceline.rounds import RoundReport


class Answer:
    """Collects the events of one answer."""

    def __init__(self) -> None:
        self.started: Started | None = None
        self.finished: Finished | None = None
        self.texts: list[str] = []
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprobs] = []
        self.rounds: list[RoundReport] = []

    def add(self, event: Event) -> str:
        """Takes an event; returns the text it adds."""
        match event:
            case Started():
                self.started = event
                return ""
            case Finished():
                self.finished = event
                return ""
            case _:
                self.texts.append(event.text)
                self.token_ids += event.token_ids
                self.logprobs += event.logprobs
                if event.round is not None:
                    self.rounds.append(event.round)
                return event.text

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def tokens_per_s(self) -> float:
        """Delivered tokens over the whole time from request to end, prefill included."""
        if self.finished is None or self.finished.duration_us == 0:
            return 0.0
        return self.finished.num_completion_tokens / self.finished.duration_us * 1e6

    def as_json(self) -> dict[str, Any]:
        """The document of `paceline generate --json`. The answer is complete.

        It holds log-probabilities if they were asked for.
        """
        started, finished = self.started, self.finished
        assert started is not None and finished is not None
        document = {
            "id": started.id,
            "trace_id": started.trace_id,
            "text": self.text,
            "token_ids": self.token_ids,
            "finish_reason": finished.finish_reason.label,
            "seed": started.seed,
            "usage": {
                "prompt_tokens": finished.num_prompt_tokens,
                "completion_tokens": finished.num_completion_tokens,
            },
            "speculation": speculation_json(finished),
            "timing": {
                "ttft_ms": finished.time_to_first_token_us / 1000,
                "tokens_per_s": self.tokens_per_s,
            },
        }
        if self.logprobs:
            document["logprobs"] = [
                {
                    "token_id": token_id,
                    "logprob": token.logprob,
                    "top": list(zip(token.top_token_ids, token.top_logprobs, strict=True)),
                }
                for token_id, token in zip(self.token_ids, self.logprobs, strict=True)
            ]
        return document


def speculation_json(finished: Finished) -> dict[str, float]:
    totals = finished.totals
    return {
        "rounds": totals.num_rounds,
        "drafted": totals.num_drafted,
        "tested": totals.num_tested,
        "accepted": totals.num_accepted,
        "acceptance_rate": totals.acceptance_rate,
        "draft_efficiency": totals.draft_efficiency,
        "mean_acceptance_length": totals.mean_acceptance_length,
    }
