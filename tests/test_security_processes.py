"""The three processes, mTLS on every hop and keys at the door: what they do, and say."""

import asyncio
import contextlib
from dataclasses import dataclass

import grpc
import pytest
from answers import ask
from certificates import Certificates
from processes import Process, free_port, wait_until
from sink import Sink, otlp_sink
from test_security_keys import add
from tiny import save_tiny_llama
from verifier_calls import generate

from paceline.access import Access
from paceline.client import GatewayClient
from paceline.codec import params_to_pb
from paceline.events import ChatMessage, Request
from paceline.params import SamplingParams
from paceline.roles import server_name
from paceline.server import Refusal, open_channel
from paceline.tls import TlsFiles
from paceline.v1 import gateway_pb2 as pb
from paceline.v1 import gateway_pb2_grpc, tokens_pb2, verifier_pb2, verifier_pb2_grpc
from paceline.verifier_status import verifier_status

CANARY = "canary7f3a"
GREEDY = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
DEADLINE_S = 20.0


@dataclass
class Secured:
    certificates: Certificates
    keys: dict[str, str]
    processes: dict[str, Process]
    addresses: dict[str, str]
    sink: Sink

    def access(self, key: str = "one") -> Access:
        return Access(api_key=self.keys.get(key, key), ca=self.certificates.ca)

    def channel(self, service: str, caller: TlsFiles) -> grpc.aio.Channel:
        name = "" if service == "gateway" else server_name(service)
        return open_channel(self.addresses[service], tls=caller, server_name=name)

    def said(self) -> str:
        return "\n".join(line for process in self.processes.values() for line in process.log)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("secured")
    certificates = Certificates(folder / "certificates")
    model = save_tiny_llama(folder)
    file = folder / "keys.yaml"
    keys = {"one": add(file, "one"), "two": add(file, "two")}
    with contextlib.ExitStack() as stack:
        sink, env = stack.enter_context(otlp_sink())

        def start(service: str, role: str, *flags: str) -> Process:
            files = certificates.role(role)
            process = Process(
                service,
                f"--tls-cert={files.cert}",
                f"--tls-key={files.key}",
                "--log-level=debug",
                *flags,
                env=env,
            )
            stack.callback(process.close)
            return process

        mutual = f"--tls-client-ca={certificates.ca}"
        peers = f"--peer-ca={certificates.ca}"
        port = free_port()
        verifier = start(
            "verifier_service",
            "verifier",
            "--port=0",
            mutual,
            peers,
            f"--model={model}",
            "--dtype=float32",
            "--threads=1",
            f"--drafter=127.0.0.1:{port}",
        )
        drafter = start("drafter_service", "drafter", f"--port={port}", mutual)
        addresses = {"drafter": drafter.address(), "verifier": verifier.address()}
        gateway = start(
            "gateway",
            "gateway",
            "--port=0",
            peers,
            f"--api-keys={file}",
            f"--verifier={addresses['verifier']}",
        )
        addresses["gateway"] = gateway.address()
        processes = {"verifier": verifier, "drafter": drafter, "gateway": gateway}
        yield Secured(certificates, keys, processes, addresses, sink)


async def status_of(secured: Secured) -> verifier_pb2.GetStatusResponse:
    operator = secured.certificates.role("operator")
    async with secured.channel("verifier", operator) as channel:
        stub = verifier_pb2_grpc.VerifierServiceStub(channel)
        return await stub.GetStatus(verifier_pb2.GetStatusRequest(), timeout=DEADLINE_S)


def test_the_whole_path_speaks_tls_and_drafts(secured: Secured):
    def drafts() -> bool:
        status = asyncio.run(status_of(secured))
        return status.drafters[0].state == "ready"

    wait_until(drafts, what="the drafter's link over mTLS")

    async def answer():
        async with GatewayClient(secured.addresses["gateway"], secured.access()) as client:
            return await ask(client, [ChatMessage("user", "a b c a b c")], GREEDY)

    assert len(asyncio.run(answer()).token_ids) == 40
    assert asyncio.run(status_of(secured)).drafters[0].num_sequences == 0


async def test_an_operator_looks_at_a_verifier(secured: Secured, monkeypatch: pytest.MonkeyPatch):
    address = secured.addresses["verifier"]
    assert await verifier_status(address) is None
    operator = secured.certificates.role("operator")
    for name, value in (("CA", operator.ca), ("CERT", operator.cert), ("KEY", operator.key)):
        monkeypatch.setenv(f"PACELINE_{name}", value)
    status = await verifier_status(address)
    assert status and len(status.drafters) == 1


async def test_a_drafter_may_call_neither_verifier_nor_gateway(secured: Secured):
    drafter = secured.certificates.role("drafter")
    async with secured.channel("verifier", drafter) as channel:
        stub = verifier_pb2_grpc.VerifierServiceStub(channel)
        call = stub.GetTokenizer(verifier_pb2.GetTokenizerRequest(), timeout=DEADLINE_S)
        assert await call.code() is grpc.StatusCode.PERMISSION_DENIED
    async with secured.channel("gateway", drafter) as channel:
        stub = gateway_pb2_grpc.GatewayServiceStub(channel)
        call = stub.ListModels(pb.ListModelsRequest(), timeout=DEADLINE_S)
        assert await call.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_no_text_and_no_key_in_logs_spans_or_errors(secured: Secured):
    """Answers, refusals of every kind and cancelled calls, all about the canary."""
    wrong_key = f"pl_{'0' * 12}_{CANARY}{'A' * (43 - len(CANARY))}"
    good = [ChatMessage("user", f"Say {CANARY}, please: {CANARY}.")]
    asked = [
        Request(good, GREEDY, workload="canary-test"),
        Request(f"{CANARY} " * 20_000, GREEDY),
        Request([ChatMessage(CANARY, CANARY)], GREEDY),
        Request(good, GREEDY, stop=[CANARY * 20]),
        Request(good, GREEDY, model=CANARY),
        Request(good, GREEDY, request_id=CANARY * 60),
        Request(good, GREEDY, workload=f"{CANARY}\n"),
        Request(good, SamplingParams(temperature=-1)),
        Request(good, SamplingParams(logit_bias={10**6: 1.0})),
        Request(good, SamplingParams(max_tokens=10**9)),
        Request(good, GREEDY, timeout_ms=1),
    ]
    errors: list[str] = []
    for access in (secured.access(), secured.access(wrong_key)):
        async with GatewayClient(secured.addresses["gateway"], access) as client:
            for request in asked:
                try:
                    async for _ in client.generate(request):
                        pass
                except Refusal as refused:
                    errors.append(f"{refused} {refused.violations}")
            async with asyncio.timeout(DEADLINE_S):
                async with contextlib.aclosing(client.generate(asked[0])) as events:
                    with contextlib.suppress(Refusal):
                        await anext(events)
    # All but the first of the good key's, and every one of the wrong key's.
    assert len(errors) == len(asked) - 1 + len(asked)
    wait_until(lambda: bool(secured.sink.named("paceline.round")), what="spans")
    spans = "\n".join(str(span) for span in secured.sink.spans)
    secrets = [CANARY, *secured.keys.values(), *(k[-43:] for k in secured.keys.values())]
    for text in (secured.said(), spans, "\n".join(errors)):
        assert text
        assert not [secret for secret in secrets if secret in text]


async def test_a_sequence_without_credit_waits_and_its_neighbours_go_on(secured: Secured):
    def credit(num_tokens: int) -> verifier_pb2.VerifierGenerateRequest:
        granted = verifier_pb2.Credit(num_tokens=num_tokens)
        return verifier_pb2.VerifierGenerateRequest(credit=granted)

    off = tokens_pb2.DraftPolicy(speculation=tokens_pb2.SPECULATION_OFF)
    opening = verifier_pb2.Open(token_ids=[1, 2, 3], params=params_to_pb(GREEDY), draft=off)
    async with secured.channel("verifier", secured.certificates.role("gateway")) as channel:
        stub = verifier_pb2_grpc.VerifierServiceStub(channel)
        alone = await generate(stub, [1, 2, 3], GREEDY, seed=0)
        slow = stub.Generate()
        await slow.write(verifier_pb2.VerifierGenerateRequest(open=opening))
        await slow.write(credit(5))
        token_ids = list((await slow.read()).tokens.token_ids)
        for index in range(3):
            other = await generate(stub, [7, index], GREEDY, seed=0)
            assert len(other.token_ids) == 40
        # A step serves all that are ready: by now the slow one would have ended.
        assert (await status_of(secured)).num_running == 1
        await slow.write(credit(1000))
        async with asyncio.timeout(DEADLINE_S):
            while (response := await slow.read()).HasField("tokens"):
                token_ids += response.tokens.token_ids
    assert token_ids == alone.token_ids


@pytest.mark.parametrize(
    ("field", "opening"),
    [
        ("request_id", {"request_id": "r" * 257}),
        ("workload", {"workload": "two\nlines"}),
        ("tenant", {"tenant": "t" * 257}),
        ("timeout_ms", {"timeout_ms": 2**32 - 1}),
        ("token_ids", {"token_ids": [1] * (2**18 + 1)}),
    ],
)
async def test_a_verifier_checks_again_what_the_gateway_has_checked(
    secured: Secured, field: str, opening: dict[str, object]
):
    async with secured.channel("verifier", secured.certificates.role("gateway")) as channel:
        message = verifier_pb2.VerifierGenerateRequest(
            open=verifier_pb2.Open(**{"token_ids": [1]} | opening)
        )
        stub = verifier_pb2_grpc.VerifierServiceStub(channel)
        call = stub.Generate(iter([message]), timeout=DEADLINE_S)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call.read()
    refusal = Refusal.from_rpc_error(refused.value)
    assert refusal.code is grpc.StatusCode.INVALID_ARGUMENT
    assert [violation.field for violation in refusal.violations] == [field]


def test_every_process_drains_and_ends_well(secured: Secured):
    assert {name: process.stop() for name, process in secured.processes.items()} == {
        "verifier": 0,
        "drafter": 0,
        "gateway": 0,
    }
