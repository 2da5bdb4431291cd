"""What the door adds to the dialect: where each token came from, rounds, totals, metrics. Pure."""

from collections.abc import Mapping
from dataclasses import fields
from enum import IntEnum
from typing import Any

from paceline.events import Delta, Finished, Started
from paceline.rounds import PrefillReport, RoundReport, SpeculationTotals

ROUND_FIELDS = tuple(f.name for f in fields(RoundReport) if f.name != "start_unix_nanos")
PREFILL_FIELDS = tuple(f.name for f in fields(PrefillReport) if f.name != "start_unix_nanos")


def started_report(started: Started) -> dict[str, Any]:
    return {
        "id": started.id,
        "trace_id": started.trace_id,
        "seed": started.seed,
        "model_fingerprint": started.model_fingerprint,
    }


def delta_report(delta: Delta) -> dict[str, Any]:
    """The tokens with their sources, and the round that gave them."""
    report: dict[str, Any] = {
        "token_ids": list(delta.token_ids),
        "sources": [source.name.lower() for source in delta.sources],
        "lengths": list(delta.lengths),
        "round": _values(delta.round, ROUND_FIELDS) if delta.round else None,
    }
    if delta.prefill:
        report["prefill"] = _values(delta.prefill, PREFILL_FIELDS)
    return report


def finished_report(finished: Finished) -> dict[str, Any]:
    return {
        "totals": _totals(finished.totals),
        "time_to_first_token_us": finished.time_to_first_token_us,
        "duration_us": finished.duration_us,
        "digest": finished.digest.hex(),
        "stop": finished.stop or None,
        "num_failovers": finished.num_failovers,
    }


def whole_report(started: Started, deltas: list[Delta], finished: Finished) -> dict[str, Any]:
    """All of an answer's reports in one."""
    reports = [delta_report(delta) for delta in deltas]
    return {
        **started_report(started),
        "token_ids": [token_id for report in reports for token_id in report["token_ids"]],
        "sources": [source for report in reports for source in report["sources"]],
        "rounds": [report["round"] for report in reports if report["round"]],
        **finished_report(finished),
    }


def metrics(finished: Finished, queue_us: int, max_draft_tokens: int) -> dict[str, Any]:
    """The object of vLLM's per-request metrics. `max_draft_tokens` is what a block may have."""
    totals = finished.totals
    generation_us = finished.duration_us - finished.time_to_first_token_us
    num_tokens = finished.num_completion_tokens
    return {
        "speculative_decoding": {
            "mean_acceptance_length": totals.mean_acceptance_length,
            "draft_acceptance_rate": totals.draft_efficiency,
            "acceptance_histogram": acceptance_histogram(totals, max_draft_tokens),
            "num_spec_steps": totals.num_drafted_rounds,
            "num_accepted_draft_tokens": totals.num_accepted,
            "num_draft_tokens": totals.num_drafted,
            "num_spec_tokens": max(max_draft_tokens, len(totals.accepted_by_position)),
        },
        "time_to_first_token_ms": finished.time_to_first_token_us / 1000,
        "generation_time_ms": generation_us / 1000,
        "queue_time_ms": queue_us / 1000,
        "mean_itl_ms": generation_us / 1000 / (num_tokens - 1) if num_tokens > 1 else None,
        "tokens_per_second": (
            num_tokens * 1e6 / finished.duration_us if finished.duration_us else None
        ),
    }


def acceptance_histogram(totals: SpeculationTotals, max_draft_tokens: int) -> list[int]:
    """Rounds with a block by how many of its tokens were accepted: 0, 1, .. max_draft_tokens."""
    # At least one accepted, at least two, ...
    at_least = [totals.num_drafted_rounds, *totals.accepted_by_position]
    at_least += [0] * (max_draft_tokens + 1 - len(at_least))
    following = [*at_least[1:], 0]
    return [count - more for count, more in zip(at_least, following, strict=True)]


def _totals(totals: SpeculationTotals) -> dict[str, Any]:
    counters: Mapping[str, Any] = {f.name: getattr(totals, f.name) for f in fields(totals)}
    return {
        **counters,
        "acceptance_rate": totals.acceptance_rate,
        "draft_efficiency": totals.draft_efficiency,
        "mean_acceptance_length": totals.mean_acceptance_length,
    }


def _values(report: RoundReport | PrefillReport, names: tuple[str, ...]) -> dict[str, Any]:
    # Nanoseconds since 1970 are more than every JSON reader can hold; microseconds are not.
    start_unix_us = report.start_unix_nanos // 1000
    return {name: _value(getattr(report, name)) for name in names} | {
        "start_unix_us": start_unix_us
    }


def _value(value: Any) -> Any:
    """Enums by their lower-case names, null when there is none."""
    if isinstance(value, IntEnum):
        return value.name.lower() if value else None
    return value
