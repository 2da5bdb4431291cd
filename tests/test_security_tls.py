"""TLS on every hop: who gets in with which certificate, and a renewal without a restart."""

import asyncio
import os
import shutil
import socket
import ssl
import subprocess
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from certificates import Certificates
from cryptography import x509
from fakes import FakeVerifier, ids_of, served

from drafter_service.config import DrafterSettings
from drafter_service.drafters import open_drafter
from drafter_service.engine import DraftEngine
from drafter_service.servicer import SERVICE_NAME, DrafterServicer
from gateway.config import GatewaySettings
from gateway.gateway import Gateway
from paceline import telemetry
from paceline.access import Access
from paceline.client import GatewayClient, Unreachable
from paceline.events import Delta, Request
from paceline.roles import CALLERS, ROLES, may_call, roles_of, server_name
from paceline.server import INTERNAL_MESSAGE_BYTES, Refusal, Service, open_channel, refuse_exposure
from paceline.tls import TlsError, TlsFiles, read, server_context
from paceline.v1 import drafter_pb2, drafter_pb2_grpc, verifier_pb2, verifier_pb2_grpc
from verifier_service.config import VerifierSettings

DEADLINE_S = 10.0


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path / "ours")


@pytest.fixture
def others(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path / "theirs")


@asynccontextmanager
async def gateway_of(verifier: str, door: TlsFiles, peer: TlsFiles, **settings):
    gateway = Gateway(
        GatewaySettings(
            port=0,
            verifier=[verifier],
            tls_cert=door.cert,
            tls_key=door.key,
            peer_ca=peer.ca,
            peer_cert=peer.cert,
            peer_key=peer.key,
            **settings,
        ),
        telemetry.set_up("test"),
    )
    await gateway.start()
    try:
        yield gateway
    finally:
        await gateway.close()
        await gateway.service.server.stop(0)


async def text_from(address: str, access: Access) -> str:
    async with asyncio.timeout(DEADLINE_S), GatewayClient(address, access) as client:
        events = [event async for event in client.generate(Request("hi"))]
    return "".join(event.text for event in events if isinstance(event, Delta))


async def status_of_verifier(address: str, tls: TlsFiles) -> grpc.StatusCode:
    async with open_channel(address, tls=tls, server_name=server_name("verifier")) as channel:
        stub = verifier_pb2_grpc.VerifierServiceStub(channel)
        call = stub.GetModel(verifier_pb2.GetModelRequest(), timeout=DEADLINE_S)
        return await call.code()


async def test_an_answer_over_tls_on_every_hop_of_the_gateway(certificates: Certificates):
    fake = FakeVerifier([ids_of("hello")])
    door = certificates.issue("door", "127.0.0.1")
    async with (
        served(fake, tls=certificates.role("verifier")) as (verifier, _),
        gateway_of(verifier, door, certificates.role("gateway")) as gateway,
    ):
        await gateway.wait_ready()
        assert await text_from(gateway.address, Access(ca=certificates.ca)) == "hello"
        with pytest.raises(Unreachable):
            await text_from(gateway.address, Access())


async def test_only_roles_that_may_call_get_through_to_a_verifier(
    certificates: Certificates, others: Certificates
):
    fake = FakeVerifier([ids_of("hello")])
    async with served(fake, tls=certificates.role("verifier")) as (address, _):
        codes = {role: await status_of_verifier(address, certificates.role(role)) for role in ROLES}
        codes["none"] = await status_of_verifier(address, certificates.client())
        stranger = others.role("gateway")
        mixed = TlsFiles(stranger.cert, stranger.key, certificates.ca)
        codes["another CA's"] = await status_of_verifier(address, mixed)
        codes["no certificate"] = await status_of_verifier(address, TlsFiles(ca=certificates.ca))
    assert codes == {
        "gateway": grpc.StatusCode.OK,
        "operator": grpc.StatusCode.OK,
        "verifier": grpc.StatusCode.PERMISSION_DENIED,
        "drafter": grpc.StatusCode.PERMISSION_DENIED,
        "none": grpc.StatusCode.PERMISSION_DENIED,
        "another CA's": grpc.StatusCode.UNAVAILABLE,
        "no certificate": grpc.StatusCode.UNAVAILABLE,
    }
    assert fake.opens == []


async def test_a_stream_is_refused_before_its_first_message(certificates: Certificates):
    fake = FakeVerifier([ids_of("hello")])
    async with (
        served(fake, tls=certificates.role("verifier")) as (address, _),
        open_channel(
            address, tls=certificates.role("drafter"), server_name=server_name("verifier")
        ) as channel,
    ):
        call = verifier_pb2_grpc.VerifierServiceStub(channel).Generate(timeout=DEADLINE_S)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call.read()
    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert fake.opens == []


@pytest.mark.parametrize(("role", "is_welcome"), [("verifier", True), ("gateway", False)])
async def test_a_drafter_takes_verifiers_only(
    certificates: Certificates, role: str, is_welcome: bool
):
    engine = DraftEngine(
        open_drafter(DrafterSettings(drafter="random")), max_sequences=1, max_draft_tokens=4
    )
    service = Service(
        SERVICE_NAME,
        host="127.0.0.1",
        port=0,
        drain_s=0.0,
        message_bytes=INTERNAL_MESSAGE_BYTES,
        with_reflection=False,
        tls=certificates.role("drafter"),
    )
    drafter_pb2_grpc.add_DrafterServiceServicer_to_server(DrafterServicer(engine), service.server)
    engine.start()
    address = await service.start()
    hello = drafter_pb2.Hello(protocol_version=1, vocab_size=10, max_draft_tokens=4)
    try:
        async with open_channel(
            address, tls=certificates.role(role), server_name=server_name("drafter")
        ) as channel:
            call = drafter_pb2_grpc.DrafterServiceStub(channel).Draft(timeout=DEADLINE_S)
            if is_welcome:
                await call.write(drafter_pb2.DraftRequest(hello=hello))
                assert (await call.read()).HasField("welcome")
                call.cancel()
            else:
                assert await call.code() is grpc.StatusCode.PERMISSION_DENIED
    finally:
        await service.server.stop(0)
        await asyncio.to_thread(engine.stop)


async def test_a_gateway_takes_no_drafter_for_a_verifier(certificates: Certificates):
    door, peer = certificates.issue("door", "127.0.0.1"), certificates.role("gateway")
    async with (
        served(FakeVerifier(), tls=certificates.role("drafter")) as (impostor, _),
        gateway_of(impostor, door, peer) as gateway,
    ):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(gateway.wait_ready(), 0.5)


async def test_a_gateway_with_mtls_takes_clients_and_no_services(certificates: Certificates):
    fake = FakeVerifier([ids_of("hello")])
    door = certificates.issue("door", "127.0.0.1")
    async with (
        served(fake, tls=certificates.role("verifier")) as (verifier, _),
        gateway_of(
            verifier, door, certificates.role("gateway"), tls_client_ca=certificates.ca
        ) as gateway,
    ):
        await gateway.wait_ready()

        def access(files: TlsFiles) -> Access:
            return Access(ca=files.ca, cert=files.cert, key=files.key)

        assert await text_from(gateway.address, access(certificates.client())) == "hello"
        with pytest.raises(Refusal) as refused:
            await text_from(gateway.address, access(certificates.role("drafter")))
    assert refused.value.code is grpc.StatusCode.PERMISSION_DENIED


async def test_a_renewed_certificate_is_used_without_a_restart(
    certificates: Certificates, tmp_path: Path
):
    files = certificates.role("verifier")
    caller = certificates.role("gateway")
    async with served(FakeVerifier(), tls=files) as (address, _):
        before = await asyncio.to_thread(serial_of, address, caller)
        certificates.role("verifier")
        renewed = await asyncio.to_thread(serial_of, address, caller)
        # In the middle of the next renewal: a key without its certificate.
        os.replace(_new_key(certificates), files.key)
        kept = await asyncio.to_thread(serial_of, address, caller)
        assert await status_of_verifier(address, caller) is grpc.StatusCode.OK
    assert before != renewed == kept


def _new_key(certificates: Certificates) -> str:
    return certificates.issue("half", "half.example").key


def serial_of(address: str, caller: TlsFiles) -> str:
    """The serial number of the certificate that a port shows."""
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context(cafile=caller.ca)
    context.load_cert_chain(caller.cert, caller.key)
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection((host, int(port)), timeout=DEADLINE_S) as raw,
        context.wrap_socket(raw, server_hostname="127.0.0.1") as connection,
    ):
        return str(connection.getpeercert()["serialNumber"])


async def test_an_http_context_renews_too(certificates: Certificates):
    files = certificates.issue("door", "127.0.0.1")
    context = server_context(TlsFiles(files.cert, files.key))
    server = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0, ssl=context)
    async with server:
        address = "{}:{}".format(*server.sockets[0].getsockname())
        before = await asyncio.to_thread(serial_of, address, files)
        assert await asyncio.to_thread(serial_of, address, files) == before
        certificates.issue("door", "127.0.0.1")
        assert await asyncio.to_thread(serial_of, address, files) != before


async def test_a_gateway_dials_with_its_renewed_certificate(
    certificates: Certificates, others: Certificates
):
    stranger, door = others.role("gateway"), certificates.issue("door", "127.0.0.1")
    peer = TlsFiles(stranger.cert, stranger.key, certificates.ca)
    async with (
        served(FakeVerifier(), tls=certificates.role("verifier")) as (verifier, _),
        gateway_of(verifier, door, peer) as gateway,
    ):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(gateway.wait_ready(), 0.3)
        ours = certificates.role("gateway")
        os.replace(ours.key, peer.key)
        os.replace(ours.cert, peer.cert)
        await asyncio.wait_for(gateway.wait_ready(), DEADLINE_S)


async def test_a_dialler_shows_its_renewed_certificate_when_it_dials_again(
    certificates: Certificates, others: Certificates
):
    theirs = others.role("gateway")
    files = certificates.issue("dialler", server_name("gateway"))
    mixed = TlsFiles(files.cert, files.key, certificates.ca)
    async with served(FakeVerifier(), tls=certificates.role("verifier")) as (address, _):
        os.replace(theirs.cert, files.cert)
        os.replace(theirs.key, files.key)
        assert await status_of_verifier(address, mixed) is grpc.StatusCode.UNAVAILABLE
        certificates.issue("dialler", server_name("gateway"))
        assert await status_of_verifier(address, mixed) is grpc.StatusCode.OK


def test_health_and_reflection_are_open_and_unknown_services_closed():
    nobody = frozenset[str]()
    assert may_call(nobody, "/grpc.health.v1.Health/Check")
    assert may_call(frozenset({"drafter"}), "/grpc.reflection.v1alpha.ServerReflection/Info")
    assert not may_call(frozenset(ROLES), "/some.Other/Call")
    assert not may_call(nobody, "/paceline.v1.VerifierService/Generate")
    for service, callers in CALLERS.items():
        assert {r for r in ROLES if may_call(frozenset({r}), f"/{service}/Any")} == callers


@pytest.mark.parametrize(
    ("names", "roles"),
    [
        (["verifier.paceline", "10.0.0.1"], {"verifier"}),
        (["Gateway.Paceline"], {"gateway"}),
        (["verifier.paceline", "drafter.paceline"], {"verifier", "drafter"}),
        (["verifier.paceline.example.com", "xverifier.paceline", "verifier"], set()),
        (["admin.paceline", ".paceline", ""], set()),
        ([], set()),
    ],
)
def test_a_role_is_a_whole_name(names: list[str], roles: set[str]):
    assert roles_of(names) == roles


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "example.com"])
def test_a_port_beyond_loopback_is_secure_or_named_insecure(host: str):
    for encrypted, authenticated in [(False, False), (True, False), (False, True)]:
        with pytest.raises(SystemExit):
            refuse_exposure(host, False, encrypted=encrypted, authenticated=authenticated)
    refuse_exposure(host, False, encrypted=True, authenticated=True)
    refuse_exposure(host, True)
    refuse_exposure("127.0.0.1", False)


def test_files_that_do_not_fit_are_named_and_not_shown(
    certificates: Certificates, tmp_path: Path, capsys
):
    good, other = certificates.role("verifier"), certificates.role("gateway")
    junk = tmp_path / "junk.pem"
    junk.write_text("canary-7f3a")
    for files in (
        TlsFiles(good.cert, other.key),
        TlsFiles(str(junk), good.key),
        TlsFiles(good.cert, str(junk)),
        TlsFiles(good.cert, good.key, str(junk)),
        TlsFiles(good.cert, str(tmp_path / "absent.pem")),
        TlsFiles(good.cert),
    ):
        with pytest.raises(TlsError) as refused:
            read(files)
        assert "canary" not in str(refused.value)
    for flags in (
        [f"--tls-cert={good.cert}"],
        [f"--tls-client-ca={good.ca}"],
        [f"--tls-cert={good.cert}", f"--tls-key={other.key}"],
        [f"--peer-ca={junk}"],
        [f"--peer-cert={good.cert}", f"--peer-key={good.key}"],
    ):
        with pytest.raises(SystemExit) as stopped:
            VerifierSettings.load(flags)
        assert stopped.value.code == 2
    assert "canary" not in capsys.readouterr().err


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_the_script_makes_certificates_with_roles(tmp_path: Path):
    script = Path(__file__).parents[1] / "deploy" / "certificates.sh"
    for _ in range(2):
        subprocess.run([script, tmp_path, "gateway.example.com"], check=True, capture_output=True)
        for role in ROLES:
            pems = read(
                TlsFiles(
                    str(tmp_path / f"{role}.pem"),
                    str(tmp_path / f"{role}-key.pem"),
                    str(tmp_path / "ca.pem"),
                )
            )
            issued = x509.load_pem_x509_certificate(pems.cert)
            issued.verify_directly_issued_by(x509.load_pem_x509_certificate(pems.ca))
            names = issued.extensions.get_extension_for_class(x509.SubjectAlternativeName)
            assert roles_of(names.value.get_values_for_type(x509.DNSName)) == {role}
    assert (tmp_path / "ca-key.pem").stat().st_mode & 0o077 == 0
