"""paceline trace: the rounds of one answer as a tree."""

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.tree import Tree

from paceline.cli import calls, flags, output
from paceline.client import GatewayClient
from paceline.events import AnswerTrace, Finished
from paceline.rounds import PrefillReport, RoundReport


def command(
    request_id: Annotated[
        str,
        typer.Argument(
            metavar="[REQUEST_ID]",
            help="As in `paceline rounds` and the id of a JSON answer. Unset: the answer that "
            "began last.",
            show_default=False,
        ),
    ] = "",
    gateway: flags.Gateway = flags.DEFAULT_GATEWAY,
    as_json: flags.Json = False,
) -> None:
    """Show the rounds of one answer as a tree.

    Queue, prefill, then every round: who drafted, how long each part took,
    how many draft tokens were accepted. The gateway remembers the answers
    that ended last; their text is not among it.

    [bold]Examples[/bold]

      paceline trace

      paceline trace 5f0c3a9e1b7d4f26a8c05e91d3b7f246

      paceline trace --json | jq '.rounds[] | select(.accepted > 0)'

    Exit codes: 0 shown, 1 no such answer is remembered, 2 a bad flag,
    3 no gateway answers.
    """
    calls.run(_show(gateway, request_id, as_json=as_json))


async def _show(gateway: str, request_id: str, *, as_json: bool) -> int:
    async with GatewayClient(gateway) as client:
        trace = await client.get_trace(request_id)
    if as_json:
        print(json.dumps(_as_dict(trace)))
    else:
        output.console().print(tree(trace))
    return 0


def tree(trace: AnswerTrace) -> Tree:
    """The whole answer, a branch per span."""
    root = Tree(f"chat {trace.model}  {trace.id}  {_state(trace)}")
    if trace.finished:
        root.add(_summary(trace.finished))
    if trace.trace_id:
        root.add(f"trace {trace.trace_id}")
    if trace.prefill:
        root.add(f"queue {_ms(trace.prefill.queue_us)}")
        root.add(_prefill_line(trace.prefill))
    for report in trace.rounds:
        branch = root.add(_round_line(report))
        if report.num_drafted:
            branch.add(
                f"draft {_ms(report.draft_us)}, {report.num_drafted} tokens, "
                f"{output.origin(report)}"
            )
        if report.wait_us:
            branch.add(f"wait {_ms(report.wait_us)}")
        branch.add(
            f"verify {_ms(report.verify_us)}, {report.batch_rows} rows of "
            f"{report.batch_sequences} sequences"
        )
    return root


def _state(trace: AnswerTrace) -> str:
    if trace.finished:
        return trace.finished.finish_reason.label
    return trace.error_type or "running"


def _summary(finished: Finished) -> str:
    totals = finished.totals
    acceptance = f"acceptance {totals.acceptance_rate:.2f}"
    return (
        f"{finished.num_completion_tokens} tokens in {totals.num_rounds} rounds, "
        f"{_ms(finished.duration_us)}, first token {_ms(finished.time_to_first_token_us)}, "
        f"{acceptance if totals.num_tested else 'nothing drafted'}"
    )


def _prefill_line(report: PrefillReport) -> str:
    return (
        f"prefill {_ms(report.prefill_us)}, {report.num_prompt_tokens} prompt tokens, "
        f"{report.num_cached_tokens} of them cached"
    )


def _round_line(report: RoundReport) -> str:
    line = f"round {report.round}  {_ms(report.wait_us + report.verify_us)}"
    if not report.num_drafted:
        return f"{line}  {output.origin(report)}  {report.num_output} output"
    return (
        f"{line}  {report.num_accepted} accepted of {report.num_drafted}  "
        f"{report.num_output} output"
    )


def _ms(us: int) -> str:
    return f"{us / 1000:.1f} ms"


def _as_dict(trace: AnswerTrace) -> dict[str, object]:
    finished = trace.finished
    return {
        "id": trace.id,
        "model": trace.model,
        "workload": trace.workload,
        "trace_id": trace.trace_id,
        "start_unix_nanos": trace.start_unix_nanos,
        "prefill": asdict(trace.prefill) if trace.prefill else None,
        "rounds": [output.round_fields(report) for report in trace.rounds],
        "finish_reason": finished.finish_reason.label if finished else None,
        "completion_tokens": finished.num_completion_tokens if finished else None,
        "time_to_first_token_us": finished.time_to_first_token_us if finished else None,
        "duration_us": finished.duration_us if finished else None,
        "totals": asdict(finished.totals) if finished else None,
        "error_type": trace.error_type,
    }
