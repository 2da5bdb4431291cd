"""Pictures for the README: the live page in light and dark, a bench report, the dashboard.

Starts its own services with the embedded model, and a Prometheus that scrapes them: what they
answer for the page and the report is the dashboard's data. The dashboard is drawn from the
committed Grafana JSON by deploy/observability/preview.py; no Grafana runs. `make screenshots` runs
this; of tests/ it uses the processes, the browser and the Prometheus.
"""

import argparse
import contextlib
import io
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from chromium import chromium, look, until
from PIL import Image
from preview import PAGE, Source, preview
from processes import Stack, metrics_env, stack, wait_until
from prometheus import Prometheus
from selenium.webdriver import ActionChains, Chrome
from selenium.webdriver.common.by import By

IMAGES = Path(__file__).parents[1] / "docs" / "img"
SOURCES = "prompt_lookup,past_answers,recycled"
WIDTH, HEIGHT = 1360, 880
REPORT_WIDTH, REPORT_HEIGHT = 1040, 1340
BENCH = ["--categories", "multilingual,maths", "--limit", "5"]
BENCH += ["--temperature", "0", "--max-tokens", "24"]
ROWS = ("At a glance", "Speculation", "Round anatomy")
# Of the page's examples, the second: code.
EXAMPLE = 1
ANSWER_S = 240.0
NUM_COLOURS = 256
UPPER_ROUNDS = 14
PICTURES = ("page", "report")


def say(text: str) -> None:
    print(f"== {text}", file=sys.stderr, flush=True)


def photograph_page(browser: Chrome, url: str) -> None:
    """One question with its plain replay, in both colour schemes."""
    look(browser, scheme="light", width=WIDTH, height=HEIGHT)
    browser.get(url)
    until(lambda: "numerics" in browser.find_element(By.ID, "model").text, what="a model")
    browser.find_element(By.ID, "replay").click()
    browser.find_elements(By.CSS_SELECTOR, "#examples button")[EXAMPLE].click()
    shown = (By.CSS_SELECTOR, ".verdict")
    until(lambda: browser.find_elements(*shown), ANSWER_S, "the verdict")
    browser.execute_script("document.activeElement.blur()")
    for scheme, name in (("light", "page.png"), ("dark", "page-dark.png")):
        look(browser, scheme=scheme, width=WIDTH, height=HEIGHT)
        point_at_a_round(browser)
        save(browser.get_screenshot_as_png(), name)


def point_at_a_round(browser: Chrome) -> None:
    """The last with an accepted draft in the upper part, so that the tooltip hides little."""
    rounds = browser.find_elements(By.CSS_SELECTOR, "#rows [data-round]")[:UPPER_ROUNDS]
    accepted = [r for r in rounds if r.find_elements(By.CSS_SELECTOR, ".accepted")]
    ActionChains(browser).move_to_element((accepted or rounds)[-1]).perform()


def photograph_report(browser: Chrome, gateway: str, folder: Path) -> None:
    """Its first page; the whole file is long."""
    report = folder / "report.html"
    command = ["bench", "--target", gateway, *BENCH, "--html", str(report)]
    subprocess.run([sys.executable, "-m", "paceline.cli.main", *command], check=True)
    look(browser, scheme="light", width=REPORT_WIDTH, height=REPORT_HEIGHT)
    browser.get(report.as_uri())
    save(browser.get_screenshot_as_png(), "report.png")


def draw_dashboard(source: Source) -> None:
    target = io.BytesIO()
    preview(source, ROWS).savefig(target, facecolor=PAGE)
    save(target.getvalue(), "dashboard.png")


def save(png: bytes, name: str) -> None:
    """With a palette: a third of the size, and nobody sees it."""
    path = IMAGES / name
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    picture.quantize(NUM_COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    say(f"docs/img/{name}: {path.stat().st_size // 1024} KiB")


@contextlib.contextmanager
def scraped(opened: Stack, folder: Path) -> Iterator[Prometheus]:
    prometheus = Prometheus(folder, opened.measured())
    try:
        wait_until(prometheus.is_up, 60.0, "the three services are scraped")
        yield prometheus
    finally:
        prometheus.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pictures", nargs="*", default=PICTURES, help=" or ".join(PICTURES))
    pictures = parser.parse_args().pictures
    IMAGES.mkdir(parents=True, exist_ok=True)
    say("starting the services, a browser and a Prometheus")
    with (
        stack("embedded", env=metrics_env(), local_sources=SOURCES) as opened,
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        chromium() as browser,
    ):
        opened.start_drafter("lookup")
        with scraped(opened, Path(folder)) as prometheus:
            begun = time.time()
            if "page" in pictures:
                say("the live page: a question, and its plain replay")
                photograph_page(browser, opened.http_url)
            if "report" in pictures:
                say("paceline bench, for the report and the dashboard's data")
                photograph_report(browser, opened.gateway_address, Path(folder))
                draw_dashboard(Source(prometheus.url, begun, time.time()))


if __name__ == "__main__":
    main()
