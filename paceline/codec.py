"""Messages <-> dataclasses. The only file that knows both; protobuf objects stop here.

Reads messages as they are, without judging them: `paceline.params.violations` and the mailbox do.
"""

import itertools
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, TypeVar

from paceline.params import FieldError, SamplingMode, SamplingParams, Speculation
from paceline.rounds import (
    PlainReason,
    PrefillReport,
    RoundReport,
    SpeculationTotals,
    TokenSource,
)
from paceline.v1 import tokens_pb2 as pb

Kind = TypeVar("Kind", bound=IntEnum)


def _member(kind: type[Kind], value: int, default: Kind, field: str) -> Kind:
    """The member with this value, `default` for 0. Raises FieldError for any other value."""
    try:
        return kind(value) if value else default
    except ValueError:
        raise FieldError(field, f"has no value {value}") from None


def _wire(value: IntEnum) -> Any:
    """A number: generated stubs want their own enum types, which do not exist at run time."""
    return int(value)


def _known(kind: type[Kind], value: int) -> Kind:
    """The member with this value, or the unspecified one for what only a newer peer knows."""
    try:
        return kind(value)
    except ValueError:
        return kind(0)


def params_from_pb(message: pb.SamplingParams) -> SamplingParams:
    def given(name: str, default: float) -> float:
        return getattr(message, name) if message.HasField(name) else default

    return SamplingParams(
        mode=_member(SamplingMode, int(message.mode), SamplingMode.COUPLED, "params.mode"),
        temperature=given("temperature", 1.0),
        top_p=given("top_p", 1.0),
        top_k=message.top_k,
        min_p=message.min_p,
        repetition_penalty=given("repetition_penalty", 1.0),
        presence_penalty=message.presence_penalty,
        frequency_penalty=message.frequency_penalty,
        logit_bias=dict(message.logit_bias),
        max_tokens=int(given("max_tokens", 256)),
        min_tokens=message.min_tokens,
        stop_token_ids=tuple(message.stop_token_ids),
        ignore_eos=message.ignore_eos,
        num_logprobs=message.num_logprobs if message.HasField("num_logprobs") else None,
    )


def params_to_pb(params: SamplingParams) -> pb.SamplingParams:
    return pb.SamplingParams(
        mode=_wire(params.mode),
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        min_p=params.min_p,
        repetition_penalty=params.repetition_penalty,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        logit_bias=dict(params.logit_bias),
        max_tokens=params.max_tokens,
        min_tokens=params.min_tokens,
        stop_token_ids=params.stop_token_ids,
        ignore_eos=params.ignore_eos,
        num_logprobs=params.num_logprobs,
    )


def speculation_from_pb(policy: pb.DraftPolicy) -> Speculation:
    return _member(Speculation, int(policy.speculation), Speculation.AUTO, "draft.speculation")


def sources_from_pb(sources: Sequence[int], num_tokens: int) -> list[TokenSource]:
    """One source per token; what is missing or unknown is UNSPECIFIED."""
    known = [_known(TokenSource, source) for source in sources]
    if len(known) == 1:
        return known * num_tokens
    return (known + [TokenSource.UNSPECIFIED] * num_tokens)[:num_tokens]


def sources_to_pb(sources: Sequence[TokenSource]) -> list[int]:
    """One entry when they are all the same."""
    return [int(sources[0])] if len(set(sources)) == 1 else [int(s) for s in sources]


def round_from_pb(message: pb.RoundReport) -> RoundReport:
    return RoundReport(
        round=message.round,
        num_drafted=message.num_drafted,
        num_tested=message.num_tested,
        num_accepted=message.num_accepted,
        num_output=message.num_output,
        source=_known(TokenSource, message.source),
        plain_reason=_known(PlainReason, message.plain_reason),
        draft_us=message.draft_us,
        wait_us=message.wait_us,
        verify_us=message.verify_us,
        start_unix_nanos=message.start_unix_nanos,
        batch_sequences=message.batch_sequences,
        batch_rows=message.batch_rows,
        ledger_us=message.ledger_us,
    )


def round_to_pb(report: RoundReport) -> pb.RoundReport:
    return pb.RoundReport(
        round=report.round,
        num_drafted=report.num_drafted,
        num_tested=report.num_tested,
        num_accepted=report.num_accepted,
        num_output=report.num_output,
        source=_wire(report.source),
        plain_reason=_wire(report.plain_reason),
        draft_us=report.draft_us,
        wait_us=report.wait_us,
        verify_us=report.verify_us,
        start_unix_nanos=report.start_unix_nanos,
        batch_sequences=report.batch_sequences,
        batch_rows=report.batch_rows,
        ledger_us=report.ledger_us,
    )


def prefill_from_pb(message: pb.PrefillReport) -> PrefillReport:
    return PrefillReport(
        queue_us=message.queue_us,
        prefill_us=message.prefill_us,
        num_prompt_tokens=message.num_prompt_tokens,
        num_cached_tokens=message.num_cached_tokens,
        start_unix_nanos=message.start_unix_nanos,
    )


def prefill_to_pb(report: PrefillReport) -> pb.PrefillReport:
    return pb.PrefillReport(
        queue_us=report.queue_us,
        prefill_us=report.prefill_us,
        num_prompt_tokens=report.num_prompt_tokens,
        num_cached_tokens=report.num_cached_tokens,
        start_unix_nanos=report.start_unix_nanos,
    )


def totals_from_pb(message: pb.SpeculationTotals) -> SpeculationTotals:
    return SpeculationTotals(
        num_rounds=message.num_rounds,
        num_drafted_rounds=message.num_drafted_rounds,
        num_drafted=message.num_drafted,
        num_tested=message.num_tested,
        num_accepted=message.num_accepted,
        accepted_by_position=list(message.accepted_by_position),
    )


def totals_to_pb(totals: SpeculationTotals) -> pb.SpeculationTotals:
    return pb.SpeculationTotals(
        num_rounds=totals.num_rounds,
        num_drafted_rounds=totals.num_drafted_rounds,
        num_drafted=totals.num_drafted,
        num_tested=totals.num_tested,
        num_accepted=totals.num_accepted,
        accepted_by_position=totals.accepted_by_position,
    )


def distribution_to_pb(token_ids: Sequence[int], weights: Sequence[int]) -> pb.TokenDistribution:
    """Ascending ids and their weights."""
    deltas = [after - before for before, after in zip((0, *token_ids), token_ids, strict=False)]
    return pb.TokenDistribution(id_deltas=deltas, weights=weights)


def distribution_from_pb(message: pb.TokenDistribution) -> tuple[list[int], list[int]]:
    """(ascending ids, weights), as they came: the receiver checks them."""
    return list(itertools.accumulate(message.id_deltas)), list(message.weights)
