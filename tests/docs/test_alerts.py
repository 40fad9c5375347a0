"""The rules and the dashboard for Prometheus: whole, right, and of metrics that there are."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.tables import pages

from .programs import ran

DOCS = Path(__file__).parents[2] / "docs"
ALERTS, DASHBOARD = DOCS / "alerts.yml", DOCS / "grafana.json"
NAME = re.compile(r"\b(?:fasti|process)_[a-z_]+\b")
PARTS = ("", "_bucket", "_sum", "_count")

promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")


def names_of(page: str) -> set[str]:
    """Every name that a sample of the page may have."""
    found = set()
    for line in page.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            found |= {name + part for part in (PARTS if kind == "histogram" else ("",))}
    return found


def targets() -> list[str]:
    """Every expression of the dashboard."""
    panels: list[dict[str, Any]] = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    return [target["expr"] for panel in panels for target in panel.get("targets", ())]


async def test_every_metric_that_is_named_is_there() -> None:
    there = names_of(await pages())
    rules = ALERTS.read_text(encoding="utf-8").splitlines()
    for text in (*rules, *targets()):
        assert {*NAME.findall(text)} - there == set(), text
    assert len({name for text in targets() for name in NAME.findall(text)}) > 30


def test_every_rule_says_what_is_wrong_and_what_to_do() -> None:
    for rule in ALERTS.read_text(encoding="utf-8").split("- alert: ")[1:]:
        for part in ("expr: ", "severity: ", "summary: ", "action: "):
            assert rule.count(part) == 1, rule


def test_the_dashboard_is_whole() -> None:
    board = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    assert board["title"] == board["uid"] == "fasti"
    names = {one["name"]: one["type"] for one in board["templating"]["list"]}
    assert names == {"datasource": "datasource", "job": "query", "instance": "query"}
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    for panel in board["panels"]:
        spot = panel["gridPos"]
        assert spot["x"] + spot["w"] <= 24
        if panel["type"] != "row":
            assert panel["datasource"]["uid"] == "${datasource}"
            assert panel["targets"]
            for target in panel["targets"]:
                assert "$instance" in target["expr"]


@promtool
def test_the_rules_are_rules() -> None:
    ran("promtool", "check", "rules", str(ALERTS))


@promtool
def test_the_rules_fire_when_they_should() -> None:
    ran("promtool", "test", "rules", str(Path(__file__).with_name("alerts.test.yml")))


@promtool
def test_the_dashboard_asks_what_can_be_asked(tmp_path: Path) -> None:
    rules = [
        {"record": f"panel_{n}", "expr": text.replace("$__rate_interval", "5m")}
        for n, text in enumerate(targets())
    ]
    path = tmp_path / "rules.json"
    path.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    ran("promtool", "check", "rules", str(path))
