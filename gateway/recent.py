"""The rounds of the answers that run and of those that ended last, for whoever asks afterwards.

Bounded by answers and by rounds. Holds numbers, never text. Knows no spans and no messages.
"""

import struct
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any

from paceline.events import Finished
from paceline.rounds import PlainReason, PrefillReport, RoundReport, TokenSource

# Of all answers together: some 300 kB.
MAX_ROUNDS = 5_000

_NAMES = tuple(item.name for item in fields(RoundReport))
_values = attrgetter(*_NAMES)
# The report's fields in their order, each as wide as on the wire.
_PACKED = struct.Struct("<10IQ2Ii")


class Rounds:
    """Reports as bare numbers: a sixth of what the objects take."""

    __slots__ = ("_packed",)

    def __init__(self) -> None:
        self._packed = bytearray()

    def append(self, report: RoundReport) -> None:
        self._packed += _PACKED.pack(*_values(report))

    def __len__(self) -> int:
        return len(self._packed) // _PACKED.size

    def __iter__(self) -> Iterator[RoundReport]:
        for numbers in _PACKED.iter_unpack(bytes(self._packed)):
            kept: dict[str, Any] = dict(zip(_NAMES, numbers, strict=True))
            kept["source"] = TokenSource(kept["source"])
            kept["plain_reason"] = PlainReason(kept["plain_reason"])
            yield RoundReport(**kept)


@dataclass(slots=True)
class AnswerRecord:
    """One answer so far. `finished` is None while it runs and when it failed."""

    id: str
    model: str = ""
    workload: str = ""
    trace_id: str = ""
    start_unix_nanos: int = 0
    prefill: PrefillReport | None = None
    rounds: Rounds = field(default_factory=Rounds)
    finished: Finished | None = None
    error_type: str = ""
    # Whose it is: no other tenant gets it.
    tenant: str = ""


class RecentAnswers:
    """The last answers by id, the oldest first."""

    def __init__(self, max_answers: int) -> None:
        self._max_answers = max_answers
        self._records: OrderedDict[str, AnswerRecord] = OrderedDict()
        self._num_rounds = 0

    def begin(self, record: AnswerRecord) -> None:
        self._records[record.id] = record
        while len(self._records) > self._max_answers:
            self._forget_oldest()

    def add_round(self, record: AnswerRecord, report: RoundReport) -> None:
        """Keeps the round, at the cost of the oldest answers when there are too many rounds."""
        if record.id not in self._records:
            return
        record.rounds.append(report)
        self._num_rounds += 1
        while self._num_rounds > MAX_ROUNDS and len(self._records) > 1:
            self._forget_oldest()

    def get(self, answer_id: str, tenant: str | None = None) -> AnswerRecord | None:
        """The answer, or for an empty id the one that began last; with `tenant`, of that only."""
        if answer_id:
            record = self._records.get(answer_id)
            candidates = [record] if record else []
        else:
            candidates = list(reversed(self._records.values()))
        return next((r for r in candidates if tenant in (None, r.tenant)), None)

    def _forget_oldest(self) -> None:
        _, record = self._records.popitem(last=False)
        self._num_rounds -= len(record.rounds)
