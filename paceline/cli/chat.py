"""paceline chat: a conversation over one stream, kept at the gateway.

The event loop runs only while something is asked or answered, so that input() has the terminal,
its line editing and Ctrl-C to itself.
"""

import asyncio

# Line editing and history for input().
import readline  # noqa: F401
import sys
from contextlib import aclosing
from dataclasses import replace
from typing import Annotated

import grpc
import typer

from paceline.cli import calls, flags, output
from paceline.cli.answer import Answer
from paceline.client import GatewayClient
from paceline.client_errors import Unreachable
from paceline.conversation import Conversation
from paceline.events import DraftPolicy, OpenChat
from paceline.params import SamplingParams
from paceline.server import Refusal

# After a cut answer the gateway may still hold the session's turn for a moment.
_BUSY_RETRIES = 10
_BUSY_PAUSE_S = 0.2


def command(
    gateway: flags.Gateway = flags.DEFAULT_GATEWAY,
    system: flags.System = "",
    session: Annotated[
        str, typer.Option(metavar="ID", help="Go on with this session.", show_default=False)
    ] = "",
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
    rounds: Annotated[
        bool, typer.Option("--rounds", help="Print a table of the rounds after each answer.")
    ] = False,
) -> None:
    """Hold a conversation in the terminal.

    /rounds turns the table of rounds on or off, /quit ends. Ctrl-C stops an
    answer; at the prompt it ends the conversation. Without a terminal, each
    line of stdin is a turn.

    [bold]Examples[/bold]

      paceline chat --system 'You are a patient teacher.'

      printf 'Hello.\\nAnd again?\\n' | paceline chat --seed 7 --temperature 0

    Exit codes: 1 a turn was refused, 2 a bad flag, 3 no gateway answers.
    """
    opening = OpenChat(
        session_id=session,
        system=system,
        params=SamplingParams(
            temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p, max_tokens=max_tokens
        ),
        stop=stop,
        draft=DraftPolicy(speculation.value_on_the_wire, draft_tokens),
        workload=workload,
    )
    with asyncio.Runner() as runner:
        chat = _Chat(runner, gateway, opening, seed)
        try:
            code = chat.hold(with_rounds=rounds)
        except KeyboardInterrupt:
            code = calls.EXIT_INTERRUPTED
        except (Refusal, Unreachable) as error:
            code = calls.report(error)
        finally:
            chat.close()
    raise typer.Exit(code)


class _Chat:
    """The conversation's stream, opened when it is needed, and the loop it lives on."""

    def __init__(
        self, runner: asyncio.Runner, gateway: str, opening: OpenChat, seed: int | None
    ) -> None:
        self._runner = runner
        self._gateway = gateway
        self._opening = opening
        self._seed = seed
        self._client: GatewayClient | None = None
        self._stream: Conversation | None = None

    def hold(self, *, with_rounds: bool) -> int:
        interactive = sys.stdin.isatty()
        self._runner.run(self._open())
        if interactive:
            output.print_note("/rounds toggles the table of rounds, /quit ends")
        while (line := _read_turn(interactive)) is not None:
            if line == "/quit":
                break
            if line == "/rounds":
                with_rounds = not with_rounds
                output.print_note(f"rounds {'on' if with_rounds else 'off'}")
            elif line:
                self._answer(line, with_rounds=with_rounds, interactive=interactive)
        return 0

    def close(self) -> None:
        self._runner.run(self._close())

    def _answer(self, content: str, *, with_rounds: bool, interactive: bool) -> None:
        """One turn. At a terminal, a stopped or refused one leaves the conversation open."""
        answer = Answer()
        try:
            self._runner.run(self._turn(content, answer))
        except KeyboardInterrupt:
            output.write_text("\n")
            if not interactive:
                raise typer.Exit(calls.EXIT_INTERRUPTED) from None
            output.print_note("stopped")
            return
        except (Refusal, Unreachable) as error:
            if not interactive:
                raise
            calls.report(error)
            self._forget_lost_session(error)
            return
        if with_rounds:
            output.console().print(output.rounds_table(answer.rounds))
        if interactive:
            output.print_summary(answer)

    def _forget_lost_session(self, error: Exception) -> None:
        lost = isinstance(error, Refusal) and error.code is grpc.StatusCode.NOT_FOUND
        if lost and self._opening.session_id:
            self._opening = replace(self._opening, session_id="")
            output.print_note("the next turn begins a new conversation")

    async def _turn(self, content: str, answer: Answer) -> None:
        for attempt in range(_BUSY_RETRIES + 1):
            stream = self._stream or await self._open()
            try:
                async with aclosing(stream.turn(content, seed=self._seed)) as events:
                    async for event in events:
                        output.write_text(answer.add(event))
            except Refusal as refusal:
                self._stream = None
                busy = refusal.code is grpc.StatusCode.FAILED_PRECONDITION
                if not busy or answer.started is not None or attempt == _BUSY_RETRIES:
                    raise
                await asyncio.sleep(_BUSY_PAUSE_S)
            except BaseException:
                self._stream = None
                raise
            else:
                output.write_text("\n")
                return

    async def _open(self) -> Conversation:
        """A new stream; of the same session, once there is one."""
        if self._client is None:
            self._client = GatewayClient(self._gateway)
        self._stream = await self._client.chat(self._opening)
        self._opening = replace(self._opening, session_id=self._stream.session.session_id)
        return self._stream

    async def _close(self) -> None:
        if self._stream is not None:
            try:
                await self._stream.end()
            except (Refusal, Unreachable):
                self._stream.cancel()
        if self._client is not None:
            await self._client.close()


def _read_turn(interactive: bool) -> str | None:
    """The next line, without the blanks around it. None at the end, or on Ctrl-C at the prompt."""
    try:
        return input("> " if interactive else "").strip()
    except (EOFError, KeyboardInterrupt):
        if interactive:
            output.write_text("\n")
        return None
