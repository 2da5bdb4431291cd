"""What `paceline bench` is given: lists of numbers, prompts, files to write. Loads no gRPC."""

from pathlib import Path

import typer

from paceline.cli.prompts import BadPrompts, Prompt, own_prompts, read_prompts

STDOUT = Path("-")


def numbers(text: str) -> list[float]:
    """Of words with commas between them. This and the others raise BadParameter."""
    try:
        return [float(word) for word in text.split(",") if word.strip()]
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a list of numbers, such as 0,0.8") from None


def temperatures(text: str) -> str:
    found = numbers(text)
    if not found or not all(number == 0 or 0.01 <= number <= 100 for number in found):
        raise typer.BadParameter("every temperature is 0 or from 0.01 to 100")
    return text


def concurrency(text: str) -> str:
    found = numbers(text)
    if not found or not all(number.is_integer() and 1 <= number <= 1024 for number in found):
        raise typer.BadParameter("every level is a whole number from 1 to 1024")
    return text


def rates(text: str) -> str:
    if not all(0 < number < 1e6 for number in numbers(text)):
        raise typer.BadParameter("every rate is above 0")
    return text


def writable(path: Path | None) -> Path | None:
    # Minutes of measuring must not end at a misspelt folder.
    if path is not None and path != STDOUT and not path.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {path.parent}")
    return path


def chosen(file: Path | None, categories: str, limit: int) -> list[Prompt]:
    """Prompts of the file or, without one, the project's own; the first `limit` of a category."""
    try:
        found = own_prompts() if file is None else read_prompts(file)
    except BadPrompts as error:
        raise typer.BadParameter(str(error), param_hint="--prompts") from None
    known = {prompt.workload for prompt in found}
    wanted = {name.strip() for name in categories.split(",") if name.strip()} or known
    if not wanted <= known:
        unknown = ", ".join(sorted(wanted - known))
        raise typer.BadParameter(
            f"no prompt is of {unknown}; there are {', '.join(sorted(known))}",
            param_hint="--categories",
        )
    by_category: dict[str, int] = {}
    kept = []
    for prompt in found:
        by_category[prompt.workload] = by_category.get(prompt.workload, 0) + 1
        within = not limit or by_category[prompt.workload] <= limit
        if prompt.workload in wanted and within:
            kept.append(prompt)
    return kept
