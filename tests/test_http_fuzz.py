"""Bodies that nobody means: no crash, no 5xx, and nothing of what was sent in the answer.

Through a real socket. The strategies run in a thread; the gateway keeps the event loop.
"""

import asyncio
import json
from typing import Any

import httpx
import schemathesis
from fakes import EOS, FakeVerifier, ids_of
from http_door import open_door
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from gateway.http.bodies import ChatBody, CompletionBody

# No name: an unknown field that looks like one is told by name.
CANARY = "canary 7f3a"
PATHS = {"/v1/chat/completions": ChatBody, "/v1/completions": CompletionBody}
BOUNDED = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    phases=(Phase.generate,),
    suppress_health_check=list(HealthCheck),
)

numbers = st.one_of(
    st.integers(), st.floats(), st.sampled_from([0, -1, 2**31, 2**32, 2**63, 2**64, 10**400, 1e308])
)
texts = st.one_of(st.text(max_size=8), st.just(CANARY), st.just("\ud800"), st.just("\0"))
values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, texts),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.one_of(texts, st.sampled_from(["content", "role", "type"])), inner),
    ),
    max_leaves=8,
)
messages = st.lists(
    st.one_of(st.fixed_dictionaries({"role": st.sampled_from(["user", CANARY]), "content": texts})),
    max_size=3,
)


def bodies(path: str) -> st.SearchStrategy[Any]:
    """Mostly good bodies with a few fields that are anything."""
    good = {"messages": messages} if "chat" in path else {"prompt": st.one_of(texts, values)}
    names = st.one_of(st.sampled_from(sorted(PATHS[path].model_fields)), st.just(CANARY))
    return st.builds(
        lambda base, odd: base | odd,
        st.fixed_dictionaries(good),
        st.dictionaries(names, values, max_size=4),
    )


requests = st.sampled_from(sorted(PATHS)).flatmap(lambda p: st.tuples(st.just(p), bodies(p)))


def check(response: httpx.Response) -> None:
    assert response.status_code < 500
    if response.status_code != 200:
        error = response.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert CANARY not in response.text


def answering() -> FakeVerifier:
    return FakeVerifier([[*ids_of("ok"), EOS]])


async def test_any_body_gets_an_answer_or_an_error_that_repeats_nothing():
    def run(url: str) -> None:
        with httpx.Client(base_url=url, trust_env=False) as client:

            @BOUNDED
            @given(
                st.sampled_from(sorted(PATHS)).flatmap(lambda p: st.tuples(st.just(p), bodies(p)))
            )
            def post(request: tuple[str, Any]) -> None:
                path, body = request
                content = json.dumps(body).encode()
                headers = {"content-type": "application/json"}
                check(client.post(path, content=content, headers=headers))

            post()

    async with open_door(answering()) as (gateway, _, _):
        await asyncio.to_thread(run, f"http://{gateway.http_address}")


async def test_any_bytes_get_an_error():
    def run(url: str) -> None:
        with httpx.Client(base_url=url, trust_env=False) as client:

            @BOUNDED
            @given(st.one_of(st.binary(max_size=64), st.text(max_size=16).map(str.encode)))
            def post(content: bytes) -> None:
                headers = {"content-type": "application/json"}
                response = client.post("/v1/completions", content=content, headers=headers)
                check(response)
                assert response.status_code == 400

            post()

    async with open_door(answering()) as (gateway, fake, _):
        await asyncio.to_thread(run, f"http://{gateway.http_address}")
    assert not fake.opens


async def test_the_published_schema_is_kept_to():
    def run(url: str) -> int:
        schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
        tried = 0
        for found in schema.get_all_operations():
            operation = found.ok()

            @settings(BOUNDED, max_examples=12)
            @given(operation.as_strategy())
            def call(case: Any) -> None:
                response = case.call(base_url=url)
                # A model that is not there is the only thing that valid input may meet.
                assert response.status_code in (200, 400, 404)

            call()
            tried += 1
        return tried

    async with open_door(answering()) as (gateway, _, _):
        tried = await asyncio.to_thread(run, f"http://{gateway.http_address}")
    assert tried == 5
