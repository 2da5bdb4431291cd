"""The live page without a browser: how it is served, and that it needs no other host."""

import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from gateway.http.app import PAGE, http_app

ROOT = Path(__file__).parents[1]
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": ("text/javascript; charset=utf-8", "application/javascript"),
    ".svg": "image/svg+xml",
}
FILES = sorted(path.name for path in PAGE.iterdir())


def page() -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(http_app([])), base_url="http://test")


async def test_every_file_has_its_type_and_the_policy():
    async with page() as http:
        responses = {name: await http.get(f"/{name}") for name in FILES}
        root = await http.get("/")
        again = await http.get("/", headers={"if-none-match": root.headers["etag"]})
    assert root.text == (PAGE / "index.html").read_text()
    assert again.status_code == 304
    for name, response in responses.items():
        assert response.status_code == 200
        assert response.headers["content-type"] in TYPES[Path(name).suffix]
    for response in (*responses.values(), root, again):
        policy = response.headers["content-security-policy"]
        assert policy.startswith("default-src 'self';")
        assert "unsafe" not in policy and "http" not in policy
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["cache-control"] == "no-cache"


async def test_nothing_outside_the_folder_is_served():
    async with page() as http:
        for path in ("/missing.js", "/../app.py", "/%2e%2e/app.py", "/app.py", "/page/app.js"):
            assert (await http.get(path)).status_code == 404
        assert (await http.post("/")).status_code == 405


@pytest.mark.parametrize("name", FILES)
def test_no_file_names_another_host(name: str):
    text = (PAGE / name).read_text()
    # A name space is no address.
    found = re.findall(r"(?:https?:)?//[\w.-]+\.\w+[^\s\"']*", text)
    assert [url for url in found if url != "http://www.w3.org/2000/svg"] == []


def test_what_the_page_refers_to_is_there_and_nothing_is_left_over():
    index = (PAGE / "index.html").read_text()
    assert not re.search(r"<style|\sstyle=|\son\w+=", index)
    assert not re.search(r"<script(?![^>]*\ssrc=)", index)
    wanted = set(re.findall(r'(?:src|href)="([^"]+)"', index))
    for script in PAGE.glob("*.js"):
        wanted |= set(re.findall(r'from "\./([^"]+)"', script.read_text()))
    assert wanted | {"index.html"} == set(FILES)


def test_the_wheel_has_every_file():
    """As setuptools finds them, without a build: that would write into the working tree."""
    script = (
        "from setuptools import Distribution\n"
        "from setuptools.command.build_py import build_py\n"
        "distribution = Distribution()\n"
        "distribution.parse_config_files(['pyproject.toml'])\n"
        "command = build_py(distribution)\n"
        "command.finalize_options()\n"
        "command.manifest_files = {}\n"
        "print('\\n'.join(command.find_data_files('gateway', 'gateway')))\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert {f"gateway/page/{name}" for name in FILES} <= set(done.stdout.split())
