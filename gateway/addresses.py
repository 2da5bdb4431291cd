"""Addresses of verifiers: as they are written, or all that a DNS name stands for.

`host:port` is one verifier. `dns:name:port` is as many as the name has addresses (a headless
service), asked for again and again.
"""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence

log = logging.getLogger(__name__)

DNS_PREFIX = "dns:"
RESOLVE_S = 5.0

# host, port -> every address, as host:port.
Resolve = Callable[[str, int], Awaitable[list[str]]]


def split(entry: str) -> tuple[str, int]:
    """(host or name, port). Raises ValueError for what is neither host:port nor dns:name:port."""
    host, _, port = entry.removeprefix(DNS_PREFIX).rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{entry} is neither host:port nor dns:name:port")
    return host, int(port)


async def resolve(host: str, port: int) -> list[str]:
    """Every address of the name. Raises OSError when it cannot be resolved."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    hosts = sorted({str(entry[4][0]) for entry in found})
    return [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host in hosts]


class Addresses:
    """The addresses of the entries, by the last answer that each name gave."""

    def __init__(self, entries: Sequence[str], resolve: Resolve) -> None:
        """`entries` as `split` takes them."""
        self._resolve = resolve
        self._found: dict[str, list[str]] = {}
        for entry in entries:
            self._found[entry] = [] if entry.startswith(DNS_PREFIX) else [entry]

    @property
    def change(self) -> bool:
        """Whether any of them may come and go."""
        return any(entry.startswith(DNS_PREFIX) for entry in self._found)

    @property
    def all(self) -> list[str]:
        return list(dict.fromkeys(address for found in self._found.values() for address in found))

    async def look_up(self) -> None:
        """Asks for every name again; one that cannot be resolved keeps its addresses."""
        for entry in self._found:
            if not entry.startswith(DNS_PREFIX):
                continue
            try:
                self._found[entry] = await self._resolve(*split(entry))
            except OSError as error:
                log.warning("%s: %s", entry, error.strerror or error)
