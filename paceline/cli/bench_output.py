"""What `paceline bench` and `paceline compare` print: a progress bar, tables, verdicts."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.box import SIMPLE_HEAD
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from paceline.bench import tables, verdict
from paceline.bench.result import ALL, Result
from paceline.bench.sample import Sample
from paceline.cli import output

_NOTES_WITHOUT_TERMINAL = 20


@contextmanager
def progress(what: str, num_answers: int) -> Iterator[Callable[[Sample], None]]:
    """A bar on stderr at a terminal, some lines elsewhere. Yields what takes every sample."""
    console = output.console(stderr=True)
    done = 0
    bar = Progress(
        TextColumn(what),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}", markup=False),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    task = bar.add_task("warming up", total=num_answers)
    every = max(1, num_answers // _NOTES_WITHOUT_TERMINAL)

    def on_sample(sample: Sample) -> None:
        nonlocal done
        done += 1
        trial = sample.trial
        name = trial.category or f"prompt {trial.prompt + 1}"
        text = f"{name}, temperature {trial.temperature:g}, {trial.load.label}, {sample.arm}"
        bar.update(task, completed=done, description=text)
        if not console.is_terminal and (done % every == 0 or done == num_answers):
            output.print_note(f"{what} {done}/{num_answers}: {text}")

    with bar:
        yield on_sample


def print_result(result: Result, *, with_latencies: bool) -> None:
    """The tables and the verdicts, on stdout."""
    console = output.console()
    for table in tables.tables(result) if with_latencies else [tables.speed(result)]:
        console.print(_shown(table))
    for line in verdict_lines(result):
        console.print(line, soft_wrap=True)


def verdict_lines(result: Result) -> list[str]:
    lines = []
    for temperature in result.temperatures:
        lines.append(f"Temperature {temperature:g}: {verdict.summary(result, temperature)}")
        lines.append(verdict.overall(result, temperature))
    return [*lines, *verdict.trust(result)]


def _shown(found: tables.Table) -> Table:
    table = Table(
        title=found.title,
        title_justify="left",
        header_style="bold",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    for number, name in enumerate(found.columns):
        # In a narrow terminal a value is folded, never cut.
        table.add_column(name, justify="left" if number == 0 else "right", overflow="fold")
    before = None
    for cells in found.rows:
        if ALL in (cells[0], before) and cells[0] != before:
            table.add_section()
        table.add_row(*cells)
        before = cells[0]
    return table
