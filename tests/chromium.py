"""Debian's Chromium without a window, through its own chromedriver."""

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-proxy-server",
    "--hide-scrollbars",
)


@contextlib.contextmanager
def chromium() -> Iterator[Chrome]:
    """A browser with an empty profile, gone at the end."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = ChromeOptions()
        options.binary_location = "/usr/bin/chromium"
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        browser = Chrome(options=options, service=Service("/usr/bin/chromedriver"))
        try:
            yield browser
        finally:
            browser.quit()


def look(browser: Chrome, *, scheme: str, width: int, height: int, scale: float = 1.0) -> None:
    """The colours and the window that pages see from now on."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def until(condition: Callable[[], Any], timeout_s: float = 60.0, what: str = "") -> Any:
    """Polls until it is true and returns what it was."""
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"did not happen in {timeout_s} s: {what}"
        time.sleep(0.05)
    return found
