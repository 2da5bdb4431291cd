"""Where two runs of the same requests differ. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.certify.asker import Reply


@dataclass(frozen=True, slots=True)
class Difference:
    """The first position, from 0, at which two answers differ; None is the end of one."""

    index: int
    position: int
    before: int | None
    after: int | None

    def describe(self, before: str, after: str) -> str:
        """In words; the arguments name the two runs."""
        values = [
            f"{'the end' if token_id is None else f'token {token_id}'} {run}"
            for token_id, run in ((self.before, before), (self.after, after))
        ]
        return f"prompt {self.index + 1}, position {self.position}: {values[0]}, {values[1]}"


def differences(before: Sequence[Reply], after: Sequence[Reply]) -> list[Difference]:
    """One for each pair of replies whose token ids differ."""
    found = []
    for index, (one, other) in enumerate(zip(before, after, strict=True)):
        if one.token_ids != other.token_ids:
            position = next(
                (
                    position
                    for position, pair in enumerate(
                        zip(one.token_ids, other.token_ids, strict=False)
                    )
                    if pair[0] != pair[1]
                ),
                min(len(one.token_ids), len(other.token_ids)),
            )
            found.append(Difference(index, position, _at(one, position), _at(other, position)))
    return found


def _at(reply: Reply, position: int) -> int | None:
    return reply.token_ids[position] if position < len(reply.token_ids) else None
