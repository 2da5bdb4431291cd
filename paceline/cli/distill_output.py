"""What `paceline distill` shows: a progress bar, a line per measurement, the curve as a table."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from paceline.cli import output


class Watcher:
    """Shows what `distill` tells it on stderr; elsewhere than at a terminal without the bar."""

    def __init__(self, bar: Progress, task: TaskID) -> None:
        self._bar = bar
        self._task = task

    def phase(self, name: str) -> None:
        self._bar.update(self._task, completed=0.0, description=name, detail="")
        if not self._bar.console.is_terminal:
            output.print_note(name)

    def generated(self, num_tokens: int, fraction: float) -> None:
        self._bar.update(self._task, completed=fraction, detail=f"{num_tokens} tokens")

    def stepped(self, progress: float, loss: float) -> None:
        self._bar.update(self._task, completed=progress, detail=f"loss {loss:.2f}")

    def measured(self, point: Any) -> None:
        loss = "" if point.loss is None else f"loss {point.loss:.2f}, "
        self._bar.console.print(
            f"step {point.step}: {loss}held out: loss {point.held_out_loss:.2f}, accepted at T 0 "
            f"{point.match_t0:.3f}, at T 1 {point.match_t1:.3f} (expected {point.expected_t1:.3f})",
            style="dim",
            soft_wrap=True,
        )


@contextmanager
def progress() -> Iterator[Watcher]:
    console = output.console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("{task.fields[detail]}"),
        TimeElapsedColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        yield Watcher(bar, bar.add_task("", total=1.0, detail=""))


def curve_table(points: Sequence[dict[str, Any]]) -> Table:
    table = Table(title="On held-out answers", title_justify="left", header_style="bold")
    for name in ("step", "tokens", "loss", "accepted T 0", "accepted T 1", "expected T 1"):
        table.add_column(name, justify="right")
    for point in points:
        table.add_row(
            str(point["step"]),
            str(point["num_tokens"]),
            f"{point['held_out_loss']:.2f}",
            f"{point['match_t0']:.3f}",
            f"{point['match_t1']:.3f}",
            f"{point['expected_t1']:.3f}",
        )
    return table


def verdict(document: dict[str, Any], out: str) -> str:
    first, last = document["points"][0], document["points"][-1]
    return (
        f"acceptance {first['match_t0']:.2f} -> {last['match_t0']:.2f} at T 0, "
        f"{first['match_t1']:.2f} -> {last['match_t1']:.2f} at T 1, on {document['num_held_out']} "
        f"held-out answers\n{document['num_answers']} answers of "
        f"{document['num_answer_tokens']} tokens; {document['draft_vocab_size']} ids cover "
        f"{document['coverage']:.1%} of what is held out; weights "
        f"{document['weights_bytes'] / 1e6:.1f} MB\n"
        f"serve it: python -m drafter_service --drafter model --model {out}"
    )
