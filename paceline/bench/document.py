"""A result as JSON. Its fields are described in docs/bench.md; no prompt and no answer is in it."""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from paceline.bench import verdict
from paceline.bench.result import ArmSummary, Economics, LoadRow, Result, Row
from paceline.bench.sample import Sample
from paceline.bench.statistics import Ratio

SCHEMA = "paceline.bench/1"
_NAMES = ("p50", "p95", "p99")


@dataclass(frozen=True, slots=True)
class Circumstances:
    """How it was measured: labels and what stands beside them, for people and programs."""

    began: str
    command: str
    machine: str
    cores: int
    python: str
    paceline: str
    target: str
    model: str
    numerics: str
    prompts: str
    num_prompts: int
    temperatures: tuple[float, ...]
    loads: tuple[str, ...]
    pairs: int
    max_tokens: int
    seed: int
    warm_up: int
    speculation: str
    draft_tokens: int


def document(result: Result, samples: Sequence[Sample], how: Circumstances) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "circumstances": asdict(how),
        "identical": {"pairs": result.num_pairs, "identical": result.num_identical},
        "errors": [
            {"arm": arm.value, "error": error, "requests": count}
            for (arm, error), count in sorted(result.errors.items())
        ],
        "verdict": [verdict.summary(result, t) for t in result.temperatures],
        "rows": [_row(row) for row in result.rows],
        "loads": [_load(row) for row in result.loads],
        "answers": [_answer(sample) for sample in samples],
    }


def _row(row: Row) -> dict[str, Any]:
    totals = row.totals
    return {
        "category": row.category,
        "temperature": row.temperature,
        "prompts": row.num_prompts,
        "pairs": len(row.pairs),
        "identical": row.num_identical,
        "speed_up": _ratio(row.speed_up),
        "finding": verdict.finding(row.speed_up).value,
        "verdict": verdict.category_verdict(row),
        "plain": _arm(row.plain),
        "speculative": _arm(row.speculative),
        "rounds": totals.num_rounds,
        "drafted_rounds": totals.num_drafted_rounds,
        "drafted": totals.num_drafted,
        "tested": totals.num_tested,
        "accepted": totals.num_accepted,
        "acceptance_rate": totals.acceptance_rate,
        "draft_efficiency": totals.draft_efficiency,
        "mean_acceptance_length": totals.mean_acceptance_length,
        "tested_by_position": list(row.tested_by_position),
        "accepted_by_position": list(row.accepted_by_position),
        "tokens_per_round": {str(count): rounds for count, rounds in row.tokens_per_round.items()},
        "tokens_by_source": {source.name.lower(): n for source, n in row.sources.items()},
        "economics": _economics(row.economics),
    }


def _ratio(ratio: Ratio | None) -> dict[str, float | None] | None:
    return None if ratio is None else asdict(ratio)


def _arm(arm: ArmSummary) -> dict[str, Any]:
    return {
        "answers": arm.num_answers,
        "tokens": arm.num_tokens,
        "tokens_per_s": arm.tokens_per_s,
        "ttft_ms": _quantiles(arm.ttft_ms),
        "time_per_output_token_ms": _quantiles(arm.time_per_output_token_ms),
        "gap_ms": _quantiles(arm.gap_ms),
        "latency_ms": _quantiles(arm.latency_ms),
    }


def _quantiles(values: tuple[float, ...]) -> dict[str, float] | None:
    return dict(zip(_NAMES, values, strict=True)) if values else None


def _economics(found: Economics | None) -> dict[str, Any] | None:
    if found is None:
        return None
    best = found.best_length
    return {
        "plain_step_ms": found.plain_step_ms,
        "drafted_round_steps": found.drafted_round,
        "mean_draft_length": found.mean_draft_length,
        "break_even_acceptance_rate": found.break_even,
        "predicted_speed_up": found.predicted,
        "drafted_rounds_speed_up": found.measured_rounds,
        "estimated_best_draft_tokens": None if best is None else best.num_draft_tokens,
        "estimated_best_gain": None if best is None else best.gain,
    }


def _load(row: LoadRow) -> dict[str, Any]:
    return {
        "load": {"kind": row.load.kind.value, "value": row.load.value},
        "temperature": row.temperature,
        "pairs": row.num_pairs,
        "identical": row.num_identical,
        "speed_up": _ratio(row.speed_up),
        "plain": _arm(row.plain),
        "speculative": _arm(row.speculative),
    }


def _answer(sample: Sample) -> dict[str, Any]:
    trial = sample.trial
    ttft_us, per_token_us = sample.ttft_us, sample.time_per_output_token_us
    tokens = b"".join(token_id.to_bytes(4, "little") for token_id in sample.token_ids)
    return {
        "prompt": trial.prompt + 1,
        "category": trial.category,
        "temperature": trial.temperature,
        "pair": trial.pair,
        "load": trial.load.label,
        "block": trial.block,
        "arm": sample.arm.value,
        "error": sample.error or None,
        "start_ms": sample.start_us / 1000,
        "latency_ms": sample.duration_us / 1000,
        "ttft_ms": None if ttft_us is None else ttft_us / 1000,
        "time_per_output_token_ms": None if per_token_us is None else per_token_us / 1000,
        "tokens": sample.num_tokens,
        "digest": hashlib.sha256(tokens).hexdigest(),
        "rounds": sample.totals.num_rounds,
        "drafted": sample.totals.num_drafted,
        "tested": sample.totals.num_tested,
        "accepted": sample.totals.num_accepted,
    }
