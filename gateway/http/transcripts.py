"""Events of a request's answers -> the objects that a client gets, in chunks or whole. Pure."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gateway.http import reports
from gateway.http.dialects import Dialect
from gateway.http.logprobs import Scores
from gateway.sequences import ServedModel
from paceline.events import Delta, Event, Finished, Request, Started


@dataclass(slots=True)
class _Answer:
    """What is known of one of the answers."""

    scores: Scores
    started: Started | None = None
    finished: Finished | None = None
    deltas: list[Delta] = field(default_factory=list)
    num_tokens: int = 0
    num_cached_tokens: int = 0
    queue_us: int = 0


class Transcript:
    """One request's answers. Takes every event once, in order."""

    def __init__(
        self,
        dialect: Dialect,
        request: Request,
        model: ServedModel,
        token_bytes: Callable[[int], bytes],
        created: int,
    ) -> None:
        self._dialect = dialect
        self._model = model
        self._created = created
        self._id = ""
        self._with_logprobs = request.params.num_logprobs is not None
        self._max_draft_tokens = request.draft.max_draft_tokens or model.max_draft_tokens
        self._answers = [_Answer(Scores(token_bytes)) for _ in range(request.n)]

    def chunk(self, index: int, event: Event) -> dict[str, Any]:
        """The chunk that says this event."""
        answer = self._answers[index]
        self._note(answer, event)
        reason = None
        logprobs = None
        match event:
            case Started():
                part, report = self._dialect.opening(), reports.started_report(event)
            case Delta():
                part, report = self._dialect.piece(event.text), reports.delta_report(event)
                if self._with_logprobs:
                    logprobs = self._dialect.logprobs(answer.scores.read(event))
            case Finished():
                part, report = self._dialect.ending(), reports.finished_report(event)
                reason = event.finish_reason.label
        choice = {
            "index": index,
            **part,
            "logprobs": logprobs,
            "finish_reason": reason,
            "paceline": report,
        }
        return self._object(self._dialect.chunk_object, [choice])

    def usage_chunk(self) -> dict[str, Any]:
        """The last chunk: counts and metrics of all the answers."""
        return {
            **self._object(self._dialect.chunk_object, []),
            "usage": self.usage(),
            "metrics": self._metrics(),
        }

    def keep(self, index: int, event: Event) -> None:
        """Keeps the event for `whole`."""
        answer = self._answers[index]
        self._note(answer, event)
        if isinstance(event, Delta):
            answer.deltas.append(event)

    def whole(self) -> dict[str, Any]:
        """All the answers, once every event has been kept."""
        return {
            **self._object(
                self._dialect.object,
                [self._choice(index, answer) for index, answer in enumerate(self._answers)],
            ),
            "usage": self.usage(),
            "metrics": self._metrics(),
        }

    def usage(self) -> dict[str, Any]:
        """Counts of what was delivered so far; the prompt counts once."""
        prompt = next((a.started.num_prompt_tokens for a in self._answers if a.started), 0)
        completion = sum(answer.num_tokens for answer in self._answers)
        cached = self._answers[0].num_cached_tokens
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": cached},
        }

    def _note(self, answer: _Answer, event: Event) -> None:
        match event:
            case Started():
                answer.started = event
                self._id = self._id or event.id
            case Delta():
                answer.num_tokens += len(event.token_ids)
                if event.prefill:
                    answer.num_cached_tokens = event.prefill.num_cached_tokens
                    answer.queue_us = event.prefill.queue_us
            case Finished():
                answer.finished = event

    def _object(self, name: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": f"{self._dialect.id_prefix}{self._id}",
            "object": name,
            "created": self._created,
            "model": self._model.name,
            # What the same seed needs in order to give the same tokens.
            "system_fingerprint": f"{self._model.model_fingerprint[:16]}-{self._model.numerics}",
            "choices": choices,
        }

    def _choice(self, index: int, answer: _Answer) -> dict[str, Any]:
        assert answer.started and answer.finished
        scored = [token for delta in answer.deltas for token in answer.scores.read(delta)]
        return {
            "index": index,
            **self._dialect.whole("".join(delta.text for delta in answer.deltas)),
            "logprobs": self._dialect.logprobs(scored) if self._with_logprobs else None,
            "finish_reason": answer.finished.finish_reason.label,
            "paceline": reports.whole_report(answer.started, answer.deltas, answer.finished),
        }

    def _metrics(self) -> dict[str, Any] | None:
        """Of a single answer; several have none, as in vLLM."""
        if len(self._answers) > 1 or self._answers[0].finished is None:
            return None
        answer = self._answers[0]
        assert answer.finished
        return reports.metrics(answer.finished, answer.queue_us, self._max_draft_tokens)
