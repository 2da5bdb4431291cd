"""A drafter that is bad on purpose: prompt lookup that is slow, by turns or always, or wrong.

`python benchmarks/bad_drafter.py KIND PORT`, with KIND `slow` (200 ms per block) or `flap` (every
5 s from right to asleep and back). Serves the drafter's own protocol with the drafter's own engine.
"""

import asyncio
import sys
import time
from collections.abc import Sequence

from drafter_service.engine import DraftEngine
from drafter_service.lookup import PromptLookupDrafter
from drafter_service.servicer import SERVICE_NAME, DrafterServicer
from drafter_service.state import DraftState
from paceline.server import INTERNAL_MESSAGE_BYTES, Service, run
from paceline.v1.drafter_pb2_grpc import add_DrafterServiceServicer_to_server

_SLEEP_S = 0.2
_PERIOD_S = 5.0


class BadDrafter(PromptLookupDrafter):
    """Prompt lookup, late."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self._kind = kind

    def extend(self, states: Sequence[DraftState]) -> list[list[int] | None]:
        asleep = self._kind == "slow" or int(time.monotonic() / _PERIOD_S) % 2 == 1
        if asleep:
            time.sleep(_SLEEP_S)
        return super().extend(states)


async def serve(kind: str, port: int) -> None:
    engine = DraftEngine(BadDrafter(kind), max_sequences=64, max_draft_tokens=16)
    engine.start()
    service = Service(
        SERVICE_NAME,
        host="127.0.0.1",
        port=port,
        drain_s=0.0,
        message_bytes=INTERNAL_MESSAGE_BYTES,
        with_reflection=False,
    )
    servicer = DrafterServicer(engine)
    add_DrafterServiceServicer_to_server(servicer, service.server)
    address = await service.start()
    await service.set_serving()
    print(f"READY drafter {address}", flush=True)
    try:
        await service.serve_until_signal(servicer.drain)
    finally:
        await asyncio.to_thread(engine.stop)


if __name__ == "__main__":
    run(serve(sys.argv[1], int(sys.argv[2])))
