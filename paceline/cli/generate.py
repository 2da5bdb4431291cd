"""paceline generate: one request, one streamed answer or several."""

import json
import sys
from contextlib import aclosing
from dataclasses import replace
from typing import Annotated

import typer

from paceline.cli import calls, flags, output
from paceline.cli.answer import Answer
from paceline.client import GatewayClient
from paceline.events import ChatMessage, DraftPolicy, Finished, Request
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
    repetition_penalty: flags.RepetitionPenalty = 1.0,
    presence_penalty: flags.PresencePenalty = 0.0,
    frequency_penalty: flags.FrequencyPenalty = 0.0,
    logit_bias: flags.LogitBias = [],  # noqa: B006 (typer copies them)
    max_tokens: flags.MaxTokens = 256,
    min_tokens: flags.MinTokens = 0,
    stop_token_ids: flags.StopTokenIds = [],  # noqa: B006
    ignore_eos: flags.IgnoreEos = False,
    stop: flags.Stop = [],  # noqa: B006
    logprobs: flags.Logprobs = None,
    n: flags.Answers = 1,
    mode: flags.Mode = flags.ModeChoice.COUPLED,
    speculation: flags.SpeculationMode = flags.SpeculationChoice.AUTO,
    draft_tokens: flags.DraftTokens = 0,
    workload: flags.Workload = "",
    as_json: flags.Json = False,
    rounds: Annotated[
        bool, typer.Option("--rounds", help="Print a table of the rounds afterwards.")
    ] = False,
) -> None:
    """Ask for one answer and stream it, or for several with --n.

    [bold]Examples[/bold]

      paceline generate 'Why is the sky blue?' --temperature 0 --rounds

      paceline generate - --system 'Summarise in one sentence.' < article.txt

      paceline generate 'def fibonacci(n):' --raw --seed 7 --json

      paceline generate 'Name a colour.' --n 4 --temperature 0.8 --seed 7

    Exit codes: 1 the request was refused, 2 a bad flag, 3 no gateway answers,
    130 interrupted.
    """
    if raw and system:
        raise typer.BadParameter("--system needs the chat template that --raw leaves out")
    if logprobs is not None and not as_json:
        raise typer.BadParameter("--logprobs needs --json")
    text = sys.stdin.read() if prompt == "-" else prompt
    messages = [ChatMessage("system", system)] if system else []
    request = Request(
        prompt=text if raw else [*messages, ChatMessage("user", text)],
        params=SamplingParams(
            mode=mode.value_on_the_wire,
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            presence_penalty=presence_penalty,
            frequency_penalty=frequency_penalty,
            logit_bias=flags.logit_bias(logit_bias),
            max_tokens=max_tokens,
            min_tokens=min_tokens,
            stop_token_ids=stop_token_ids,
            ignore_eos=ignore_eos,
            num_logprobs=logprobs,
        ),
        stop=stop,
        seed=seed,
        draft=DraftPolicy(speculation.value_on_the_wire, draft_tokens),
        workload=workload,
    )
    if n == 1:
        calls.run(_generate(gateway, request, as_json=as_json, with_rounds=rounds))
    else:
        request = replace(request, n=n)
        calls.run(_generate_many(gateway, request, as_json=as_json, with_rounds=rounds))


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
    _print_about(answer, as_json=as_json, with_rounds=with_rounds)
    return 0


async def _generate_many(
    gateway: str, request: Request, *, as_json: bool, with_rounds: bool
) -> int:
    """Each answer is printed as a whole, when it is complete."""
    answers = [Answer() for _ in range(request.n)]
    async with GatewayClient(gateway) as client, aclosing(client.generate_many(request)) as events:
        async for index, event in events:
            answers[index].add(event)
            if isinstance(event, Finished) and not as_json:
                output.print_answer(answers[index], index + 1, request.n)
                _print_about(answers[index], as_json=False, with_rounds=with_rounds)
    if as_json:
        document = {"answers": [answer.as_json() for answer in answers]}
        print(json.dumps(document, ensure_ascii=False))
        for answer in answers:
            _print_about(answer, as_json=True, with_rounds=with_rounds)
    return 0


def _print_about(answer: Answer, *, as_json: bool, with_rounds: bool) -> None:
    """What is told of a complete answer, after it."""
    if with_rounds:
        # With --json, stdout is the document's alone.
        output.console(stderr=as_json).print(output.rounds_table(answer.rounds))
    if not as_json:
        output.print_summary(answer)
