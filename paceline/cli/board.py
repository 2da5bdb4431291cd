"""What `paceline top` knows of each running answer, by its round reports. No terminal or clock."""

from dataclasses import dataclass, field

from paceline.cli import output
from paceline.events import WatchedRound
from paceline.rounds import RoundReport, SpeculationTotals, TokenSource

# An answer without a round for so long has ended, or waits for its client.
_FORGET_S = 5.0


@dataclass(slots=True)
class Line:
    """One answer, as far as its rounds were seen."""

    id: str
    workload: str
    latest: RoundReport
    seen_s: float
    totals: SpeculationTotals = field(default_factory=SpeculationTotals)
    num_output: int = 0
    elapsed_us: int = 0
    # The ledger when the first round was seen.
    ledger_start_us: int | None = None
    source: TokenSource = TokenSource.UNSPECIFIED

    def add(self, report: RoundReport, now_s: float) -> None:
        if self.ledger_start_us is None:
            self.ledger_start_us = report.ledger_us
        else:
            self.elapsed_us += report.wait_us + report.verify_us
        self.latest, self.seen_s = report, now_s
        self.totals.add_round(report)
        self.num_output += report.num_output
        if report.num_drafted:
            self.source = report.source

    @property
    def mean_draft_length(self) -> float:
        rounds = self.totals.num_drafted_rounds
        return self.totals.num_drafted / rounds if rounds else 0.0

    @property
    def gain(self) -> float:
        """Estimated plain time over the time it took; above 1 is faster. From the ledger."""
        if not self.elapsed_us:
            return 1.0
        lost_us = self.latest.ledger_us - (self.ledger_start_us or 0)
        return max((self.elapsed_us - lost_us) / self.elapsed_us, 0.0)

    def as_dict(self) -> dict[str, object]:
        return {
            "id": self.id,
            "workload": self.workload,
            "rounds": self.totals.num_rounds,
            "output": self.num_output,
            "acceptance_rate": round(self.totals.acceptance_rate, 4),
            "mean_draft_length": round(self.mean_draft_length, 2),
            "gain": round(self.gain, 3),
            "ledger_ms": round(self.latest.ledger_us / 1e3, 1),
            "source": self.source.name.lower(),
            "latest": output.origin(self.latest),
            "batch_sequences": self.latest.batch_sequences,
            "batch_rows": self.latest.batch_rows,
        }


class Board:
    """The answers that have had a round lately."""

    def __init__(self) -> None:
        self._lines: dict[str, Line] = {}
        self.num_missed = 0

    def add(self, watched: WatchedRound, now_s: float) -> None:
        line = self._lines.get(watched.id)
        if line is None:
            line = Line(watched.id, watched.workload, watched.round, now_s)
            self._lines[watched.id] = line
        line.add(watched.round, now_s)
        self.num_missed = watched.num_missed

    def lines(self, now_s: float) -> list[Line]:
        """Oldest first."""
        self._lines = {
            key: line for key, line in self._lines.items() if now_s - line.seen_s < _FORGET_S
        }
        return list(self._lines.values())
