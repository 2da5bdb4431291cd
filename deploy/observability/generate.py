"""Writes grafana/dashboards/paceline.json from panels.py: python deploy/observability/generate.py

Classic dashboard schema 39, which Grafana 10 to 13 reads. A test fails when the file is stale.
"""

import json
import sys
from pathlib import Path
from typing import Any

from panels import ROWS, Panel, Query

TARGET = Path(__file__).parent / "grafana" / "dashboards" / "paceline.json"
PROMETHEUS = {"type": "prometheus", "uid": "prometheus"}
JAEGER = {"type": "jaeger", "uid": "jaeger"}
HEIGHT = 8


def dashboard() -> dict[str, Any]:
    panels: list[dict[str, Any]] = []
    y = 0
    for row in ROWS:
        panels.append(_row(row.title, y))
        y += 1
        x = 0
        for panel in row.panels:
            if x + panel.width > 24:
                x, y = 0, y + panel.height
            panels.append(_panel(panel, {"h": panel.height, "w": panel.width, "x": x, "y": y}))
            x += panel.width
        y += row.panels[-1].height
    panels += [_row("Traces", y), _traces({"h": HEIGHT, "w": 24, "x": 0, "y": y + 1})]
    for number, made in enumerate(panels, 1):
        made["id"] = number
    return {
        "uid": "paceline",
        "title": "Paceline",
        "description": "Made by deploy/observability/generate.py; change panels.py instead.",
        "tags": ["paceline"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {
            "list": [
                _variable("model", "paceline_rounds_total"),
                _variable("workload", "paceline_rounds_total"),
            ]
        },
        "panels": panels,
    }


def _variable(label: str, metric: str) -> dict[str, Any]:
    return {
        "name": label,
        "label": label,
        "type": "query",
        "datasource": PROMETHEUS,
        "query": {"query": f"label_values({metric}, {label})", "refId": label},
        "definition": f"label_values({metric}, {label})",
        "refresh": 2,
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
    }


def _row(title: str, y: int) -> dict[str, Any]:
    return {
        "type": "row",
        "title": title,
        "collapsed": False,
        "gridPos": {"h": 1, "w": 24, "x": 0, "y": y},
        "panels": [],
    }


def _panel(panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    custom: dict[str, Any] = {"drawStyle": "line", "lineWidth": 1, "fillOpacity": 10}
    if panel.stacked:
        custom |= {"stacking": {"mode": "normal"}, "fillOpacity": 40}
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0, "custom": custom}
    if panel.threshold is not None:
        custom["thresholdsStyle"] = {"mode": "line"}
        defaults["thresholds"] = {
            "mode": "absolute",
            "steps": [
                {"color": "red", "value": None},
                {"color": "green", "value": panel.threshold},
            ],
        }
    made: dict[str, Any] = {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": PROMETHEUS,
        "gridPos": place,
        "targets": [_target(query, chr(ord("A") + i)) for i, query in enumerate(panel.queries)],
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
    }
    if panel.kind == "heatmap":
        made["options"] = {
            "calculate": False,
            "color": {"mode": "scheme", "scheme": "Blues", "steps": 64},
            "yAxis": {"unit": panel.unit},
        }
    elif panel.kind == "stat":
        made["options"] = {
            "colorMode": "value",
            "graphMode": "area",
            "reduceOptions": {"calcs": ["lastNotNull"]},
        }
        made["fieldConfig"] = {"defaults": _stat_defaults(panel), "overrides": []}
    else:
        made["fieldConfig"] = {"defaults": defaults, "overrides": []}
    return made


def _stat_defaults(panel: Panel) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "blue", "value": None}]
    if panel.threshold is not None:
        steps = [{"color": "red", "value": None}, {"color": "green", "value": panel.threshold}]
    thresholds = {"mode": "absolute", "steps": steps}
    # Grafana's unit for any other suffix.
    unit = "suffix:\u00d7" if panel.unit == "factor" else panel.unit
    return {"unit": unit, "decimals": 2, "thresholds": thresholds}


def _target(query: Query, ref: str) -> dict[str, Any]:
    return {
        "refId": ref,
        "datasource": PROMETHEUS,
        "expr": query.expr,
        "legendFormat": query.legend,
        "exemplar": query.exemplar,
        "format": "heatmap" if query.heatmap else "time_series",
    }


def _traces(place: dict[str, int]) -> dict[str, Any]:
    return {
        "type": "table",
        "title": "Slowest answers of late",
        "description": "The dots in the panels above lead here, too: each is a request's trace.",
        "datasource": JAEGER,
        "gridPos": place,
        "targets": [
            {
                "refId": "A",
                "datasource": JAEGER,
                "queryType": "search",
                "service": "paceline-gateway",
                "limit": 20,
            }
        ],
    }


def text() -> str:
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    TARGET.write_text(text())
    print(TARGET.name, file=sys.stderr)
