"""Pictures for the README: the live page in light and dark, a bench report, the dashboard.

Starts its own services with the embedded model, and a Prometheus that scrapes them: what they
answer for the page and the report is the dashboard's data. The dashboard is drawn from the
committed Grafana JSON by deploy/observability/preview.py; no Grafana runs. `make screenshots` runs
this; of tests/ it uses the processes, the browser and the Prometheus.
"""

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
BENCH = ["--categories", "summarisation,coding,qa", "--limit", "5", "--concurrency", "1,4"]
BENCH += ["--temperature", "0", "--max-tokens", "32"]
ROWS = ("At a glance", "Speculation", "Round anatomy")
# Of the page's examples, the second: code.
EXAMPLE = 1
ANSWER_S = 240.0
NUM_COLOURS = 128


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
        rounds = browser.find_elements(By.CSS_SELECTOR, "#rows [data-round]")
        ActionChains(browser).move_to_element(rounds[min(2, len(rounds) - 1)]).perform()
        save(browser.get_screenshot_as_png(), name)


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
            say("the live page: a question, and its plain replay")
            photograph_page(browser, opened.http_url)
            say("paceline bench, for the report and the dashboard's data")
            photograph_report(browser, opened.gateway_address, Path(folder))
            draw_dashboard(Source(prometheus.url, begun, time.time()))


if __name__ == "__main__":
    main()
