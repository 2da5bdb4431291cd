"""API keys: who is let in, as whom, and what is written down of a key."""

import os
import stat
from pathlib import Path

import grpc
import pytest
from click.testing import CliRunner
from fakes import FakeVerifier, gateway_with, ids_of

from gateway.keys import Keys
from paceline.cli import main
from paceline.keys import KeysError, load_keys, new_key, parse_key, save_keys
from paceline.server import Refusal
from paceline.v1 import gateway_pb2 as pb


def keys_command(*arguments: str, status: int = 0) -> str:
    done = CliRunner().invoke(main.load("keys"), list(arguments))
    assert done.exit_code == status, done.output
    return done.stdout.strip()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys.yaml"


def add(file: Path, name: str, *flags: str) -> str:
    return keys_command("add", name, f"--file={file}", *flags)


def bearer(key: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {key}"),)


def tenant_name(keys: Keys, key: str) -> str:
    return keys.identify(dict(bearer(key))).name


def test_a_key_is_shown_once_and_only_its_hash_is_kept(file: Path):
    key = add(file, "support-bot", "--tenant=support", "--max-answers=3", "--tokens-per-s=50")
    secret = key.split("_", 2)[2]
    assert secret not in file.read_text()
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o600
    assert secret not in keys_command("list", f"--file={file}")
    tenant = Keys(str(file)).identify(dict(bearer(key)))
    assert (tenant.name, tenant.max_answers, tenant.is_operator) == ("support", 3, False)
    assert (tenant.tokens_per_s, tenant.burst_tokens) == (50, 3000)


def test_the_file_is_read_again_when_it_changes(file: Path):
    first = add(file, "one")
    keys = Keys(str(file))
    second = add(file, "two")
    assert tenant_name(keys, second) == "two"
    keys_command("remove", "one", f"--file={file}")
    with pytest.raises(Refusal):
        tenant_name(keys, first)
    file.write_text("keys: [")
    assert tenant_name(keys, second) == "two"
    file.unlink()
    assert tenant_name(keys, second) == "two"


def test_every_wrong_key_gets_the_same_answer(file: Path):
    key = add(file, "one")
    _, key_id, secret = key.split("_", 2)
    keys = Keys(str(file))
    wrong = [
        {},
        {"authorization": ""},
        {"authorization": key},
        {"authorization": f"Basic {key}"},
        {"authorization": f"Bearer {key}x"},
        {"authorization": f"Bearer {key[:-1]}"},
        {"authorization": f"Bearer pl_{'0' * 12}_{secret}"},
        {"authorization": f"Bearer {new_key()[0]}"},
        {"authorization": f"Bearer pl_{key_id}_{'A' * 43}"},
        {"authorization": "Bearer " + "é" * 60},
    ]
    messages = set()
    for headers in wrong:
        with pytest.raises(Refusal) as refused:
            keys.identify(headers)
        assert refused.value.code is grpc.StatusCode.UNAUTHENTICATED
        messages.add(refused.value.message)
    assert len(messages) == 1
    assert keys.identify({"authorization": f"bearer  {key}"}).name == "one"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "keys: 1",
        "keys: [canary]",
        "keys: [{name: a}]",
        "keys: [{name: a, id: '000000000000', sha256: canary, tenant: a}]",
        "keys: []\ncanary: 1",
    ],
)
def test_a_file_of_another_shape_is_refused_and_not_repeated(file: Path, text: str):
    file.write_text(text)
    with pytest.raises(KeysError) as refused:
        load_keys(file)
    assert "canary" not in str(refused.value)


def test_keys_of_a_tenant_agree_and_names_are_unique(file: Path):
    add(file, "one", "--tenant=a")
    keys_command("add", "one", "--tenant=b", f"--file={file}", status=1)
    keys_command("add", "two", "--tenant=a", "--weight=2", f"--file={file}", status=1)
    add(file, "two", "--tenant=a", "--priority=2")
    keys_command("remove", "three", f"--file={file}", status=1)
    keys_command("add", "two words", f"--file={file}", status=2)
    keys_command("add", f"--file={file}", status=2)
    entries = load_keys(file)
    assert [entry.name for entry in entries] == ["one", "two"]
    save_keys(file, entries[:1])
    assert [entry.name for entry in load_keys(file)] == ["one"]


def test_a_key_has_256_random_bits():
    key, key_id, _ = new_key()
    presented = parse_key(key)
    assert presented and presented.id == key_id
    assert len(key.split("_", 2)[2]) == 43
    assert new_key()[0] != key


async def code_of(call) -> grpc.StatusCode:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


async def test_every_method_of_the_door_asks_for_the_key(file: Path):
    key = add(file, "one")
    fake = FakeVerifier([ids_of("a")])
    async with gateway_with(fake, api_keys=str(file)) as stub:

        def calls(metadata):
            opening = pb.ChatRequest(open=pb.OpenChat())
            return {
                "Generate": stub.Generate(pb.GenerateRequest(text="a"), metadata=metadata).read(),
                "Chat": stub.Chat(iter([opening]), metadata=metadata).read(),
                "ListModels": stub.ListModels(pb.ListModelsRequest(), metadata=metadata),
                "GetSession": stub.GetSession(pb.GetSessionRequest(), metadata=metadata),
                "CloseSession": stub.CloseSession(pb.CloseSessionRequest(), metadata=metadata),
                "GetTrace": stub.GetTrace(pb.GetTraceRequest(id="a"), metadata=metadata),
                "WatchRounds": stub.WatchRounds(pb.WatchRoundsRequest(), metadata=metadata).read(),
                "WatchRounds of one": stub.WatchRounds(
                    pb.WatchRoundsRequest(id="a"), metadata=metadata
                ).read(),
            }

        for metadata in ((), bearer(new_key()[0])):
            codes = {name: await code_of(call) for name, call in calls(metadata).items()}
            assert set(codes.values()) == {grpc.StatusCode.UNAUTHENTICATED}, codes
        codes = {name: await code_of(call) for name, call in calls(bearer(key)).items()}
    assert codes == {
        "Generate": grpc.StatusCode.OK,
        "Chat": grpc.StatusCode.OK,
        "ListModels": grpc.StatusCode.OK,
        "GetSession": grpc.StatusCode.NOT_FOUND,
        "CloseSession": grpc.StatusCode.NOT_FOUND,
        "GetTrace": grpc.StatusCode.NOT_FOUND,
        "WatchRounds": grpc.StatusCode.PERMISSION_DENIED,
        "WatchRounds of one": grpc.StatusCode.NOT_FOUND,
    }
    # Of all these calls one was an answer, for the key's tenant.
    assert [opening.tenant for opening in fake.opens] == ["one"]


async def test_the_rounds_of_an_answer_belong_to_its_tenant(file: Path):
    keys = {
        "one": bearer(add(file, "one")),
        "two": bearer(add(file, "two")),
        "operator": bearer(add(file, "boss", "--operator")),
    }
    async with gateway_with(FakeVerifier([ids_of("a")]), api_keys=str(file)) as stub:

        async def ask(name: str) -> str:
            call = stub.Generate(pb.GenerateRequest(text="a"), metadata=keys[name])
            answer_id = (await call.read()).started.id
            while await call.read() is not grpc.aio.EOF:
                pass
            return answer_id

        async def trace(name: str, answer_id: str = "") -> str:
            wanted = pb.GetTraceRequest(id=answer_id)
            return (await stub.GetTrace(wanted, metadata=keys[name])).id

        first, last = await ask("one"), await ask("two")
        assert await trace("one") == await trace("one", first) == first
        assert await trace("operator", first) == first
        assert await trace("operator") == await trace("two") == last
        wanted = pb.GetTraceRequest(id=first)
        assert await code_of(stub.GetTrace(wanted, metadata=keys["two"])) == (
            grpc.StatusCode.NOT_FOUND
        )


async def test_a_session_belongs_to_its_tenant(file: Path):
    keys = {name: add(file, name) for name in ("one", "two")}
    fake = FakeVerifier([ids_of("a")])
    async with gateway_with(fake, api_keys=str(file)) as stub:

        def chat(key: str, session_id: str = ""):
            opening = pb.ChatRequest(open=pb.OpenChat(session_id=session_id))
            return stub.Chat(iter([opening]), metadata=bearer(keys[key])).read()

        session_id = (await chat("one")).session.session_id
        wanted = pb.GetSessionRequest(session_id=session_id)
        close = pb.CloseSessionRequest(session_id=session_id)
        not_found = grpc.StatusCode.NOT_FOUND
        assert await code_of(chat("two", session_id)) is not_found
        other = bearer(keys["two"])
        assert await code_of(stub.GetSession(wanted, metadata=other)) is not_found
        assert await code_of(stub.CloseSession(close, metadata=other)) is not_found
        assert (await chat("one", session_id)).session.session_id == session_id
        own = bearer(keys["one"])
        assert await code_of(stub.CloseSession(close, metadata=own)) is grpc.StatusCode.OK
