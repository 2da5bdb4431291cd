"""The committed dashboard and rules: not stale, and every name in them is one that we expose."""

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from prometheus import FOLDER as RULES
from prometheus import RULE_FILES

from drafter_service.config import DrafterSettings
from gateway.config import GatewaySettings
from paceline.metrics import instruments
from paceline.metrics.instruments import Kind
from verifier_service.config import VerifierSettings

FOLDER = Path(__file__).parents[1] / "deploy" / "observability"
DOCS = FOLDER.parents[1] / "docs"
GRAFANA = FOLDER / "grafana"
DASHBOARD = GRAFANA / "dashboards" / "paceline.json"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def panel_expressions() -> list[str]:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    targets = [target for panel in panels for target in panel.get("targets", [])]
    return [target["expr"] for target in targets if "expr" in target]


def rules() -> list[dict]:
    files = [yaml.safe_load((RULES / f"{name}.yml").read_text()) for name in RULE_FILES]
    return [rule for file in files for group in file["groups"] for rule in group["rules"]]


def series_names() -> set[str]:
    names = {rule["record"] for rule in rules() if "record" in rule}
    for instrument in (*instruments.GATEWAY, *instruments.VERIFIER, *instruments.DRAFTER):
        suffixes = ("_bucket", "_sum", "_count") if instrument.kind is Kind.HISTOGRAM else ("",)
        names |= {instrument.prometheus_name + suffix for suffix in suffixes}
    return names


def test_the_dashboard_is_what_the_generator_makes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    try:
        assert DASHBOARD.read_text() == script("generate").text()
    finally:
        sys.modules.pop("panels", None)


def test_the_table_of_metrics_is_what_the_code_says():
    assert (DOCS / "metrics.md").read_text() == script("metrics_table").text()


def test_every_name_in_a_panel_or_a_rule_is_one_that_we_expose():
    expressions = [*panel_expressions(), *(rule["expr"] for rule in rules())]
    assert len(expressions) > 50
    known = series_names()
    for expression in expressions:
        named = re.findall(r"\b(?:paceline|gen_ai|vllm)[a-z0-9_:]*", expression)
        metrics = [name for name in named if name != "gen_ai_request_model"]
        assert metrics and set(metrics) <= known, expression


def test_panels_have_a_place_each_and_say_what_they_show():
    panels = json.loads(DASHBOARD.read_text())["panels"]
    taken = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
        assert panel["type"] == "row" or panel["description"]
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_exemplars_lead_to_jaeger():
    sources = {s["uid"]: s for s in provisioned("datasources")["datasources"]}
    links = sources["prometheus"]["jsonData"]["exemplarTraceIdDestinations"]
    assert links == [{"name": "trace_id", "datasourceUid": "jaeger"}]
    assert sources["jaeger"]["type"] == "jaeger"
    used = set(re.findall(r'"uid": "(\w+)"', DASHBOARD.read_text())) - {"paceline"}
    assert used == set(sources)


def provisioned(kind: str) -> dict:
    return yaml.safe_load((GRAFANA / "provisioning" / kind / "paceline.yml").read_text())


def test_the_compose_file_gives_each_program_what_the_others_expect():
    """What can be said of it without Docker: paths, ports and intervals that must agree."""
    services = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]
    assert set(services) == {"jaeger", "prometheus", "grafana"}
    mounts = {}
    for name, service in services.items():
        assert re.fullmatch(r"[\w./-]+:v?\d+\.\d+\.\d+", service["image"]), name
        for volume in service.get("volumes", ()):
            outside, inside, mode = volume.split(":")
            assert (FOLDER / outside).is_dir() and mode == "ro", volume
            mounts[inside] = FOLDER / outside
    # Reachable from this machine alone.
    assert all(port.startswith("127.0.0.1:") for port in services["jaeger"]["ports"])
    assert services["grafana"]["environment"]["GF_SERVER_HTTP_ADDR"] == "127.0.0.1"
    (listens,) = (
        flag.partition("=")[2]
        for flag in services["prometheus"]["command"]
        if "listen-address" in flag
    )
    (config,) = (f for f in services["prometheus"]["command"] if f.startswith("--config.file"))
    sources = {s["uid"]: s for s in provisioned("datasources")["datasources"]}
    assert sources["prometheus"]["url"] == f"http://{listens}"
    ports = [port.removeprefix("127.0.0.1:").split(":")[0] for port in services["jaeger"]["ports"]]
    assert sources["jaeger"]["url"].rpartition(":")[2] in ports
    folder, name = config.partition("=")[2].rsplit("/", 1)
    scrape = yaml.safe_load((mounts[folder] / name).read_text())
    assert scrape["rule_files"] == [f"{each}.yml" for each in RULE_FILES]
    assert all((mounts[folder] / each).is_file() for each in scrape["rule_files"])
    assert sources["prometheus"]["jsonData"]["timeInterval"] == scrape["global"]["scrape_interval"]
    (provider,) = provisioned("dashboards")["providers"]
    assert list(mounts[provider["options"]["path"]].glob("*.json")) == [DASHBOARD]
    assert mounts["/etc/grafana/provisioning"] == FOLDER / "grafana" / "provisioning"


def test_prometheus_asks_the_ports_that_services_show_metrics_on():
    scrape = yaml.safe_load((RULES / "prometheus.yml").read_text())["scrape_configs"]
    asked = {
        job["job_name"]: int(target.rpartition(":")[2])
        for job in scrape
        for static in job["static_configs"]
        for target in static["targets"]
    }
    shown = {
        f"paceline-{name}": settings().metrics_port
        for name, settings in (
            ("gateway", GatewaySettings),
            ("verifier", VerifierSettings),
            ("drafter", DrafterSettings),
        )
    }
    assert asked == shown


def test_every_alert_says_what_is_wrong_and_is_tested():
    alerts = {rule["alert"]: rule for rule in rules() if "alert" in rule}
    cases = yaml.safe_load((RULES / "alerts_test.yml").read_text())["tests"]
    fired = {
        case["alertname"]
        for test in cases
        for case in test["alert_rule_test"]
        if case["exp_alerts"]
    }
    silent = {
        case["alertname"]
        for test in cases
        for case in test["alert_rule_test"]
        if not case["exp_alerts"]
    }
    assert fired == silent == set(alerts)
    for alert in alerts.values():
        assert {"summary", "description"} <= alert["annotations"].keys()
