"""Debian's Prometheus on the committed configuration, asked over HTTP."""

import json
import shutil
import subprocess
import urllib.parse
import urllib.request
from pathlib import Path

import yaml
from processes import free_port

FOLDER = Path(__file__).parents[1] / "deploy" / "observability" / "prometheus"
RULE_FILES = ("rules", "alerts")


class Prometheus:
    """Scrapes services at these ports every second. `folder` is for its files."""

    def __init__(self, folder: Path, ports: dict[str, int]) -> None:
        assert shutil.which("prometheus"), "prometheus is not installed: make prometheus"
        config = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        for job in config["scrape_configs"]:
            port = ports[job["job_name"].removeprefix("paceline-")]
            job["static_configs"] = [{"targets": [f"127.0.0.1:{port}"]}]
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        for name in RULE_FILES:
            shutil.copy(FOLDER / f"{name}.yml", folder)
        self.url = f"http://127.0.0.1:{free_port()}"
        self.process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={folder}/prometheus.yml",
                f"--storage.tsdb.path={folder}/data",
                f"--web.listen-address={self.url.removeprefix('http://')}",
                "--enable-feature=exemplar-storage",
                "--log.level=error",
            ]
        )

    def get(self, path: str, **parameters: str) -> dict:
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=30) as response:
            return json.load(response)

    def query(self, expression: str) -> list:
        answer = self.get("query", query=expression)
        assert answer["status"] == "success"
        return answer["data"]["result"]

    def is_up(self) -> bool:
        """Whether all three services are scraped."""
        try:
            return [series["value"][1] for series in self.query("up")] == ["1"] * 3
        except OSError:
            return False

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=20)
