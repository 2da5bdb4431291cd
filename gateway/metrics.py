"""The gateway's numbers: what was delivered to clients, counted from the verifiers' reports.

Counters are plain sums that a scrape reads; only distributions are recorded as they happen. Labels
come from closed sets. Knows no spans and no messages.
"""

import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial

from opentelemetry.context import Context

from gateway.sequences import Cause
from paceline.events import Finished, Request
from paceline.metrics import instruments as names
from paceline.metrics.labels import (
    CAUSES,
    ERRORS,
    FALLBACKS,
    NO_SOURCE,
    NO_WORKLOAD,
    SOURCES,
    bounded,
)
from paceline.metrics.reader import Metrics, Readings
from paceline.rounds import PrefillReport, RoundReport, SpeculationTotals

# The speed-up is estimated over so many of the answers that ended last.
RECENT_ANSWERS = 64

# Label values, in the order of the instrument's labels.
Key = tuple[str, ...]


@dataclass(slots=True)
class RoundSums:
    """Sums over the rounds of one model, workload and source."""

    totals: SpeculationTotals = field(default_factory=SpeculationTotals)
    num_output: int = 0
    decode_us: int = 0
    plain_us: int = 0


@dataclass(slots=True)
class _Sums:
    rounds: dict[Key, RoundSums] = field(default_factory=dict)
    fallbacks: dict[Key, int] = field(default_factory=dict)
    requests: dict[Key, int] = field(default_factory=dict)
    failovers: dict[Key, int] = field(default_factory=dict)
    prompt_tokens: dict[Key, int] = field(default_factory=dict)
    cached_tokens: dict[Key, int] = field(default_factory=dict)
    # (decode, plain) of the answers that ended last, in microseconds.
    recent: dict[Key, deque[tuple[int, int]]] = field(default_factory=dict)


class GatewayMetrics:
    """All answers' numbers. `served` names the models a request can be for."""

    def __init__(
        self,
        metrics: Metrics,
        *,
        workloads: Sequence[str],
        served: Callable[[], Collection[str]],
        num_active: Callable[[], int],
        num_queued: Callable[[], int],
        num_ready: Callable[[], int],
    ) -> None:
        self._workloads = workloads
        self._served = served
        self.sums = sums = _Sums()
        self.request_duration = metrics.histogram(names.REQUEST_DURATION)
        self.time_to_first_token = metrics.histogram(names.TIME_TO_FIRST_TOKEN)
        self.time_per_output_token = metrics.histogram(names.TIME_PER_OUTPUT_TOKEN)
        self.inter_token_latency = metrics.histogram(names.INTER_TOKEN_LATENCY)
        self.round_accepted = metrics.histogram(names.ROUND_ACCEPTED)
        self.round_duration = metrics.histogram(names.ROUND_DURATION)
        self.answer_loss = metrics.histogram(names.ANSWER_LOSS)
        metrics.observe(names.REQUESTS_ACTIVE, num_active)
        metrics.observe(names.REQUESTS_QUEUED, num_queued)
        metrics.observe(names.VERIFIERS_READY, num_ready)
        metrics.observe_each(names.SPEEDUP, self._speedups)
        metrics.observe_each(names.ACCEPTED_BY_POSITION, self._by_position)
        # Copies: a scrape reads on a thread of its own.
        metrics.observe_each(names.PROMPT_TOKENS, sums.prompt_tokens.copy)
        metrics.observe_each(names.CACHED_TOKENS, sums.cached_tokens.copy)
        metrics.observe_each(names.REQUESTS, sums.requests.copy)
        metrics.observe_each(names.FALLBACK_ROUNDS, sums.fallbacks.copy)
        metrics.observe_each(names.FAILOVERS, sums.failovers.copy)
        of_rounds: dict[names.Instrument, Callable[[RoundSums], float]] = {
            names.ROUNDS: lambda s: s.totals.num_rounds,
            names.DRAFT_TOKENS: lambda s: s.totals.num_drafted,
            names.TESTED_TOKENS: lambda s: s.totals.num_tested,
            names.ACCEPTED_TOKENS: lambda s: s.totals.num_accepted,
            names.OUTPUT_TOKENS: lambda s: s.num_output,
            names.DECODE_TIME: lambda s: s.decode_us / 1e6,
            names.PLAIN_TIME: lambda s: s.plain_us / 1e6,
        }
        for instrument, value_of in of_rounds.items():
            metrics.observe_each(instrument, partial(self._of_rounds, value_of))

    def begin(
        self, request: Request, model: str, start_unix_nanos: int, context: Context | None
    ) -> "AnswerMeter":
        """The meter of one answer. `context` holds its span when it is sampled: exemplars name it.

        A model or workload that is not known by name is counted as `other`.
        """
        name = bounded(model, self._served())
        for cause in CAUSES:
            self.sums.failovers.setdefault((name, cause), 0)
        return AnswerMeter(
            self,
            model=name,
            workload=bounded(request.workload or NO_WORKLOAD, (NO_WORKLOAD, *self._workloads)),
            # From the arrival on, by the clock that does not jump.
            started_s=time.monotonic() - max(time.time_ns() - start_unix_nanos, 0) / 1e9,
            context=context,
        )

    def _of_rounds(self, value_of: Callable[[RoundSums], float]) -> Readings:
        return {key: value_of(sums) for key, sums in self.sums.rounds.copy().items()}

    def _by_position(self) -> Readings:
        pooled: dict[tuple[str, str], SpeculationTotals] = {}
        for (model, workload, _), sums in self.sums.rounds.copy().items():
            pooled.setdefault((model, workload), SpeculationTotals()).add(sums.totals)
        return {
            (model, workload, str(position)): count
            for (model, workload), totals in pooled.items()
            for position, count in enumerate(totals.accepted_by_position)
        }

    def _speedups(self) -> Readings:
        estimates: dict[Key, float] = {}
        for key, answers in self.sums.recent.copy().items():
            times = list(answers)
            if decode_us := sum(decode for decode, _ in times):
                estimates[key] = sum(plain for _, plain in times) / decode_us
        return estimates


class AnswerMeter:
    """Counts one answer. Its calls come in order: rounds, `finish`, `end`."""

    def __init__(
        self,
        gateway: GatewayMetrics,
        *,
        model: str,
        workload: str,
        started_s: float,
        context: Context | None,
    ) -> None:
        self._gateway = gateway
        self._model = model
        self._workload = workload
        self._context = context
        self._started_s = started_s
        self._delivered_s = 0.0
        self._num_prefills = 0
        # The next round's step also reads the prompt: the ledger leaves it out.
        self._reads_prompt = True
        self._ledger_us = self._decode_us = self._plain_us = 0
        self._finished: Finished | None = None
        self._gen_ai = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "paceline",
            "gen_ai.request.model": model,
        }

    def record_prefill(self, report: PrefillReport) -> None:
        self._num_prefills += 1
        if self._num_prefills > 1:
            return
        sums = self._gateway.sums
        for table, count in (
            (sums.prompt_tokens, report.num_prompt_tokens),
            (sums.cached_tokens, report.num_cached_tokens),
        ):
            table[(self._model,)] = table.get((self._model,), 0) + count

    def record_round(self, report: RoundReport) -> None:
        gateway, context = self._gateway, self._context
        now_s = time.monotonic()
        if self._delivered_s:
            gap_s = now_s - self._delivered_s
            gateway.inter_token_latency.record(gap_s, {"model": self._model}, context)
        else:
            first_s = now_s - self._started_s
            gateway.time_to_first_token.record(first_s, self._gen_ai, context)
        self._delivered_s = now_s
        self._add_to_sums(report)
        record = gateway.round_duration.record
        if report.num_drafted:
            accepted = report.num_accepted
            gateway.round_accepted.record(accepted, {"workload": self._workload}, context)
            record(report.draft_us / 1e6, {"phase": "draft"}, context)
        record(report.wait_us / 1e6, {"phase": "wait"}, context)
        record(report.verify_us / 1e6, {"phase": "verify"}, context)

    def go_on(self, cause: Cause) -> None:
        """At another verifier, whose ledger begins anew."""
        self._gateway.sums.failovers[self._model, cause.value] += 1
        self._ledger_us, self._reads_prompt = 0, True

    def _add_to_sums(self, report: RoundReport) -> None:
        sums = self._gateway.sums
        name = report.source.name.lower()
        source = bounded(name, SOURCES) if report.num_drafted else NO_SOURCE
        key = (self._model, self._workload, source)
        entry = sums.rounds.setdefault(key, RoundSums())
        entry.totals.add_round(report)
        entry.num_output += report.num_output
        lost_us, self._ledger_us = report.ledger_us - self._ledger_us, report.ledger_us
        if not self._reads_prompt:
            decode_us = report.wait_us + report.verify_us
            plain_us = max(decode_us - lost_us, 0)
            entry.decode_us += decode_us
            entry.plain_us += plain_us
            self._decode_us += decode_us
            self._plain_us += plain_us
        self._reads_prompt = False
        for reason in FALLBACKS:
            is_this = reason == report.plain_reason.name.lower()
            fallback = (self._model, reason)
            sums.fallbacks[fallback] = sums.fallbacks.get(fallback, 0) + is_this

    def finish(self, finished: Finished) -> None:
        self._finished = finished

    def end(self, error_type: str) -> None:
        """An empty `error_type` is success."""
        gateway, context, finished = self._gateway, self._context, self._finished
        error = bounded(error_type, ERRORS) if error_type else ""
        attributes = {**self._gen_ai, "error.type": error} if error else self._gen_ai
        duration_s = time.monotonic() - self._started_s
        if finished and not error:
            duration_s = finished.duration_us / 1e6
            first_s = finished.time_to_first_token_us / 1e6
            num_gaps = finished.num_completion_tokens - 1
            if num_gaps > 0:
                per_token_s = (duration_s - first_s) / num_gaps
                gateway.time_per_output_token.record(per_token_s, self._gen_ai, context)
            loss_s = max(self._ledger_us, 0) / 1e6
            gateway.answer_loss.record(loss_s, {"workload": self._workload}, context)
        gateway.request_duration.record(duration_s, attributes, context)
        outcome = error.lower() or (finished.finish_reason.label if finished else "")
        key = (self._model, self._workload, outcome)
        gateway.sums.requests[key] = gateway.sums.requests.get(key, 0) + 1
        if self._decode_us:
            recent = gateway.sums.recent.setdefault((self._model,), deque(maxlen=RECENT_ANSWERS))
            recent.append((self._decode_us, self._plain_us))
