"""The `paceline` command against a scripted gateway: output, exit codes, interrupts."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from fakes_gateway import DEADLINE_S, TRACE_ID, WORDS, FakeGateway, free_port, serve
from typer.testing import CliRunner, Result

from paceline.cli import main, output
from paceline.client import GatewayClient
from paceline.events import Request
from paceline.params import Violation
from paceline.server import Refusal
from paceline.v1 import gateway_pb2, tokens_pb2

ANSWER = "".join(WORDS)
INVALID = Refusal.invalid([Violation("params.top_p", "must be above 0 and at most 1, is 7")])


@pytest.fixture
def fake() -> FakeGateway:
    return FakeGateway()


@pytest.fixture
def address(fake: FakeGateway) -> Iterator[str]:
    with serve(fake) as address:
        yield address


@pytest.fixture
def paceline(address: str) -> Callable[..., Result]:
    """Runs a command against the fake gateway, with nothing but it in the environment."""

    def run(*arguments: str, stdin: str | None = None) -> Result:
        return CliRunner().invoke(
            main.app, list(arguments), input=stdin, env={"PACELINE_GATEWAY": address}
        )

    return run


def wait_until(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.01)


# The command itself.


def test_help_loads_neither_grpc_nor_torch():
    code = (
        "import sys\n"
        "from paceline.cli.main import app\n"
        "try:\n    app(['--help'])\n"
        "except SystemExit:\n    pass\n"
        "import paceline.cli.up\n"
        "heavy = {'grpc', 'google.protobuf', 'torch', 'opentelemetry'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize("name", main.COMMANDS)
def test_the_list_of_commands_says_what_each_command_says_of_itself(name: str):
    assert (main.load(name).help or "").splitlines()[0] == main.COMMANDS[name]


@pytest.mark.parametrize("name", main.COMMANDS)
def test_every_command_explains_itself_with_examples_and_exit_codes(name: str):
    shown = CliRunner().invoke(main.app, [name, "--help"])
    assert shown.exit_code == 0
    assert "Examples" in shown.stdout and f"paceline {name}" in shown.stdout
    assert "Exit codes:" in shown.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["generate", "x", "--gateway", "nowhere"],
        ["generate", "x", "--temperature", "nan"],
        ["generate", "x", "--seed", "-1"],
        ["generate", "x", "--seed", str(2**64)],
        ["generate", "x", "--max-tokens", str(2**32)],
        ["generate", "x", "--speculation", "sometimes"],
        ["generate", "x", "--raw", "--system", "y"],
        ["generate", "x", "--n", "0"],
        ["generate", "x", "--logprobs", "3"],
        ["generate", "x", "--json", "--logprobs", "-1"],
        ["generate", "x", "--logit-bias", "262"],
        ["generate", "x", "--logit-bias", "262=much"],
        ["generate", "x", "--logit-bias", "-1=2"],
        ["generate", "x", "--logit-bias", "1=2", "--logit-bias", "1=3"],
        ["generate", "x", "--stop-token-id", "-1"],
        ["generate", "x", "--frequency-penalty", "nan"],
        ["generate", "x", "--mode", "exact"],
        ["certify", "--target", "nowhere"],
        ["certify", "--samples", "3"],
        ["certify", "--prompts", "/nonexistent.jsonl"],
        ["doctor", "--dtype", "int8"],
        ["generate"],
        ["health", "localhost"],
        ["compare", "--prompts", "/nonexistent.jsonl"],
        ["up", "--draft-model", "x"],
        ["up", "--gateway-port", "9", "--drafter-port", "9"],
        ["no-such-command"],
    ],
)
def test_a_bad_flag_is_exit_code_2(arguments: list[str]):
    assert CliRunner().invoke(main.app, arguments).exit_code == 2


# generate


def test_generate_streams_the_answer_to_stdout_and_a_summary_to_stderr(paceline: Any):
    done = paceline("generate", "Why is the sky blue?", "--seed", "7")
    assert done.exit_code == 0
    assert done.stdout == ANSWER + "\n"
    assert "9 tokens, 90.0 tokens/s" in done.stderr
    assert "ttft 12 ms" in done.stderr and "acceptance 0.67" in done.stderr
    assert "\x1b" not in done.stdout + done.stderr


def test_generate_sends_every_flag(paceline: Any, fake: FakeGateway):
    done = paceline(
        *("generate", "Hello", "--system", "Be brief.", "--seed", "18446744073709551615"),
        *("--temperature", "0.5", "--top-p", "0.9", "--top-k", "40", "--min-p", "0.1"),
        *("--max-tokens", "4", "--stop", "END", "--stop", "\n\n", "--speculation", "fixed"),
        *("--draft-tokens", "5", "--workload", "coding"),
        *("--repetition-penalty", "1.1", "--presence-penalty", "-0.5", "--min-tokens", "2"),
        *("--frequency-penalty", "1.5", "--logit-bias", "262=-100", "--logit-bias", "7=0.5"),
        *("--stop-token-id", "11", "--stop-token-id", "12", "--ignore-eos"),
        *("--mode", "rejection"),
    )
    assert done.exit_code == 0
    (sent,) = fake.requests
    assert [(m.role, m.content) for m in sent.chat.messages] == [
        ("system", "Be brief."),
        ("user", "Hello"),
    ]
    params = sent.params
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.5, 0.9, 40, 0.1)
    assert params.max_tokens == 4
    assert params.repetition_penalty == 1.1
    assert (params.presence_penalty, params.frequency_penalty) == (-0.5, 1.5)
    assert dict(params.logit_bias) == {262: -100.0, 7: 0.5}
    assert params.min_tokens == 2
    assert list(params.stop_token_ids) == [11, 12]
    assert params.ignore_eos
    assert params.mode == tokens_pb2.SAMPLING_MODE_REJECTION
    assert not params.HasField("num_logprobs")
    assert list(sent.stop) == ["END", "\n\n"]
    assert sent.seed == 2**64 - 1
    assert sent.draft.speculation == tokens_pb2.SPECULATION_FIXED
    assert sent.draft.max_draft_tokens == 5
    assert sent.workload == "coding"


def test_generate_leaves_the_seed_to_the_gateway_when_none_is_given(
    paceline: Any, fake: FakeGateway
):
    paceline("generate", "Hello")
    assert not fake.requests[0].HasField("seed")


def test_generate_reads_a_dash_from_stdin_and_sends_raw_text_as_it_is(
    paceline: Any, fake: FakeGateway
):
    assert paceline("generate", "-", "--raw", stdin="two\nlines\n").exit_code == 0
    assert fake.requests[0].text == "two\nlines\n"


def test_generate_json_is_one_document_of_the_documented_shape(paceline: Any):
    done = paceline("generate", "Hello", "--json", "--seed", "7", "--max-tokens", "5")
    assert json.loads(done.stdout) == {
        "id": "req-1",
        "trace_id": TRACE_ID,
        "text": "".join(WORDS[:5]),
        "token_ids": [100, 101, 102, 103, 104],
        "finish_reason": "length",
        "seed": 7,
        "usage": {"prompt_tokens": 11, "completion_tokens": 5},
        "speculation": {
            "rounds": 2,
            "drafted": 8,
            "tested": 5,
            "accepted": 3,
            "acceptance_rate": 3 / 5,
            "draft_efficiency": 3 / 8,
            "mean_acceptance_length": 2.5,
        },
        "timing": {"ttft_ms": 12.5, "tokens_per_s": 50.0},
    }
    assert done.stderr == ""


def test_generate_json_holds_logprobs_when_they_are_wanted(paceline: Any, fake: FakeGateway):
    done = paceline("generate", "Hello", "--json", "--max-tokens", "2", "--logprobs", "2")
    assert fake.requests[0].params.num_logprobs == 2
    assert json.loads(done.stdout)["logprobs"] == [
        {"token_id": token_id, "logprob": -0.5, "top": [[token_id, -0.5], [7, -1.5]]}
        for token_id in (100, 101)
    ]
    alone = json.loads(paceline("generate", "Hello", "--json", "--logprobs", "0").stdout)
    assert [entry["top"] for entry in alone["logprobs"]] == [[]] * len(WORDS)


def test_generate_prints_each_of_several_answers_under_a_heading(paceline: Any, fake: FakeGateway):
    done = paceline("generate", "Hello", "--n", "2", "--seed", "7")
    assert done.exit_code == 0
    assert fake.requests[0].n == 2
    # As they complete: the fake finishes the last one first.
    assert done.stdout == (
        f"== answer 2 of 2, seed 8\n{ANSWER}\n== answer 1 of 2, seed 7\n{ANSWER}\n"
    )
    assert done.stderr.count("9 tokens, 90.0 tokens/s") == 2


def test_generate_json_of_several_answers_is_one_document_in_their_order(paceline: Any):
    one = json.loads(paceline("generate", "Hello", "--json", "--seed", "7").stdout)
    done = paceline("generate", "Hello", "--json", "--seed", "7", "--n", "3")
    assert json.loads(done.stdout) == {"answers": [one | {"seed": 7 + i} for i in range(3)]}
    assert done.stderr == ""


def test_several_answers_of_which_one_breaks_off_are_not_a_success(
    paceline: Any, fake: FakeGateway
):
    fake.stops_before_finished = True
    done = paceline("generate", "Hello", "--n", "2", "--json")
    assert done.exit_code == 3
    assert done.stdout == ""


def test_generate_json_keeps_stdout_to_itself_when_rounds_are_wanted_too(paceline: Any):
    done = paceline("generate", "Hello", "--json", "--rounds")
    assert json.loads(done.stdout)["text"] == ANSWER
    assert "prompt lookup" in done.stderr


def test_generate_rounds_shows_what_each_round_did(paceline: Any):
    done = paceline("generate", "Hello", "--rounds")
    cells = [re.split(r"\s*│\s*", line.strip("│ \n")) for line in done.stdout.splitlines()]
    assert ["1", "prompt lookup", "4", "3", "2", "3", "0.4", "0.1", "24.6"] in cells
    plain = paceline("generate", "Hello", "--rounds", "--speculation", "off")
    assert "plain: speculation off" in plain.stdout


def test_a_refused_request_is_one_line_that_names_the_field_and_exit_code_1(
    paceline: Any, fake: FakeGateway
):
    fake.refusal = INVALID
    done = paceline("generate", "Hello", "--top-p", "7")
    assert done.exit_code == 1
    assert done.stdout == ""
    assert done.stderr == (
        "paceline: INVALID_ARGUMENT: params.top_p: must be above 0 and at most 1, is 7\n"
    )


def test_a_full_gateway_says_when_to_come_back(paceline: Any, fake: FakeGateway):
    fake.refusal = Refusal(
        grpc.StatusCode.RESOURCE_EXHAUSTED, "the queue is full", retry_after_s=1.5
    )
    done = paceline("generate", "Hello")
    assert done.exit_code == 1
    assert "the queue is full (retry after 1.5 s)" in done.stderr


def test_a_gateway_without_verifier_is_a_refusal_not_an_unreachable_gateway(
    paceline: Any, fake: FakeGateway
):
    fake.refusal = Refusal(grpc.StatusCode.UNAVAILABLE, "no verifier is ready")
    assert paceline("generate", "Hello").exit_code == 1


@pytest.mark.parametrize("arguments", [["generate", "x"], ["chat"], ["rounds"], ["compare"]])
def test_an_unreachable_gateway_is_exit_code_3_and_says_how_to_start_one(arguments: list[str]):
    nowhere = f"127.0.0.1:{free_port()}"
    done = CliRunner().invoke(main.app, [*arguments, "--gateway", nowhere], input="hello\n")
    assert done.exit_code == 3
    assert done.stderr.endswith(
        f"paceline: no gateway answers at {nowhere}; start one with: paceline up\n"
    )


def test_an_answer_that_breaks_off_is_not_a_success(paceline: Any, fake: FakeGateway):
    fake.stops_before_finished = True
    done = paceline("generate", "Hello")
    assert done.exit_code == 3
    assert done.stdout == ANSWER + "\n"


def test_ctrl_c_cancels_the_request_and_exits_130(address: str, fake: FakeGateway):
    fake.released.clear()
    with subprocess.Popen(
        [sys.executable, "-m", "paceline.cli.main", "generate", "x", "--gateway", address],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        begun = os.read(process.stdout.fileno(), 64).decode()
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == 130
        assert process.stderr.read() == ""
    assert ANSWER.startswith(begun)
    assert fake.cancelled.wait(DEADLINE_S)


@pytest.mark.parametrize(
    ("terminal", "written"), [(True, "a\n\tb�[31m�c"), (False, "a\n\tb\x1b[31m\x07c")]
)
def test_a_model_cannot_drive_the_terminal(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, written: str
):
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: terminal)
    monkeypatch.setattr(sys, "stdout", stream)
    output.write_text("a\n\tb\x1b[31m\x07c")
    assert stream.getvalue() == written


async def test_the_client_sends_token_ids_and_keeps_sessions(address: str, fake: FakeGateway):
    async with GatewayClient(address) as client:
        events = [event async for event in client.generate(Request(prompt=[5, 6, 7]))]
        assert len(events) == 5  # started, three rounds, finished
        with pytest.raises(ValueError, match="for 2"):
            await anext(client.generate(Request(prompt=[5], n=2)))
        assert list(fake.requests[0].token_ids.token_ids) == [5, 6, 7]
        assert [model.name for model in await client.list_models()] == ["fake"]
        fake.sessions["mine"] = ["Hello"]
        session = await client.get_session("mine")
        assert [(m.role, m.content) for m in session.messages] == [("user", "Hello")]
        await client.close_session("mine")
        assert fake.sessions == {}


# chat


def test_chat_asks_one_turn_per_line_of_piped_stdin_in_one_session(
    paceline: Any, fake: FakeGateway
):
    done = paceline("chat", "--system", "Be brief.", "--seed", "3", stdin="Hello\n\nAnd again\n")
    assert done.exit_code == 0
    assert done.stdout == f"{ANSWER}\n{ANSWER}\n"
    assert fake.sessions == {"session-1": ["Hello", "And again"]}
    opening, *turns = fake.requests
    assert opening.system == "Be brief."
    assert [turn.seed for turn in turns] == [3, 3]


def test_chat_commands_are_not_sent(paceline: Any, fake: FakeGateway):
    done = paceline("chat", stdin="/rounds\nHello\n/rounds\nAgain\n/quit\nnever sent\n")
    assert done.exit_code == 0
    assert fake.sessions == {"session-1": ["Hello", "Again"]}
    assert done.stdout.count("prompt lookup") == 3  # the rounds of the first answer
    assert done.stderr.split("\n")[:2] == ["rounds on", "rounds off"]


def test_chat_goes_on_with_a_session(paceline: Any, fake: FakeGateway):
    paceline("chat", "--session", "session-7", stdin="Hello\n")
    assert fake.sessions == {"session-7": ["Hello"]}


def test_chat_from_a_pipe_ends_with_the_first_refused_turn(paceline: Any, fake: FakeGateway):
    fake.refusal = INVALID
    done = paceline("chat", stdin="Hello\nAgain\n")
    assert done.exit_code == 1
    assert "params.top_p" in done.stderr
    assert fake.sessions == {"session-1": []}


def test_chat_waits_for_a_turn_that_is_still_being_answered(paceline: Any, fake: FakeGateway):
    fake.refusal = Refusal(grpc.StatusCode.FAILED_PRECONDITION, "a turn is being answered")
    fake.refusals_left = 2
    done = paceline("chat", stdin="Hello\n")
    assert done.exit_code == 0
    assert done.stdout == ANSWER + "\n"
    assert fake.sessions == {"session-1": ["Hello"]}


def test_ctrl_c_stops_one_answer_and_at_the_prompt_the_conversation(
    address: str, fake: FakeGateway
):
    fake.released.clear()
    master, slave = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "paceline.cli.main", "chat", "--gateway", address],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**os.environ, "TERM": "dumb"},
        start_new_session=True,
    )
    os.close(slave)
    seen = bytearray()

    def shows(text: str) -> bool:
        seen.extend(os.read(master, 4096))
        return text.encode() in seen

    try:
        wait_until(lambda: shows("> "), "the prompt")
        os.write(master, b"Hello\n")
        wait_until(lambda: shows("scattered"), "the answer")
        process.send_signal(signal.SIGINT)
        wait_until(lambda: shows("stopped\r\n> "), "the next prompt")
        assert fake.cancelled.wait(DEADLINE_S)
        fake.released.set()
        os.write(master, b"Again\n")
        wait_until(lambda: shows("seed 0\r\n> "), "the second answer")
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == 0
    finally:
        process.kill()
        process.wait()
        os.close(master)
    assert fake.sessions == {"session-1": ["Hello", "Again"]}


# rounds


def test_rounds_prints_a_line_per_round(paceline: Any, fake: FakeGateway):
    report = tokens_pb2.RoundReport(
        round=3,
        num_drafted=4,
        num_tested=3,
        num_accepted=2,
        num_output=3,
        source=tokens_pb2.TOKEN_SOURCE_RECYCLED,
        verify_us=21_000,
    )
    fake.watched = [
        gateway_pb2.WatchRoundsResponse(id="req-9", workload="qa", round=report),
        gateway_pb2.WatchRoundsResponse(id="req-9", round=report, num_missed=5),
    ]
    done = paceline("rounds", "--id", "req-9")
    assert done.exit_code == 0
    assert fake.requests[0].id == "req-9"
    first, second = done.stdout.splitlines()
    assert re.search(r"req-9\s+round\s+3\s+recycled\s+2/3/4 .*verify 21.0 ms\s+\[qa\]$", first)
    assert not second.endswith("]")
    assert done.stderr == "5 rounds missed\n"
    lines = paceline("rounds", "--json").stdout.splitlines()
    assert [json.loads(line)["missed"] for line in lines] == [0, 5]
    parsed = json.loads(lines[0])
    assert (parsed["id"], parsed["workload"], parsed["round"]) == ("req-9", "qa", 3)
    assert (parsed["accepted"], parsed["source"], parsed["verify_us"]) == (2, "recycled", 21_000)


# compare: what it measures is tested in test_bench.py


def test_compare_takes_prompts_from_a_file(paceline: Any, fake: FakeGateway, tmp_path: Path):
    file = tmp_path / "own.jsonl"
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hello"},
    ]
    line = {"id": "x-01", "category": "chat", "messages": messages, "max_tokens": 9}
    file.write_text(json.dumps(line) + "\n\n")
    done = paceline("compare", "--prompts", str(file), "--pairs", "1", "--json")
    assert json.loads(done.stdout)["rows"][0]["category"] == "chat"
    assert [m.content for m in fake.requests[0].chat.messages] == ["Be kind.", "Hello"]
    assert fake.requests[0].workload == "chat"


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "not JSON"),
        ('{"text": "x"}', "an object with a list of messages"),
        ('{"messages": [{"role": "user"}]}', "every message needs a role and a content"),
        ('{"messages": [{"role": "user", "content": "x"}], "category": 3}', "category is not text"),
        ("", "holds no prompts"),
    ],
)
def test_compare_names_the_line_of_a_bad_prompt_file(
    paceline: Any, tmp_path: Path, line: str, complaint: str
):
    file = tmp_path / "p.jsonl"
    file.write_text(line + "\n")
    done = paceline("compare", "--prompts", str(file))
    assert done.exit_code == 2
    assert complaint in " ".join(re.sub("[│╭╮╰╯─]", " ", done.stderr).split())


# certify: its checks are tested in test_certify.py


def test_certify_reports_what_the_gateway_refuses_as_failed_checks(
    paceline: Any, fake: FakeGateway
):
    fake.refusal = INVALID
    done = paceline("certify", "--json", "--samples", "50")
    assert done.exit_code == 1
    (line,) = done.stdout.splitlines()
    found = json.loads(line)
    assert found["passed"] is False
    names = [check["name"] for check in found["checks"]]
    assert names[:5] == [
        *("equality/T=0", "equality/T=0.8", "drafts/seen"),
        *("distribution/coupled", "distribution/rejection"),
    ]
    assert len(names) == len(set(names)) == 5 + 14
    for check in found["checks"]:
        assert not check["passed"]
        assert "params.top_p" in check["detail"] or check["name"] == "drafts/seen"
    assert "certifying: equality/T=0" in done.stderr


def test_certify_prints_a_table_and_the_names_of_what_failed(paceline: Any, fake: FakeGateway):
    fake.refusal = INVALID
    done = paceline("certify")
    assert done.exit_code == 1
    assert re.search(r"parameter/top_p\s*│ FAILED", done.stdout)
    last = done.stdout.splitlines()[-1]
    assert last.startswith("not certified: equality/T=0, equality/T=0.8, drafts/seen, ")


def test_certify_of_nobody_is_exit_code_3():
    nowhere = f"127.0.0.1:{free_port()}"
    done = CliRunner().invoke(main.app, ["certify", "--target", nowhere, "--json"])
    assert (done.exit_code, done.stdout) == (3, "")
    assert "start one with: paceline up" in done.stderr


# health


def test_health_is_an_exit_code(address: str):
    serving = CliRunner().invoke(main.app, ["health", address])
    assert (serving.exit_code, serving.stdout) == (0, "serving\n")
    with serve(FakeGateway(), serving=False) as starting:
        refused = CliRunner().invoke(main.app, ["health", starting])
    assert (refused.exit_code, refused.stdout) == (1, "not serving\n")
    unknown = CliRunner().invoke(main.app, ["health", address, "--service", "no.such.Service"])
    assert unknown.exit_code == 1
    nowhere = CliRunner().invoke(main.app, ["health", f"127.0.0.1:{free_port()}"])
    assert nowhere.exit_code == 1
    assert "nothing answers" in nowhere.stderr


def test_a_web_proxy_in_the_environment_is_not_asked(address: str):
    proxy = f"http://127.0.0.1:{free_port()}"
    done = CliRunner().invoke(main.app, ["health", address], env={"http_proxy": proxy})
    assert done.exit_code == 0
