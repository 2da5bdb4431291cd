"""Who a caller is: an API key in, a tenant out, or the one refusal there is.

Both doors ask here. The tenant comes from the key and from nothing that a client could fill in.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import grpc

from paceline.keys import KeyEntry, KeysError, load_keys, matches, parse_key
from paceline.server import Refusal

log = logging.getLogger(__name__)

SECONDS_OF_BURST = 60.0


@dataclass(frozen=True, slots=True)
class Tenant:
    """Whom a request is for, and what they may use. 0 is no limit."""

    name: str = ""
    max_answers: int = 0
    tokens_per_s: float = 0.0
    burst_tokens: float = 0.0
    weight: float = 1.0
    priority: int = 0
    # May watch every tenant's rounds.
    is_operator: bool = False


# Of a gateway without keys: whoever reaches it.
ANYBODY = Tenant(is_operator=True)
_NO_HASH = "0" * 64


class Keys:
    """The keys of one gateway, read again when their file changes.

    A file that is no longer sound leaves the keys as they were: a slip of the pen neither locks
    everybody out nor lets anybody in.
    """

    def __init__(self, path: str = "") -> None:
        """Without a path every caller is `ANYBODY`. Raises KeysError."""
        self._path = Path(path) if path else None
        self._stamp = self._read_stamp()
        self._entries = _by_id(load_keys(self._path)) if self._path else {}

    def identify(self, headers: Mapping[str, str]) -> Tenant:
        """The tenant of `authorization: Bearer KEY`; header names are in lower case.

        Raises UNAUTHENTICATED, the same for a missing, a malformed and an unknown key.
        """
        if self._path is None:
            return ANYBODY
        self._refresh()
        scheme, _, key = headers.get("authorization", "").partition(" ")
        presented = parse_key(key.strip()) if scheme.lower() == "bearer" else None
        if presented:
            # One comparison either way: the time does not tell which ids exist.
            entry = self._entries.get(presented.id)
            if matches(entry.sha256 if entry else _NO_HASH, presented) and entry:
                return tenant_of(entry)
        raise Refusal(grpc.StatusCode.UNAUTHENTICATED, "an API key is required")

    def _refresh(self) -> None:
        stamp = self._read_stamp()
        if stamp == self._stamp or self._path is None:
            return
        self._stamp = stamp
        try:
            self._entries = _by_id(load_keys(self._path))
        except KeysError as error:
            log.error("keys are kept as they were: %s", error)
        else:
            log.info("keys read again: %d", len(self._entries))

    def _read_stamp(self) -> tuple[int, int, int] | None:
        try:
            stat = self._path.stat() if self._path else None
        except OSError:
            return None
        return (stat.st_mtime_ns, stat.st_size, stat.st_ino) if stat else None


def tenant_of(entry: KeyEntry) -> Tenant:
    return Tenant(
        name=entry.tenant,
        max_answers=entry.max_answers,
        tokens_per_s=entry.tokens_per_s,
        burst_tokens=entry.burst_tokens or entry.tokens_per_s * SECONDS_OF_BURST,
        weight=entry.weight,
        priority=entry.priority,
        is_operator=entry.operator,
    )


def _by_id(entries: list[KeyEntry]) -> dict[str, KeyEntry]:
    return {entry.id: entry for entry in entries}
