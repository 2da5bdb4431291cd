"""paceline keys: adds, lists and removes a gateway's API keys. Loads no gRPC."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from paceline.cli import output
from paceline.keys import KeyEntry, KeysError, load_keys, new_key, save_keys

_EXIT_FAILED = 1


class Action(StrEnum):
    ADD = "add"
    LIST = "list"
    REMOVE = "remove"


def command(
    action: Annotated[Action, typer.Argument(help="What to do.")],
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="The key's name.")] = "",
    file: Annotated[
        Path, typer.Option(envvar="PACELINE_GATEWAY_API_KEYS", help="The file of hashed keys.")
    ] = Path("keys.yaml"),
    tenant: Annotated[
        str, typer.Option(metavar="NAME", help="Whose key it is. Unset: the key's name.")
    ] = "",
    max_answers: Annotated[
        int, typer.Option(min=0, help="The tenant's answers at the same time; 0: no limit.")
    ] = 0,
    tokens_per_s: Annotated[
        float, typer.Option(min=0, help="The tenant's tokens per second; 0: no limit.")
    ] = 0.0,
    burst_tokens: Annotated[
        int, typer.Option(min=0, help="Tokens at once; 0: what a minute gives.")
    ] = 0,
    weight: Annotated[
        float, typer.Option(min=0.001, max=1000, help="The tenant's share when all wait.")
    ] = 1.0,
    priority: Annotated[
        int, typer.Option(min=-10, max=10, help="Among the tenant's own requests.")
    ] = 0,
    operator: Annotated[
        bool, typer.Option("--operator", help="May watch every request's rounds.")
    ] = False,
) -> None:
    """Add, list or remove API keys of a gateway.

    `add` prints the key once; the file keeps its hash. A gateway started with
    --api-keys FILE reads the file again whenever it changes.

    [bold]Examples[/bold]

      paceline keys add support-bot --tenant support --file keys.yaml

      paceline keys list --file keys.yaml

    Exit codes: 0 done, 1 the file or the name does not fit, 2 a bad flag.
    """
    if action is not Action.LIST and not name:
        raise typer.BadParameter(f"{action} needs the NAME of a key")
    try:
        entries = load_keys(file) if action is not Action.ADD or file.exists() else []
        if action is Action.LIST:
            for entry in entries:
                typer.echo(f"{entry.name}\t{entry.tenant}\tpl_{entry.id}_…")
            return
        if action is Action.REMOVE:
            kept = [entry for entry in entries if entry.name != name]
            if len(kept) == len(entries):
                raise KeysError(f"{file}: no key of that name")
            save_keys(file, kept)
            return
        key, key_id, digest = new_key()
        entry = KeyEntry(
            name=name,
            id=key_id,
            sha256=digest,
            tenant=tenant or name,
            max_answers=max_answers,
            tokens_per_s=tokens_per_s,
            burst_tokens=burst_tokens,
            weight=weight,
            priority=priority,
            operator=operator,
        )
        save_keys(file, [*entries, entry])
    except (KeysError, OSError) as error:
        output.print_error(str(error))
        raise typer.Exit(_EXIT_FAILED) from None
    except ValueError:
        raise typer.BadParameter(
            "names are of letters, digits, dots, dashes and underscores, at most 63"
        ) from None
    typer.echo(key)
