"""The verifiers: which are ready, and where a sequence goes. Knows no messages."""

import asyncio
from collections.abc import Sequence

import grpc

from gateway.sequences import ServedModel
from gateway.text import Text
from gateway.verifier import Verifier
from paceline.server import Refusal
from paceline.tls import TlsFiles


class Verifiers:
    """All verifiers of this gateway."""

    def __init__(self, addresses: Sequence[str], tls: TlsFiles | None = None) -> None:
        self.all = [Verifier(address, self._notice, tls) for address in addresses]
        self._ready = asyncio.Event()
        self._lost = asyncio.Event()
        self._lost.set()

    def start(self) -> None:
        for verifier in self.all:
            verifier.start()

    async def close(self) -> None:
        await asyncio.gather(*(verifier.close() for verifier in self.all))

    async def wait_ready(self) -> None:
        """Until at least one verifier is ready."""
        await self._ready.wait()

    async def wait_lost(self) -> None:
        """Until no verifier is ready."""
        await self._lost.wait()

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

    def place(self, name: str) -> tuple[Verifier, ServedModel, Text]:
        """The ready verifier with the fewest live sequences, of those that serve the model.

        An empty name is any model. Raises NOT_FOUND for a model nobody serves, UNAVAILABLE when
        none that serve it are ready.
        """
        known = [v for v in self.all if v.model and name in ("", v.model.name)]
        ready = [v for v in known if v.is_ready]
        if ready:
            verifier = min(ready, key=lambda v: v.num_live)
            if verifier.model and verifier.text:
                return verifier, verifier.model, verifier.text
        if known or not self._ready.is_set():
            raise Refusal(grpc.StatusCode.UNAVAILABLE, "no verifier is ready", retry_after_s=1.0)
        raise Refusal(
            grpc.StatusCode.NOT_FOUND, "no such model; ListModels names those that are served"
        )

    def _notice(self) -> None:
        any_ready = any(verifier.is_ready for verifier in self.all)
        for event, holds in ((self._ready, any_ready), (self._lost, not any_ready)):
            if holds:
                event.set()
            else:
                event.clear()
