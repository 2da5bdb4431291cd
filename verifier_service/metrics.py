"""The verifier's numbers: the queue, the steps, and what became of each drafter's blocks.

Gauges and counters are read from the engine and the pool when Prometheus asks. Knows no span.
"""

from collections.abc import Callable, Sequence
from functools import partial

from paceline.metrics import instruments as names
from paceline.metrics.reader import Metrics, Readings
from paceline.rounds import PrefillReport
from verifier_service.drafters import DrafterLink, DrafterPool
from verifier_service.engine import Engine, Status
from verifier_service.round import StepFacts


class VerifierMetrics:
    """Exposes an engine and its drafters; `record_step` adds what only happens once."""

    def __init__(self, metrics: Metrics, engine: Engine, pool: DrafterPool) -> None:
        self._queue_duration = metrics.histogram(names.QUEUE_DURATION)
        self._prefill_duration = metrics.histogram(names.PREFILL_DURATION)
        self._step_duration = metrics.histogram(names.STEP_DURATION)
        self._step_sequences = metrics.histogram(names.STEP_SEQUENCES)
        self._step_rows = metrics.histogram(names.STEP_ROWS)
        self._prompt_tokens = self._cached_tokens = 0
        of_engine: dict[names.Instrument, Callable[[Status], float]] = {
            names.RUNNING: lambda s: s.num_running,
            names.WAITING: lambda s: s.num_waiting,
            names.KV_USAGE: lambda s: s.kv_blocks_used / max(s.kv_blocks_total, 1),
            names.STEPS: lambda s: s.num_steps,
            names.VERIFIED_ROUNDS: lambda s: s.totals.num_rounds,
            names.VERIFIED_DRAFT_TOKENS: lambda s: s.totals.num_drafted,
            names.VERIFIED_ACCEPTED_TOKENS: lambda s: s.totals.num_accepted,
            names.PREFIX_QUERIES: lambda _: self._prompt_tokens,
            names.PREFIX_HITS: lambda _: self._cached_tokens,
        }
        for instrument, value_of in of_engine.items():
            metrics.observe(instrument, partial(_of_engine, engine, value_of))
        of_link: dict[names.Instrument, Callable[[DrafterLink], float]] = {
            names.LINK_READY: lambda link: link.state == "ready",
            names.LINK_SEQUENCES: lambda link: engine.sequences_on(link.number),
            names.LINK_BLOCKS: lambda link: link.num_blocks,
            names.LINK_STALE: lambda link: link.num_stale,
            names.LINK_MALFORMED: lambda link: link.num_malformed,
            names.LINK_CONNECTS: lambda link: link.num_connects,
        }
        for instrument, count_of in of_link.items():
            metrics.observe_each(instrument, partial(_of_links, pool, count_of))

    def record_step(self, facts: StepFacts, prefills: Sequence[PrefillReport]) -> None:
        """`prefills` are those of the sequences whose first round this step was."""
        self._step_duration.record(facts.time_us / 1e6)
        self._step_sequences.record(facts.num_sequences)
        self._step_rows.record(facts.num_rows)
        for report in prefills:
            self._queue_duration.record(report.queue_us / 1e6)
            self._prefill_duration.record(report.prefill_us / 1e6)
            self._prompt_tokens += report.num_prompt_tokens
            self._cached_tokens += report.num_cached_tokens


def _of_engine(engine: Engine, value_of: Callable[[Status], float]) -> float:
    return value_of(engine.status())


def _of_links(pool: DrafterPool, count_of: Callable[[DrafterLink], float]) -> Readings:
    return {(link.address,): float(count_of(link)) for link in list(pool.links)}
