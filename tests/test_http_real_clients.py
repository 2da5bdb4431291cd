"""Clients that others wrote, unmodified: `llm`, LangChain, `curl -N`, and calls by reflection."""

import asyncio
import json
import os
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import grpc
import pytest
from fakes import DEADLINE_S, gateway_for, served
from google.protobuf import descriptor_pool, json_format, message_factory
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from http_door import IDS, TEXT, fake_verifier, open_door

SERVICE = "paceline.v1.GatewayService"
# Importing a client takes seconds on a busy machine.
CLIENT_S = 20 * DEADLINE_S


async def output_of(*command: str, env: dict[str, str] | None = None) -> str:
    process = await asyncio.create_subprocess_exec(
        *command,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | (env or {}),
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), CLIENT_S)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, err.decode()
    return out.decode()


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("llm"), reason="llm is not installed")
async def test_llm_asks_by_its_configuration_alone(tmp_path: Path):
    async with open_door() as (gateway, fake, _):
        entry = {"model_id": "ours", "model_name": "tiny"}
        entry["api_base"] = f"http://{gateway.http_address}/v1"
        # YAML holds JSON.
        (tmp_path / "extra-openai-models.yaml").write_text(json.dumps([entry]))
        # Of its plugins one package is here for its weights alone, without what it runs on.
        env = {"LLM_USER_PATH": str(tmp_path), "LLM_LOAD_PLUGINS": ""}
        llm = (sys.executable, "-m", "llm", "-m", "ours", "-s", "Be brief.")
        streamed = await output_of(*llm, "-o", "seed", "7", "Say it", env=env)
        whole = await output_of(*llm, "--no-stream", "-o", "temperature", "0.5", "Say it", env=env)
        followed = await output_of(*llm[:3], "-c", "-m", "ours", "and?", env=env)
    assert streamed.strip() == whole.strip() == followed.strip() == TEXT
    first, second, third = fake.opens
    assert (first.seed, second.params.temperature) == (7, 0.5)
    assert list(first.token_ids) == list(second.token_ids)
    # The conversation is the client's to keep: its next question comes with it.
    assert list(third.token_ids)[: len(first.token_ids)] == list(first.token_ids)


@pytest.mark.slow
async def test_langchain_gets_messages_and_streams():
    langchain_openai = pytest.importorskip("langchain_openai")
    asked = [("system", "Be brief."), ("human", "Say it")]
    async with open_door() as (gateway, fake, _):
        model = langchain_openai.ChatOpenAI(
            base_url=f"http://{gateway.http_address}/v1",
            api_key="none",
            model="tiny",
            max_retries=0,
            max_tokens=33,
            temperature=0.5,
            seed=7,
            stream_usage=True,
        )
        whole = await model.ainvoke(asked)
        chunks = [chunk async for chunk in model.astream(asked)]
    streamed: Any = chunks[0]
    for chunk in chunks[1:]:
        streamed += chunk
    assert whole.content == streamed.content == TEXT
    assert whole.response_metadata["finish_reason"] == "stop"
    assert streamed.response_metadata["finish_reason"] == "stop"
    assert whole.usage_metadata["output_tokens"] == len(IDS)
    assert streamed.usage_metadata["output_tokens"] == len(IDS)
    assert whole.usage_metadata["input_tokens"] == len(fake.opens[0].token_ids)
    for opening in fake.opens:
        assert (opening.params.max_tokens, opening.params.temperature) == (33, 0.5)
        assert opening.seed == 7


@pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed")
async def test_curl_shows_each_frame_as_it_comes():
    fake = fake_verifier()
    fake.pause_before = 2
    async with open_door(fake) as (gateway, _, _):
        body = {"messages": [{"role": "user", "content": "Say it"}], "stream": True}
        process = await asyncio.create_subprocess_exec(
            *("curl", "--silent", "--show-error", "--no-buffer", "--noproxy", "*"),
            *("--header", "Content-Type: application/json", "--data", json.dumps(body)),
            f"http://{gateway.http_address}/v1/chat/completions",
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        try:
            async with asyncio.timeout(DEADLINE_S):
                early = [await process.stdout.readline() for _ in range(3)]
                # The second round is still held back.
                assert b'"content":"hello' in early[2]
                fake.released.set()
                rest = (await process.stdout.read()).splitlines()
                assert await process.wait() == 0
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    assert rest[-2] == b"data: [DONE]"
    frames = [json.loads(line[6:]) for line in [*early, *rest[:-2]] if line.startswith(b"data: {")]
    text = "".join(frame["choices"][0]["delta"].get("content", "") for frame in frames)
    assert text == TEXT


async def test_a_caller_without_our_files_finds_and_calls_everything_by_reflection():
    """As grpcurl does: descriptors from the server, JSON in, JSON out."""

    def call(address: str) -> tuple[list[str], list[str], list[dict[str, Any]]]:
        with grpc.insecure_channel(address) as channel:
            known = ProtoReflectionDescriptorDatabase(channel)
            pool = descriptor_pool.DescriptorPool(known)
            service = pool.FindServiceByName(SERVICE)
            method = service.methods_by_name["Generate"]
            request = message_factory.GetMessageClass(method.input_type)()
            response = message_factory.GetMessageClass(method.output_type)
            asked = {"text": "Say it", "params": {"maxTokens": 33}, "seed": "7"}
            json_format.ParseDict(asked, request)
            generate = channel.unary_stream(
                f"/{SERVICE}/Generate",
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=response.FromString,
            )
            answers = [json_format.MessageToDict(m) for m in generate(request, timeout=DEADLINE_S)]
            return list(known.get_services()), [m.name for m in service.methods], answers

    async with (
        served(fake_verifier()) as (address, _),
        gateway_for(address, reflection=True) as (gateway, _),
    ):
        await gateway.wait_ready()
        services, methods, answers = await asyncio.to_thread(call, gateway.address)
    assert {SERVICE, "grpc.health.v1.Health"} <= set(services)
    assert {"Generate", "Chat", "ListModels", "WatchRounds", "GetTrace"} <= set(methods)
    deltas = [answer["delta"] for answer in answers if "delta" in answer]
    assert "".join(delta.get("text", "") for delta in deltas) == TEXT
    assert answers[0]["started"]["seed"] == "7"
    assert answers[-1]["finished"]["finishReason"] == "FINISH_REASON_STOP"
