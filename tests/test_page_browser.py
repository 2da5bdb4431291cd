"""The live page in Chromium, on real services with a tiny model."""

import asyncio

import pytest
from chromium import chromium, look, until
from http_door import TEXT, open_door
from processes import stack
from selenium.webdriver import ActionChains, Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from test_security_keys import add
from tiny import save_tiny_llama

pytestmark = pytest.mark.observability

QUESTION = "one two three one two three one two three"
NUM_TOKENS = 48
MAX_TABS = 30


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    folder = str(save_tiny_llama(tmp_path_factory.mktemp("tiny")))
    sources = "prompt_lookup,past_answers,recycled"
    with stack(folder, dtype="float32", threads=1, local_sources=sources) as opened:
        yield opened.http_url


@pytest.fixture(scope="module")
def window():
    with chromium() as opened:
        yield opened


@pytest.fixture
def browser(window, url):
    """At a fresh page; at the end nothing may have been complained of or fetched elsewhere."""
    look(window, scheme="light", width=1280, height=900)
    window.get("about:blank")
    window.get_log("browser")
    open_page(window, url)
    yield window
    assert window.get_log("browser") == []
    entries = "return performance.getEntriesByType('resource').map((entry) => entry.name)"
    fetched = window.execute_script(entries)
    assert len(fetched) > 5
    assert [name for name in fetched if not name.startswith(f"{url}/")] == []


def open_page(browser: Chrome, url: str) -> None:
    browser.get(url)
    until(lambda: "numerics" in text_of(browser, "#model"), what="the model's name")
    # Pacing may find that a draft does not pay for a model this small.
    browser.execute_script(
        "speculation.value = 'fixed'; document.getElementById('max-tokens').value = arguments[0]",
        NUM_TOKENS,
    )


def all_of(browser: Chrome, selector: str):
    return browser.find_elements(By.CSS_SELECTOR, selector)


def text_of(browser: Chrome, selector: str) -> str:
    found = all_of(browser, selector)
    return found[0].text if found else ""


def idle(browser: Chrome) -> None:
    until(lambda: not all_of(browser, "body.busy"), what="the answer ends")


def ask(browser: Chrome, question: str = QUESTION) -> None:
    all_of(browser, "#question")[0].send_keys(question + Keys.ENTER)
    idle(browser)


def test_an_answer_streams_in_and_is_coloured_by_source(browser):
    browser.execute_script(
        "window.sizes = new Set(); new MutationObserver(() => window.sizes.add("
        "document.querySelector('.text')?.textContent.length ?? 0))"
        ".observe(turns, {subtree: true, childList: true})"
    )
    ask(browser)
    sizes = browser.execute_script("return [...window.sizes].filter(Boolean)")
    assert len(sizes) > 3 and sizes == sorted(sizes)
    runs = {run.get_attribute("data-source"): run for run in all_of(browser, ".text .run")}
    assert len(runs) >= 2
    drafted = [runs[name] for name in runs if name not in ("plain", "recovered", "bonus")]
    assert drafted
    looks = [
        (run.value_of_css_property("text-decoration"), run.value_of_css_property("background"))
        for run in runs.values()
    ]
    assert len(set(looks)) == len(looks)
    counts = [int(count.text) for count in all_of(browser, "#legend b") if count.text]
    assert sum(counts) == NUM_TOKENS
    assert f"{NUM_TOKENS} tokens" in text_of(browser, "#status")
    assert float(text_of(browser, "[data-figure=tokensPerRound] b")) > 1


def test_the_waterfall_has_a_bar_for_each_round_and_hovering_shows_it(browser):
    ask(browser)
    said = text_of(browser, ".answer .time")
    numbers = [
        int(bar.get_attribute("data-round")) for bar in all_of(browser, "#rows [data-round]")
    ]
    assert numbers == list(range(1, len(numbers) + 1))
    assert f"{NUM_TOKENS} tokens in {len(numbers)} rounds" in said
    ticks = all_of(browser, "#rows [data-round] .tick")
    assert len(ticks) == NUM_TOKENS
    piece = all_of(browser, ".text .round")[2]
    number = piece.get_attribute("data-round")
    ActionChains(browser).move_to_element(piece).perform()
    until(lambda: f"Round {number}\n" in text_of(browser, "#tip"), what="the round's tooltip")
    shown = text_of(browser, "#tip")
    assert all(f"{name}\n" in shown for name in ("draft", "wait", "verify", "tokens"))
    chosen = all_of(browser, "#rows [aria-selected=true]")
    assert [bar.get_attribute("data-round") for bar in chosen] == [number]
    bar = all_of(browser, "#rows [data-round]")[0]
    ActionChains(browser).move_to_element(bar).perform()
    until(lambda: "Round 1\n" in text_of(browser, "#tip"), what="the bar's tooltip")
    assert all_of(browser, ".round.marked")[0].get_attribute("data-round") == "1"


def test_a_plain_replay_is_identical_and_measured(browser):
    browser.execute_script("temperature.value = 0.9; replay.click()")
    ask(browser)
    answers = [answer.text for answer in all_of(browser, ".answer .text")]
    assert len(answers) == 2 and answers[0] == answers[1]
    verdict = all_of(browser, ".verdict")[0]
    assert verdict.get_attribute("data-identical") == "true"
    assert f"Identical: all {NUM_TOKENS} token ids are the same" in verdict.text
    assert len(all_of(browser, ".verdict .race .time")) == 2
    assert "as measured" in text_of(browser, "[data-figure=gain]")
    sources = {
        run.get_attribute("data-source") for run in all_of(browser, ".answer + .answer .run")
    }
    assert sources == {"plain"}


def test_answers_that_differ_are_called_different(browser):
    said = browser.execute_async_script(
        "const done = arguments[0]; import('/answer.js').then(({firstDifference}) => done(["
        "firstDifference([1, 2], [1, 2]), firstDifference([1, 2], [1, 3]),"
        "firstDifference([1, 2], [1])]))"
    )
    assert said == [-1, 1, 1]


def test_a_conversation_goes_on_and_can_be_begun_again(browser):
    ask(browser)
    ask(browser, "and again")
    idle(browser)
    assert len(all_of(browser, ".turn")) == 2
    all_of(browser, "#fresh")[0].click()
    assert not all_of(browser, ".turn") and not all_of(browser, "#rows [data-round]")
    assert all_of(browser, "#welcome")[0].is_displayed()


def test_the_page_works_by_keyboard_alone(browser):
    def tab_to(selector: str, *keys: str) -> None:
        for _ in range(MAX_TABS):
            if browser.execute_script(f"return document.activeElement.matches('{selector}')"):
                return
            ActionChains(browser).send_keys(*keys or (Keys.TAB,)).perform()
        raise AssertionError(f"{selector} is not in the focus order")

    def press(*keys: str) -> None:
        ActionChains(browser).send_keys(*keys).perform()

    tab_to("#examples button")
    tab_to("#question")
    press(QUESTION, Keys.ENTER)
    until(lambda: all_of(browser, ".actions button:not([hidden])"), what="the answer ends")
    idle(browser)
    for _ in range(MAX_TABS):
        if browser.execute_script("return document.activeElement.matches('.round')"):
            break
        ActionChains(browser).key_down(Keys.SHIFT).send_keys(Keys.TAB).key_up(Keys.SHIFT).perform()
    press(Keys.HOME, Keys.ARROW_RIGHT)
    second = all_of(browser, ".text .round")[1]
    number = second.get_attribute("data-round")
    until(lambda: f"Round {number}\n" in text_of(browser, "#tip"), what="the tooltip on focus")
    assert second.get_attribute("aria-describedby") == "tip"
    press(Keys.ESCAPE)
    assert not all_of(browser, "#tip")[0].is_displayed()
    tab_to(".actions button")
    press(Keys.ENTER)
    until(lambda: all_of(browser, ".verdict"), what="the verdict")
    idle(browser)
    assert "identical" in text_of(browser, "#status")
    tab_to("#replay")
    press(Keys.SPACE)
    assert all_of(browser, "#replay")[0].is_selected()
    tab_to("#rows")
    press(Keys.END)
    last = all_of(browser, "#rows [role=option]")[-1]
    assert last.get_attribute("aria-selected") == "true"
    assert last.get_attribute("aria-label").startswith("Round ")
    until(lambda: "Round" in text_of(browser, "#tip"), what="the row's tooltip")


def test_everything_has_a_name(browser):
    browser.execute_script("settings.open = true")
    controls = all_of(browser, "input, textarea, select, button, [role=listbox]")
    shown = [control for control in controls if control.is_displayed()]
    assert len(shown) > 12
    assert all(control.accessible_name for control in shown)
    ask(browser)
    assert all_of(browser, "#status")[0].get_attribute("role") == "status"
    assert not all_of(browser, ".text[aria-live], .text [aria-live]")


@pytest.mark.parametrize("width", [1280, 360])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_screen_is_too_narrow(browser, scheme, width):
    look(browser, scheme=scheme, width=width, height=800)
    ask(browser, "a" * 200)
    sizes = "return [document.documentElement.scrollWidth, innerWidth]"
    content, shown = browser.execute_script(sizes)
    assert content <= shown


def test_a_refusal_is_told_in_words_and_the_question_stays(window, url):
    """Not with the fixture's page: the browser logs every status of 400 and more."""
    open_page(window, url)
    window.execute_script("document.getElementById('max-tokens').value = 4000")
    ask(window)
    assert "max_tokens" in text_of(window, "#problem")
    assert all_of(window, "#question")[0].get_attribute("value") == QUESTION
    assert not all_of(window, ".turn")


async def test_a_key_is_asked_for_where_keys_are_needed(window, tmp_path):
    file = tmp_path / "keys.yaml"
    key = add(file, "one")

    def visit(url: str) -> None:
        window.get(url)
        until(lambda: all_of(window, "#key")[0].is_displayed(), what="the key's field")
        assert "API key" in text_of(window, "#problem")
        window.switch_to.active_element.send_keys(key + Keys.TAB)
        until(lambda: "numerics" in text_of(window, "#model"), what="the model's name")
        ask(window)
        assert text_of(window, ".answer .text") == TEXT
        window.get("about:blank")

    async with open_door(api_keys=str(file)) as (gateway, _, _):
        await asyncio.to_thread(visit, f"http://{gateway.http_address}")
