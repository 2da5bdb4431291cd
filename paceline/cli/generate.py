"""paceline generate: one request, one streamed answer."""

import json
import sys
from contextlib import aclosing
from typing import Annotated

import typer

from paceline.cli import calls, flags, output
from paceline.cli.answer import Answer
from paceline.client import GatewayClient
from paceline.events import ChatMessage, DraftPolicy, Request
from paceline.params import SamplingParams


def command(
    prompt: Annotated[str, typer.Argument(help="What to ask; - reads it from stdin.")],
    gateway: flags.Gateway = flags.DEFAULT_GATEWAY,
    system: flags.System = "",
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the prompt as it is, without chat template.")
    ] = False,
    seed: flags.Seed = None,
    temperature: flags.Temperature = 1.0,
    top_p: flags.TopP = 1.0,
    top_k: flags.TopK = 0,
    min_p: flags.MinP = 0.0,
    max_tokens: flags.MaxTokens = 256,
    stop: flags.Stop = [],  # noqa: B006 (typer copies it)
    speculation: flags.SpeculationMode = flags.SpeculationChoice.AUTO,
    draft_tokens: flags.DraftTokens = 0,
    workload: flags.Workload = "",
    as_json: flags.Json = False,
    rounds: Annotated[
        bool, typer.Option("--rounds", help="Print a table of the rounds afterwards.")
    ] = False,
) -> None:
    """Ask for one answer and stream it.

    [bold]Examples[/bold]

      paceline generate 'Why is the sky blue?' --temperature 0 --rounds

      paceline generate - --system 'Summarise in one sentence.' < article.txt

      paceline generate 'def fibonacci(n):' --raw --seed 7 --json

    Exit codes: 1 the request was refused, 2 a bad flag, 3 no gateway answers,
    130 interrupted.
    """
    if raw and system:
        raise typer.BadParameter("--system needs the chat template that --raw leaves out")
    text = sys.stdin.read() if prompt == "-" else prompt
    messages = [ChatMessage("system", system)] if system else []
    request = Request(
        prompt=text if raw else [*messages, ChatMessage("user", text)],
        params=SamplingParams(
            temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p, max_tokens=max_tokens
        ),
        stop=stop,
        seed=seed,
        draft=DraftPolicy(speculation.value_on_the_wire, draft_tokens),
        workload=workload,
    )
    calls.run(_generate(gateway, request, as_json=as_json, with_rounds=rounds))


async def _generate(gateway: str, request: Request, *, as_json: bool, with_rounds: bool) -> int:
    answer = Answer()
    streamed = ""
    try:
        async with GatewayClient(gateway) as client, aclosing(client.generate(request)) as events:
            async for event in events:
                text = answer.add(event)
                if text and not as_json:
                    output.write_text(text)
                    streamed = text
    finally:
        if streamed and not streamed.endswith("\n"):
            output.write_text("\n")
    if as_json:
        print(json.dumps(answer.as_json(), ensure_ascii=False))
    if with_rounds:
        # With --json, stdout is the document's alone.
        output.console(stderr=as_json).print(output.rounds_table(answer.rounds))
    if not as_json:
        output.print_summary(answer)
    return 0
