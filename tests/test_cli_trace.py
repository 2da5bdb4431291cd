"""paceline trace: the tree of one answer, as text and as JSON."""

import json
from collections.abc import Iterator

import grpc
import pytest
from fakes_gateway import TRACE_ID, FakeGateway, serve
from typer.testing import CliRunner

from paceline.cli import main
from paceline.server import Refusal
from paceline.v1 import gateway_pb2 as pb
from paceline.v1 import tokens_pb2

ROUNDS = [
    tokens_pb2.RoundReport(
        round=1,
        num_output=1,
        plain_reason=tokens_pb2.PLAIN_REASON_NO_DRAFT,
        verify_us=110_000,
        batch_sequences=1,
        batch_rows=40,
    ),
    tokens_pb2.RoundReport(
        round=2,
        num_drafted=4,
        num_tested=3,
        num_accepted=2,
        num_output=3,
        source=tokens_pb2.TOKEN_SOURCE_PROMPT_LOOKUP,
        draft_us=400,
        wait_us=1_600,
        verify_us=40_000,
        batch_sequences=2,
        batch_rows=7,
    ),
]
TRACE = pb.GetTraceResponse(
    id="answer-1",
    model="tiny",
    trace_id=TRACE_ID,
    prefill=tokens_pb2.PrefillReport(
        queue_us=200, prefill_us=109_000, num_prompt_tokens=36, num_cached_tokens=32
    ),
    rounds=ROUNDS,
    finished=pb.Finished(
        finish_reason=tokens_pb2.FINISH_REASON_STOP,
        usage=tokens_pb2.Usage(num_prompt_tokens=36, num_completion_tokens=4),
        totals=tokens_pb2.SpeculationTotals(
            num_rounds=2, num_drafted_rounds=1, num_drafted=4, num_tested=3, num_accepted=2
        ),
        time_to_first_token_us=112_000,
        duration_us=155_000,
    ),
)
TREE = f"""\
chat tiny  answer-1  stop
├── 4 tokens in 2 rounds, 155.0 ms, first token 112.0 ms, acceptance 0.67
├── trace {TRACE_ID}
├── queue 0.2 ms
├── prefill 109.0 ms, 36 prompt tokens, 32 of them cached
├── round 1  110.0 ms  plain: no draft  1 output
│   └── verify 110.0 ms, 40 rows of 1 sequences
└── round 2  41.6 ms  2 accepted of 4  3 output
    ├── draft 0.4 ms, 4 tokens, prompt lookup
    ├── wait 1.6 ms
    └── verify 40.0 ms, 7 rows of 2 sequences
"""


@pytest.fixture
def fake() -> FakeGateway:
    gateway = FakeGateway()
    gateway.trace = TRACE
    return gateway


@pytest.fixture
def paceline(fake: FakeGateway) -> Iterator:
    with serve(fake) as address:
        yield lambda *arguments: CliRunner().invoke(
            main.app, list(arguments), env={"PACELINE_GATEWAY": address}
        )


def test_trace_prints_the_rounds_as_a_tree(paceline, fake: FakeGateway):
    done = paceline("trace", "answer-1")
    assert (done.exit_code, done.stdout) == (0, TREE)
    assert [request.id for request in fake.requests] == ["answer-1"]


def test_trace_without_an_id_is_of_the_answer_that_began_last(paceline, fake: FakeGateway):
    assert paceline("trace").stdout == TREE
    assert fake.requests[0].id == ""


def test_trace_of_a_running_and_of_a_failed_answer(paceline, fake: FakeGateway):
    fake.trace = pb.GetTraceResponse(id="a", model="tiny", rounds=ROUNDS[:1])
    assert paceline("trace").stdout.splitlines()[0] == "chat tiny  a  running"
    fake.trace = pb.GetTraceResponse(id="a", model="tiny", error_type="CANCELLED")
    assert paceline("trace").stdout == "chat tiny  a  CANCELLED\n"


def test_trace_as_json(paceline):
    told = json.loads(paceline("trace", "--json").stdout)
    assert (told["id"], told["finish_reason"], told["totals"]["num_accepted"]) == (
        "answer-1",
        "stop",
        2,
    )
    assert told["prefill"]["num_cached_tokens"] == 32
    first, second = told["rounds"]
    assert (first["plain_reason"], first["output"]) == ("no_draft", 1)
    assert (second["source"], second["accepted"], second["drafted"]) == ("prompt_lookup", 2, 4)


def test_an_answer_that_nobody_remembers_is_refused(paceline, fake: FakeGateway):
    fake.refusal = Refusal(grpc.StatusCode.NOT_FOUND, "no such answer is remembered")
    done = paceline("trace", "b")
    assert done.exit_code == 1
    assert done.stderr == "paceline: NOT_FOUND: no such answer is remembered\n"


def test_help_shows_examples(paceline):
    assert "paceline trace --json | jq" in paceline("trace", "--help").stdout
