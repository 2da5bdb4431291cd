"""The report of made-up records: complete, self-contained, and readable without its figures."""

import json
from html.parser import HTMLParser

import pytest
from bench_records import ALONE, CATEGORIES, HOW, answer, records

from paceline.bench import figures
from paceline.bench.analysis import analyse
from paceline.bench.captions import CAPTIONS
from paceline.bench.document import document
from paceline.bench.drawings import DRAWINGS
from paceline.bench.palette import HATCHES, ROLES, SOURCES
from paceline.bench.report import page
from paceline.bench.result import Result
from paceline.bench.sample import Arm, Load, LoadKind
from paceline.rounds import TokenSource

LOADS = (ALONE, Load(LoadKind.CLOSED, 4))
VOID = {"meta", "br", "wbr", "link", "img", "hr"}


class Page(HTMLParser):
    """Raises AssertionError where a tag is not closed; collects what the tests look at."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.labels: list[str] = []
        self.words = ""
        self.references: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        given = dict(attrs)
        self.ids += [given["id"] or ""] if "id" in given else []
        if tag == "figure":
            self.labels.append(given["aria-label"] or "")
        self.references += [
            value or "" for name, value in attrs if name.split(":")[-1] in {"href", "src"}
        ]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, tag

    def handle_data(self, data: str) -> None:
        self.words += data


@pytest.fixture(scope="module")
def result() -> Result:
    samples = records(temperatures=(0.0, 0.8), loads=LOADS)
    samples.append(answer(samples[0].trial, Arm.PLAIN, error="UNAVAILABLE"))
    return analyse(samples)


@pytest.fixture(scope="module")
def svgs(result: Result) -> dict[str, str]:
    return figures.draw_svg(result)


@pytest.fixture(scope="module")
def text(result: Result, svgs: dict[str, str]) -> str:
    return page(result, HOW, svgs)


def test_the_page_parses_and_has_every_figure_with_a_description(text: str):
    parsed = Page(text)
    assert len(parsed.ids) == len(set(parsed.ids))
    assert [label.split(".")[0] for label in parsed.labels] == [
        caption.title for caption in CAPTIONS.values()
    ]
    for label in parsed.labels[:4]:
        assert all(category in label for category in CATEGORIES)


def test_the_page_says_the_verdict_how_it_was_measured_and_what_failed(text: str):
    words = Page(text).words
    assert "Speculation pays for coding" in words and "leave it off for creative" in words
    assert "pairs with identical token ids" in words
    assert "1 plain UNAVAILABLE" in words
    assert "paceline bench --prompts '<own>.jsonl'" in words
    assert "2 cores" in words and "tiny, exact numerics" in words
    for category in CATEGORIES:
        assert words.count(category) >= 8


def test_nothing_of_the_page_lies_outside_it(text: str):
    assert "://" not in text and "//" not in text.split("</style>")[0]
    assert all(reference.startswith("#") for reference in Page(text).references)
    assert "<script" not in text and "@import" not in text


def test_figures_take_the_colours_of_a_light_and_a_dark_page(text: str, svgs: dict[str, str]):
    for svg in svgs.values():
        assert not [light for light, _ in ROLES.values() if light in svg]
    assert "var(--ink)" in svgs["speed-up"] and "prefers-color-scheme: dark" in text
    # Without colours, arms differ by their line and sources by their hatching.
    assert "stroke-dasharray" in svgs["latencies"] and "<pattern" in svgs["source-share"]
    drafted = [HATCHES[source] for source in TokenSource if source > TokenSource.BONUS]
    assert len(set(drafted)) == len(drafted) and set(SOURCES) == set(TokenSource)


def test_every_figure_has_a_caption_and_is_left_out_without_data(result: Result):
    assert list(DRAWINGS) == list(CAPTIONS)
    assert figures.draw_svg(analyse([])) == {}
    one_load = analyse(records(prompts=1, categories=("qa",)))
    assert "loads" not in figures.draw_svg(one_load)
    assert Page(page(analyse([]), HOW, {})).labels == []


def test_a_name_from_a_prompt_file_cannot_write_html():
    hostile = "<img src=x onerror=alert(1)>"
    found = analyse(records(categories=(hostile,), prompts=1))
    assert "<img" not in page(found, HOW, figures.draw_svg(found))


def test_the_document_has_every_row_and_no_prompt(result: Result):
    samples = records(temperatures=(0.0, 0.8), loads=LOADS)
    made = json.loads(json.dumps(document(result, samples, HOW)))
    assert made["schema"] == "paceline.bench/1"
    assert [row["category"] for row in made["rows"]] == [*sorted(CATEGORIES), "all"] * 2
    assert made["identical"] == {"pairs": result.num_pairs, "identical": result.num_pairs}
    assert made["errors"] == [{"arm": "plain", "error": "UNAVAILABLE", "requests": 1}]
    assert len(made["answers"]) == len(samples) and len(made["loads"]) == 4
    digests = {answer["digest"] for answer in made["answers"]}
    assert len(digests) == 1
    row = made["rows"][0]
    assert row["speed_up"]["low"] < row["speed_up"]["value"] < row["speed_up"]["high"]
    assert sum(row["tokens_by_source"].values()) == row["speculative"]["tokens"]
