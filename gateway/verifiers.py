"""The verifiers: which there are, which are ready, and where a sequence goes. Knows no messages."""

import asyncio
import contextlib
import time
from collections.abc import Container, Sequence

import grpc

from gateway.addresses import RESOLVE_S, Addresses, Resolve, resolve
from gateway.placement import place
from gateway.sequences import ServedModel
from gateway.text import Text
from gateway.verifier import Verifier
from paceline.server import Refusal
from paceline.tls import TlsFiles

# A gateway and a verifier that have just started need a moment to find each other.
COMING_S = 1.0
# How long a verifier that was asked to leave may finish its sequences is up to them; it is looked
# at this often.
LEAVING_S = 0.2


class Verifiers:
    """All verifiers of this gateway."""

    def __init__(
        self,
        entries: Sequence[str],
        *,
        stall_s: float,
        tls: TlsFiles | None = None,
        resolve: Resolve = resolve,
    ) -> None:
        """`entries` as `Addresses` takes them; `stall_s` is `Heartbeat`'s."""
        self._stall_s, self._tls = stall_s, tls
        self._addresses = Addresses(entries, resolve)
        self.all = [self._make(address) for address in self._addresses.all]
        self._ready = asyncio.Event()
        self._lost = asyncio.Event()
        self._lost.set()
        self._changed = asyncio.Event()
        self._resolving: asyncio.Task[None] | None = None
        self._leaving: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        for verifier in self.all:
            verifier.start()
        if self._addresses.change:
            self._resolving = asyncio.create_task(self._keep_resolving())

    async def close(self) -> None:
        tasks = [*self._leaving, *([self._resolving] if self._resolving else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(verifier.close() for verifier in self.all))

    async def wait_ready(self) -> None:
        """Until at least one verifier is ready."""
        await self._ready.wait()

    async def wait_lost(self) -> None:
        """Until no verifier is ready."""
        await self._lost.wait()

    async def wait_change(self, timeout_s: float) -> None:
        """Until some verifier comes or goes, or the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()

    def set_addresses(self, addresses: Sequence[str]) -> None:
        """Takes in new ones; those that are missing get nothing new and go when they are done."""
        known = {verifier.address: verifier for verifier in self.all}
        for address in addresses:
            if address not in known:
                verifier = self._make(address)
                verifier.start()
                self.all.append(verifier)
            else:
                known[address].is_leaving = False
        for address, verifier in known.items():
            if address not in addresses and not verifier.is_leaving:
                verifier.is_leaving = True
                task = asyncio.create_task(self._let_go(verifier))
                self._leaving.add(task)
                task.add_done_callback(self._leaving.discard)
        self._notice()

    def models(self) -> list[ServedModel]:
        """What is served now, one entry per name."""
        served: dict[str, ServedModel] = {}
        for verifier in self.all:
            if verifier.is_ready and verifier.model:
                served.setdefault(verifier.model.name, verifier.model)
        return list(served.values())

    def default_model(self) -> str:
        """What a request without a model gets; empty when nothing is served."""
        served = self.models()
        return served[0].name if served else ""

    def traced_model(self, name: str) -> str:
        """The name for spans: what a client made up stands in none."""
        if not name:
            return self.default_model()
        known = (verifier.model.name for verifier in self.all if verifier.model)
        return name if name in known else "unknown"

    def serving(self, name: str) -> tuple[ServedModel, Text]:
        """The model of this name, or any for an empty one, and its text side.

        Raises NOT_FOUND for a model nobody serves, UNAVAILABLE when none that serve it are ready.
        """
        known = [v for v in self.all if v.model and name in ("", v.model.name)]
        for verifier in known:
            if verifier.is_ready and verifier.model and verifier.text:
                return verifier.model, verifier.text
        if known or not self._ready.is_set():
            raise none_ready()
        raise Refusal(
            grpc.StatusCode.NOT_FOUND, "no such model; ListModels names those that are served"
        )

    async def find(self, name: str) -> tuple[ServedModel, Text]:
        """As `serving`, but one that is about to come is waited for."""
        deadline_s = time.monotonic() + COMING_S
        while True:
            try:
                return self.serving(name)
            except Refusal as refusal:
                left_s = deadline_s - time.monotonic()
                if refusal.code is not grpc.StatusCode.UNAVAILABLE or left_s <= 0:
                    raise
                await self.wait_change(left_s)

    def place(
        self, model: ServedModel, key: str, avoid: Container[tuple[str, int]] = ()
    ) -> Verifier | None:
        """Where a sequence with this key goes, or None when nobody takes it.

        Only to verifiers that would give the same tokens, and not to an (address, incarnation) in
        `avoid`.
        """
        takes = {
            v.address: v
            for v in self.all
            if v.takes_sequences
            and v.model
            and _gives_the_same(v.model, model)
            and (v.address, v.incarnation) not in avoid
        }
        if not takes:
            return None
        return takes[place(key, {address: v.load for address, v in takes.items()})]

    def _make(self, address: str) -> Verifier:
        return Verifier(address, self._notice, stall_s=self._stall_s, tls=self._tls)

    def _notice(self) -> None:
        any_ready = any(verifier.is_ready for verifier in self.all)
        for event, holds in ((self._ready, any_ready), (self._lost, not any_ready)):
            if holds:
                event.set()
            else:
                event.clear()
        self._changed.set()
        self._changed = asyncio.Event()

    async def _keep_resolving(self) -> None:
        while True:
            await self._addresses.look_up()
            self.set_addresses(self._addresses.all)
            await asyncio.sleep(RESOLVE_S)

    async def _let_go(self, verifier: Verifier) -> None:
        """Closes a leaving verifier once it has no sequence; not if it is taken in again."""
        while verifier.is_leaving:
            if not verifier.num_live:
                self.all.remove(verifier)
                await verifier.close()
                self._notice()
                return
            await asyncio.sleep(LEAVING_S)


def none_ready() -> Refusal:
    return Refusal(grpc.StatusCode.UNAVAILABLE, "no verifier is ready", retry_after_s=1.0)


def _gives_the_same(one: ServedModel, other: ServedModel) -> bool:
    return (one.name, one.model_fingerprint, one.tokenizer_fingerprint, one.numerics) == (
        other.name,
        other.model_fingerprint,
        other.tokenizer_fingerprint,
        other.numerics,
    )
