"""What the sub-commands print: streamed text, tables, summaries, one-line errors. No gRPC.

Results go to stdout, everything about them to stderr. Without a terminal there is no colour.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from paceline.cli.answer import Answer
from paceline.rounds import PlainReason, RoundReport

# Wide enough for every table when there is no terminal to ask.
_WIDTH_WITHOUT_TERMINAL = 120

# A model's text must not drive the terminal: C0 and C1 controls but for newline and tab.
_CONTROLS = {
    code: "\N{REPLACEMENT CHARACTER}"
    for code in (*range(0x20), *range(0x7F, 0xA0))
    if chr(code) not in "\n\t"
}


def console(*, stderr: bool = False) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    return Console(
        stderr=stderr,
        width=None if stream.isatty() else _WIDTH_WITHOUT_TERMINAL,
        markup=False,
        highlight=False,
        emoji=False,
    )


def write_text(text: str) -> None:
    """A piece of an answer, at once."""
    sys.stdout.write(text.translate(_CONTROLS) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def print_error(line: str) -> None:
    console(stderr=True).print(f"paceline: {' '.join(line.split())}", style="red", soft_wrap=True)


def print_note(line: str) -> None:
    console(stderr=True).print(line, style="dim", soft_wrap=True)


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """A spinner on stderr at a terminal, a line elsewhere."""
    shown = console(stderr=True)
    if not shown.is_terminal:
        print_note(what)
        yield
        return
    with shown.status(what):
        yield


def print_answer(answer: Answer, number: int, count: int) -> None:
    """A complete answer under a heading: one of several."""
    assert answer.started is not None
    write_text(f"== answer {number} of {count}, seed {answer.started.seed}\n")
    write_text(answer.text if answer.text.endswith("\n") else f"{answer.text}\n")


def print_summary(answer: Answer) -> None:
    """One line about a complete answer."""
    started, finished = answer.started, answer.finished
    assert started is not None and finished is not None
    totals = finished.totals
    parts = [
        f"{finished.num_completion_tokens} tokens",
        f"{answer.tokens_per_s:.1f} tokens/s",
        f"ttft {finished.time_to_first_token_us / 1000:.0f} ms",
        f"{totals.num_rounds} rounds",
    ]
    if totals.num_tested:
        parts.append(f"acceptance {totals.acceptance_rate:.2f}")
        parts.append(f"{totals.mean_acceptance_length:.2f} tokens per drafted round")
    else:
        parts.append("nothing drafted")
    parts.append(f"seed {started.seed}")
    print_note(", ".join(parts))


def origin(report: RoundReport) -> str:
    """What drafted the round's block, or why there was none."""
    if report.num_drafted:
        return report.source.name.lower().replace("_", " ")
    if report.plain_reason is PlainReason.UNSPECIFIED:
        return "plain"
    return f"plain: {report.plain_reason.name.lower().replace('_', ' ')}"


def round_fields(report: RoundReport) -> dict[str, object]:
    """A round as JSON: counters without `num_`, enums by name."""
    fields: dict[str, object] = {
        name.removeprefix("num_"): value for name, value in asdict(report).items()
    }
    fields["source"] = report.source.name.lower()
    fields["plain_reason"] = report.plain_reason.name.lower()
    return fields


def rounds_table(reports: Sequence[RoundReport]) -> Table:
    table = Table(title="Rounds", title_justify="left", header_style="bold")
    table.add_column("round", justify="right")
    table.add_column("draft")
    for name in ("drafted", "tested", "accepted", "output", "draft ms", "wait ms", "verify ms"):
        table.add_column(name, justify="right")
    for report in reports:
        table.add_row(
            str(report.round),
            origin(report),
            str(report.num_drafted),
            str(report.num_tested),
            str(report.num_accepted),
            str(report.num_output),
            *(f"{us / 1000:.1f}" for us in (report.draft_us, report.wait_us, report.verify_us)),
        )
    return table
