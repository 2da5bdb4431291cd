"""`paceline bench` and `paceline compare`, on a scripted gateway and on the real stack."""

import asyncio
import builtins
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from fakes_gateway import DEADLINE_S, FakeGateway, free_port, serve
from in_process import services
from test_bench_report import Page
from tiny import save_tiny_llama
from typer.testing import CliRunner, Result

from drafter_service.config import DrafterSettings
from paceline.bench.plan import Plan, Question
from paceline.bench.runner import Runner
from paceline.bench.sample import Arm, Load, LoadKind, Sample
from paceline.cli import main
from paceline.client import GatewayClient
from paceline.events import ChatMessage
from paceline.server import Refusal
from paceline.v1 import tokens_pb2

OFF, AUTO = tokens_pb2.SPECULATION_OFF, tokens_pb2.SPECULATION_AUTO


@pytest.fixture
def fake() -> FakeGateway:
    return FakeGateway()


@pytest.fixture
def address(fake: FakeGateway) -> Iterator[str]:
    with serve(fake) as address:
        yield address


@pytest.fixture
def paceline(address: str) -> Callable[..., Result]:
    def run(*arguments: str) -> Result:
        return CliRunner().invoke(main.app, list(arguments), env={"PACELINE_GATEWAY": address})

    return run


@pytest.fixture
def own(tmp_path: Path) -> str:
    """Two prompts of one category and one of another."""
    file = tmp_path / "own.jsonl"
    lines = [
        {"messages": [{"role": "user", "content": f"Question {n}"}], "category": category}
        for n, category in enumerate(("chat", "chat", "code"))
    ]
    file.write_text("\n".join(map(json.dumps, lines)))
    return str(file)


def test_bench_interleaves_the_arms_and_writes_json_as_the_last_line(
    paceline: Any, fake: FakeGateway, own: str
):
    done = paceline(
        *("bench", "--prompts", own, "--temperature", "0", "--warm-up", "0"),
        *("--max-tokens", "6", "--json", "-"),
    )
    assert done.exit_code == 0, done.output
    # One token to have the prompt in the cache, then one arm and the other.
    assert [r.params.max_tokens for r in fake.requests] == [1, 6, 6] * 3
    arms = [r.draft.speculation for r in fake.requests]
    assert arms == [OFF, OFF, AUTO, OFF, AUTO, OFF, OFF, OFF, AUTO]
    assert {r.workload for r in fake.requests} == {"chat", "code"}
    *shown, last = done.stdout.splitlines()
    found = json.loads(last)
    assert [row["category"] for row in found["rows"]] == ["chat", "code", "all"]
    overall = found["rows"][-1]
    assert (overall["pairs"], overall["identical"], overall["prompts"]) == (3, 3, 3)
    # Three answers of two rounds, each with a token of the target model's own.
    assert (overall["rounds"], overall["tested"], overall["accepted"]) == (6, 18, 12)
    assert overall["mean_acceptance_length"] == pytest.approx(3.0)
    assert overall["tokens_per_round"] == {"3": 6}
    assert overall["plain"]["tokens"] == overall["speculative"]["tokens"] == 18
    assert overall["finding"] == "no difference shown"
    assert found["circumstances"]["model"] == "fake"
    text = "\n".join(shown)
    assert "Identical token ids in 3 of 3 pairs." in text
    assert "3/3" in text and "break-even" in text
    assert "measuring 6/6" in done.stderr
    # Prompts stay where they are.
    assert "Question" not in done.output


def test_bench_takes_categories_limits_pairs_seeds_and_loads(
    paceline: Any, fake: FakeGateway, own: str, tmp_path: Path
):
    out = tmp_path / "out.json"
    done = paceline(
        *("bench", "--prompts", own, "--categories", "chat", "--limit", "1", "--pairs", "2"),
        *("--temperature", "0,0.5", "--concurrency", "1,2", "--rate", "500", "--seed", "7"),
        *("--warm-up", "1", "--speculation", "fixed", "--draft-tokens", "3"),
        *("--max-tokens", "3", "--json", str(out)),
    )
    assert done.exit_code == 0, done.output
    asked = [r for r in fake.requests if r.params.max_tokens == 3]
    # A pair to warm up, then three loads of two temperatures and two pairs.
    assert len(asked) == 2 + 3 * 2 * 2 * 2
    assert {r.seed for r in asked} == {7, 8}
    assert {r.params.temperature for r in asked} == {0.0, 0.5}
    drafts = {(r.draft.speculation, r.draft.max_draft_tokens) for r in asked}
    assert drafts == {(OFF, 0), (tokens_pb2.SPECULATION_FIXED, 3)}
    found = json.loads(out.read_text())
    assert [row["load"] for row in found["loads"][::2]] == [
        {"kind": "closed", "value": 1.0},
        {"kind": "closed", "value": 2.0},
        {"kind": "open", "value": 500.0},
    ]
    assert "Under load" in done.stdout and "500 per second" in done.stdout


def test_bench_counts_what_fails_and_goes_on(
    paceline: Any, fake: FakeGateway, own: str, tmp_path: Path
):
    fake.refusal = Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "full")
    # The first prompt's warming and its plain answer.
    fake.refusals_left = 2
    plots = tmp_path / "plots"
    done = paceline(
        *("bench", "--prompts", own, "--temperature", "0", "--warm-up", "0"),
        *("--plots", str(plots)),
    )
    assert done.exit_code == 0, done.output
    assert (plots / "speed-up.png").read_bytes().startswith(b"\x89PNG")
    assert len(list(plots.iterdir())) == 7
    assert "Requests that failed and are in no figure but this: 1 plain RESOURCE_EXHAUSTED." in (
        done.stdout
    )
    assert "Identical token ids in 2 of 2 pairs." in done.stdout
    assert "a request is refused: RESOURCE_EXHAUSTED: full" in done.stderr


def test_bench_without_a_complete_pair_is_exit_code_1(
    paceline: Any, fake: FakeGateway, own: str, tmp_path: Path
):
    fake.stops_before_finished = True
    html = tmp_path / "r.html"
    done = paceline("bench", "--prompts", own, "--temperature", "0", "--html", str(html))
    assert done.exit_code == 1
    assert "No pair of answers is complete." in done.stdout
    assert "3 plain UNREACHABLE, 3 speculative UNREACHABLE" in done.stdout
    assert "No pair of answers is complete." in Page(html.read_text()).words


def test_bench_fails_when_a_pair_differs(paceline: Any, fake: FakeGateway, own: str):
    fake.diverges = True
    done = paceline("bench", "--prompts", own, "--temperature", "0")
    assert done.exit_code == 1
    assert "3 of 3 pairs DIFFER: speculation changed the answer." in done.stdout


def test_bench_needs_a_gateway_to_begin(own: str):
    nowhere = f"127.0.0.1:{free_port()}"
    done = CliRunner().invoke(main.app, ["bench", "--prompts", own, "--target", nowhere])
    assert done.exit_code == 3
    assert f"no gateway answers at {nowhere}" in done.stderr


@pytest.mark.parametrize(
    "flags",
    [
        ("--temperature", "warm"),
        ("--temperature", "0,0.001"),
        ("--temperature", "nan"),
        ("--concurrency", "0"),
        ("--concurrency", "1.5"),
        ("--concurrency", ""),
        ("--rate", "-1"),
        ("--categories", "no-such"),
        ("--speculation", "off"),
        ("--json", "no-such-folder/out.json"),
        ("--html", "no-such-folder/out.html"),
        ("--prompts", "no-such.jsonl"),
    ],
)
def test_a_bad_flag_is_found_before_anything_is_measured(flags: tuple[str, str]):
    assert CliRunner().invoke(main.app, ["bench", *flags]).exit_code == 2


@pytest.mark.parametrize("command", ["bench", "compare"])
def test_no_category_may_be_taken_for_all_of_them(command: str, tmp_path: Path):
    file = tmp_path / "p.jsonl"
    message = {"role": "user", "content": "x"}
    file.write_text(json.dumps({"messages": [message], "category": "all"}))
    done = CliRunner().invoke(main.app, [command, "--prompts", str(file)])
    assert done.exit_code == 2 and "no category may be called all" in done.stderr


def test_a_report_without_matplotlib_is_refused_at_once_and_says_what_to_install(
    paceline: Any, fake: FakeGateway, own: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in [name for name in sys.modules if name.startswith("matplotlib")]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("figures", "drawings"):
        monkeypatch.delitem(sys.modules, f"paceline.bench.{name}", raising=False)
    imported = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return imported(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    done = paceline("bench", "--prompts", own, "--html", str(tmp_path / "r.html"))
    assert done.exit_code == 2
    assert "pip install 'paceline[bench]'" in done.stderr
    assert fake.requests == []
    # Numbers need no figures.
    assert paceline("bench", "--prompts", own, "--limit", "1").exit_code == 0


def test_the_projects_own_prompts_come_with_the_package(paceline: Any, fake: FakeGateway):
    done = paceline(
        *("bench", "--limit", "1", "--temperature", "0", "--max-tokens", "1", "--warm-up", "0")
    )
    assert done.exit_code == 0, done.output
    assert len({r.workload for r in fake.requests}) == 9
    assert "Identical token ids in 9 of 9 pairs." in done.stdout


class HoldingGateway(FakeGateway):
    """Holds the answers of more than one token, until they are released for good."""

    held = False

    def _answer(self, params: Any, *rest: Any) -> Iterator[tuple[str, Any]]:
        if params.max_tokens > 1 and not self.held:
            self.held = True
            self.released.clear()
        return super()._answer(params, *rest)


async def test_an_open_load_is_timed_from_the_intended_start():
    """Arrivals do not wait for answers: held ones all wait, from the moment they were due."""
    fake = HoldingGateway()
    questions = [Question((ChatMessage("user", str(n)),), "qa") for n in range(4)]
    plan = Plan(questions, (0.0,), (Load(LoadKind.OPEN, 1000.0),), max_tokens=3, warm_up=0)
    samples: list[Sample] = []

    def refused(refusal: Refusal) -> None:
        raise AssertionError(refusal)

    loop = asyncio.get_running_loop()
    with serve(fake) as address:
        async with GatewayClient(address) as client, asyncio.timeout(30):
            runner = Runner(client, plan, samples.append, refused)
            running = asyncio.create_task(runner.run())
            # Four that warm the cache, then the plain arm.
            while len(fake.requests) < 8:
                await asyncio.sleep(0.005)
            began = loop.time()
            while loop.time() < began + 0.2:
                await asyncio.sleep(0.02)
            fake.released.set()
            await running
    (block,) = plan.blocks()
    plain = sorted((s for s in samples if s.arm is Arm.PLAIN), key=lambda s: s.start_us)
    offsets = [sample.start_us - plain[0].start_us for sample in plain]
    assert offsets == pytest.approx([round(s * 1e6) for s in block.arrivals_s], abs=2)
    assert len(plain) == 4 and all(sample.duration_us >= 200_000 for sample in plain)


def test_ctrl_c_reports_what_was_measured_until_then(own: str):
    class Gateway(FakeGateway):
        """Hangs from its third measured answer on."""

        def _answer(self, params: Any, *rest: Any) -> Iterator[tuple[str, Any]]:
            if sum(request.params.max_tokens > 1 for request in self.requests) > 2:
                self.released.clear()
            return super()._answer(params, *rest)

    fake = Gateway()
    with (
        serve(fake) as address,
        subprocess.Popen(
            [
                *(sys.executable, "-m", "paceline.cli.main", "bench", "--target", address),
                *("--prompts", own, "--temperature", "0", "--warm-up", "0"),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        deadline = time.monotonic() + 3 * DEADLINE_S
        while fake.released.is_set():
            assert time.monotonic() < deadline, "the third answer was not asked for"
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        try:
            stdout, stderr = process.communicate(timeout=3 * DEADLINE_S)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "Identical token ids in 1 of 1 pairs." in stdout
    assert "interrupted after 2 of 6 answers" in stderr and "Traceback" not in stderr


# compare


def test_compare_is_bench_on_built_in_prompts(paceline: Any, fake: FakeGateway):
    done = paceline("compare", "--limit", "2", "--pairs", "2", "--json", "--max-tokens", "5")
    assert done.exit_code == 0, done.output
    asked = [r for r in fake.requests if r.params.max_tokens == 5]
    # A pair to warm up, then two pairs of two prompts at two temperatures.
    assert len(asked) == 2 + 2 * 2 * 2 * 2
    assert {r.params.temperature for r in asked} == {0.0, 0.8}
    found = json.loads(done.stdout)
    assert [(row["category"], row["temperature"]) for row in found["rows"]] == [
        (category, temperature)
        for temperature in (0.0, 0.8)
        for category in ("coding", "summarisation", "all")
    ]
    assert found["rows"][-1]["pairs"] == 4


def test_compare_prints_one_table_and_fails_when_an_answer_differs(
    paceline: Any, fake: FakeGateway
):
    done = paceline("compare", "--limit", "1")
    assert done.exit_code == 0
    assert "Plain against speculative decoding" in done.stdout
    assert "Latency" not in done.stdout and "2/2" in done.stdout
    fake.diverges = True
    done = paceline("compare", "--limit", "1", "--pairs", "1")
    assert done.exit_code == 1
    assert "0/1 DIFFER" in done.stdout


# The real stack


async def test_the_real_stack_is_measured_and_reported(tmp_path: Path):
    target = str(save_tiny_llama(tmp_path / "target"))
    file, html, out = tmp_path / "p.jsonl", tmp_path / "report.html", tmp_path / "out.json"
    lines = [
        {"messages": [{"role": "user", "content": "one two three " * n}], "category": category}
        for n, category in enumerate(("repeats", "repeats", "other"), start=1)
    ]
    file.write_text("\n".join(map(json.dumps, lines)))
    drafter = DrafterSettings(drafter="model", model=target, threads=1)
    async with services(target, drafter) as address:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "paceline.cli.main", "bench", "--target", address),
            *("--prompts", str(file), "--max-tokens", "16", "--concurrency", "1,2"),
            *("--rate", "50", "--temperature", "0.8", "--speculation", "fixed"),
            *("--draft-tokens", "4", "--json", str(out), "--html", str(html)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        stdout, stderr = await process.communicate()
    assert process.returncode == 0, stderr.decode()
    assert b"Identical token ids in 9 of 9 pairs." in stdout
    found = json.loads(out.read_text())
    assert found["identical"] == {"pairs": 9, "identical": 9} and found["errors"] == []
    overall = found["rows"][-1]
    assert overall["drafted"] >= overall["tested"] >= overall["accepted"]
    assert overall["drafted"] > 0 and overall["economics"]["drafted_round_steps"] > 0
    assert overall["plain"]["ttft_ms"]["p50"] > 0
    words = Page(html.read_text()).words
    assert "repeats" in words and "other" in words
