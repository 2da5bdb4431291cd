"""`python -m bare_relay --target HOST:PORT`: answers passed on by grpc.aio and nothing else.

What it keeps of a cancelled call is the library's, in the two roles that a gateway has: server of
one stream, client of another.
"""

import argparse
import asyncio
import signal
from typing import Any

import grpc

from paceline.v1 import gateway_pb2, gateway_pb2_grpc, verifier_pb2, verifier_pb2_grpc


class Relay(gateway_pb2_grpc.GatewayServiceServicer):
    """A message to the client for each of the target's, with the token ids in it."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._target: Any = verifier_pb2_grpc.VerifierServiceStub(channel)

    async def Generate(self, request: gateway_pb2.GenerateRequest, context: Any) -> None:
        opening = verifier_pb2.Open(
            token_ids=list(request.text.encode()), params=request.params, seed=request.seed
        )
        call = self._target.Generate()
        try:
            await call.write(verifier_pb2.VerifierGenerateRequest(open=opening))
            while (message := await call.read()) is not grpc.aio.EOF:
                delta = gateway_pb2.Delta(token_ids=message.tokens.token_ids)
                await context.write(gateway_pb2.GenerateResponse(delta=delta))
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
        gateway_pb2_grpc.add_GatewayServiceServicer_to_server(Relay(channel), server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        print(f"READY relay 127.0.0.1:{port}", flush=True)
        await done.wait()
        await server.stop(0)


if __name__ == "__main__":
    asyncio.run(main())
