"""Pictures for the README: the live page in light and dark, and a bench report.

Starts its own verifier and gateway with the embedded model. `make screenshots` runs it; of
tests/ it uses the processes and the browser.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from chromium import chromium, look, until
from processes import stack
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By

IMAGES = Path(__file__).parents[1] / "docs" / "img"
SOURCES = "prompt_lookup,past_answers,recycled"
WIDTH, HEIGHT = 1360, 880
REPORT_WIDTH = 1040
BENCH = ["--categories", "summarisation,coding", "--limit", "5", "--temperature", "0", "--max-tokens", "32"]
# Of the page's examples, the second: code.
EXAMPLE = 1
ANSWER_S = 240.0


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
        save(browser, name)


def photograph_report(browser: Chrome, gateway: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.html"
        command = ["bench", "--target", gateway, *BENCH]
        subprocess.run(
            [sys.executable, "-m", "paceline.cli.main", *command, "--html", str(report)],
            check=True,
        )
        look(browser, scheme="light", width=REPORT_WIDTH, height=HEIGHT)
        browser.get(report.as_uri())
        save(browser, "report.png")


def save(browser: Chrome, name: str) -> None:
    path = IMAGES / name
    assert browser.save_screenshot(str(path))
    print(f"docs/img/{name}: {path.stat().st_size // 1024} KiB")


def main() -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    with stack("embedded", local_sources=SOURCES) as opened, chromium() as browser:
        photograph_page(browser, opened.http_url)
        photograph_report(browser, opened.gateway_address)


if __name__ == "__main__":
    main()
