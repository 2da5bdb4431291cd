"""paceline top: what it knows of running answers, over a gateway's address."""

import asyncio
import json

import pytest
from answers import ask
from in_process import services
from tiny import save_tiny_llama
from typer.testing import CliRunner

from drafter_service.config import DrafterSettings
from paceline.cli import main
from paceline.cli.board import Board
from paceline.client import GatewayClient
from paceline.events import WatchedRound
from paceline.params import SamplingParams
from paceline.rounds import RoundReport, TokenSource


def watched(number: int, *, ledger_us: int = 0, **fields) -> WatchedRound:
    report = RoundReport(
        round=number, verify_us=10_000, num_output=1, ledger_us=ledger_us, **fields
    )
    return WatchedRound("req-1", "qa", report, 0)


def test_gain_is_what_the_ledger_says():
    board = Board()
    for number in range(1, 12):
        board.add(watched(number, ledger_us=-10_000 * number), now_s=0.0)
    [line] = board.lines(1.0)
    # Ten rounds of 10 ms after the first gained 100 ms: plain decoding would have taken twice that.
    assert line.gain == pytest.approx(2.0)
    assert board.lines(60.0) == []


def test_lengths_and_acceptance_are_pooled():
    board = Board()
    drafted = {"num_drafted": 4, "num_tested": 3, "num_accepted": 2}
    board.add(watched(1, source=TokenSource.RECYCLED, **drafted), 0.0)
    board.add(watched(2), 0.0)
    [line] = board.lines(0.0)
    parsed = line.as_dict()
    assert (parsed["rounds"], parsed["mean_draft_length"]) == (2, 4.0)
    assert (parsed["source"], parsed["acceptance_rate"]) == ("recycled", 0.6667)


async def test_once_shows_a_running_answer(tmp_path):
    folder = str(save_tiny_llama(tmp_path))
    params = SamplingParams(temperature=0.0, max_tokens=300, ignore_eos=True)
    async with services(folder, DrafterSettings(drafter="lookup")) as gateway:

        def top(*flags: str):
            arguments = ["top", "--once", "--gateway", gateway, "--seconds", "1.5", *flags]
            return CliRunner().invoke(main.app, arguments)

        async with GatewayClient(gateway) as client:
            running = asyncio.gather(*(ask(client, [1, 2, 3, 1, 2], params) for _ in range(3)))
            done = await asyncio.to_thread(top, "--json")
            await running
            shown = await asyncio.to_thread(top)
    assert done.exit_code == 0, done.output
    answers = json.loads(done.stdout)["answers"]
    assert len(answers) == 3
    assert all(answer["output"] > 0 for answer in answers)
    assert shown.exit_code == 0
    assert "gain" in shown.stdout


def test_a_verifier_s_address_must_be_one():
    assert CliRunner().invoke(main.app, ["top", "--verifier", "nowhere"]).exit_code == 2
