"""`python -m bare_relay --target HOST:PORT`: streams passed on by grpc.aio and nothing else.

What it keeps of a cancelled call is the library's, in the two roles that a gateway has: server of
one stream, client of another. Messages stay bytes.
"""

import argparse
import asyncio
import signal
from typing import Any

import grpc

GENERATE = "/paceline.v1.VerifierService/Generate"


class Relay(grpc.GenericRpcHandler):
    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._generate = channel.stream_stream(GENERATE)

    def service(self, details: Any) -> Any:
        return grpc.stream_stream_rpc_method_handler(self._relay)

    async def _relay(self, _: Any, context: Any) -> None:
        call = self._generate()
        try:
            await call.write(await context.read())
            while (message := await call.read()) is not grpc.aio.EOF:
                await context.write(message)
        finally:
            call.cancel()


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", required=True)
    options = parser.parse_args()
    done = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, done.set)
    async with grpc.aio.insecure_channel(options.target) as channel:
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((Relay(channel),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        print(f"READY relay 127.0.0.1:{port}", flush=True)
        await done.wait()
        await server.stop(0)


if __name__ == "__main__":
    asyncio.run(main())
