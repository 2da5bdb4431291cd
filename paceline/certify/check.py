"""The outcome of one check. Knows nothing of how it was found."""

from collections.abc import Awaitable
from dataclasses import dataclass

from paceline.server import Refusal


@dataclass(frozen=True, slots=True)
class Check:
    """`detail` says in one line what was compared, or what is wrong."""

    name: str
    passed: bool
    detail: str


def refused(name: str, refusal: Refusal) -> Check:
    """What the gateway will not do, it cannot do right."""
    return Check(name, False, f"refused, {refusal.code.name}: {refusal.message}")


async def unless_refused(name: str, check: Awaitable[Check]) -> Check:
    """The check, or what the gateway refused."""
    try:
        return await check
    except Refusal as refusal:
        return refused(name, refusal)
