"""The drafter's numbers: how busy it is, and how much of its work was for nothing."""

from drafter_service.engine import DraftEngine
from paceline.metrics import instruments as names
from paceline.metrics.reader import Metrics


def observe(metrics: Metrics, engine: DraftEngine) -> None:
    """Exposes the engine's counters, and records the time of each step from now on."""
    counters = engine.counters
    metrics.observe(names.DRAFTER_SEQUENCES, lambda: engine.num_sequences)
    metrics.observe(names.DRAFTER_CAPACITY, lambda: engine.max_sequences)
    metrics.observe(names.DRAFTER_STEPS, lambda: counters.num_steps)
    metrics.observe(names.DRAFTER_BUSY, lambda: counters.busy_nanos / 1e9)
    metrics.observe(names.DRAFTER_TOKENS, lambda: counters.num_tokens)
    metrics.observe(names.DRAFTER_WASTED_TOKENS, lambda: counters.num_wasted)
    metrics.observe(names.DRAFTER_WASTED, lambda: counters.wasted_nanos / 1e9)
    duration = metrics.histogram(names.DRAFTER_STEP_DURATION)
    counters.on_step = lambda seconds: duration.record(seconds)
