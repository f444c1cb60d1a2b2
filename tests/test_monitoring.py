"""The Prometheus and Grafana files load in the real tools, use only existing metrics, and alert in time."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from shiftwork.observe.metric_catalogue import METRICS
from shiftwork.observe.metrics import metric_of
from tests.conformance.steps import dead_letter, finish
from tests.server.running import running
from tests.services import promtool

DEPLOY = Path(__file__).resolve().parents[1] / "deploy"
RULES = DEPLOY / "prometheus" / "shiftwork.rules.yml"
DASHBOARD = DEPLOY / "grafana" / "shiftwork.json"
OF_A_SCRAPE = {"job", "instance", "le"}
_NAME = re.compile(r"\b((?:task|tasks|daily|budget|agent|shiftwork)_\w+)(?:\{([^}]*)\})?")
_LABEL = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"")
_BY = re.compile(r"\b(?:by|on)\s*\(([^)]*)\)")


def rules() -> list[dict[str, Any]]:
    loaded = yaml.safe_load(RULES.read_text(encoding="utf-8"))
    return [rule for group in loaded["groups"] for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return loaded


def shown() -> list[str]:
    """Return the queries of the panels without Grafana's variables."""
    asked = [target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", ())]
    return [expression.replace("$__rate_interval", "5m").replace("$job", ".*") for expression in asked]


def measured(expression: str) -> set[str]:
    """The metrics an expression reads; their labels must be those of the catalogue."""
    found, labels = set(), set(OF_A_SCRAPE)
    for name, selector in _NAME.findall(re.sub(_BY, "", expression)):
        metric = METRICS[metric_of(name)]
        found.add(metric.name)
        labels |= set(metric.labels)
        assert set(_LABEL.findall(selector)) <= set(metric.labels) | OF_A_SCRAPE, expression
    for names in _BY.findall(expression):
        assert {name.strip() for name in names.split(",")} <= labels, expression
    return found


def test_prometheus_loads_the_alert_rules() -> None:
    done = promtool.run("check", "rules", RULES)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.get("alert") or rule["record"])
def test_alert_rule_uses_only_existing_metrics(rule: dict[str, Any]) -> None:
    assert measured(rule["expr"])
    for name in re.findall(r"\$labels\.(\w+)", str(rule.get("annotations", ""))):
        assert name in {label for metric in measured(rule["expr"]) for label in METRICS[metric].labels} | OF_A_SCRAPE


WAITING = {'shiftwork_queue_depth{priority="high"': "5+0x60"}
SCENES = [
    ("ShiftworkNothingIsDone", {**WAITING, 'tasks_completed_total{type="a"': "7+0x60"}),
    ("ShiftworkNoAgents", {**WAITING, 'shiftwork_agents{status="idle"': "0x60"}),
    ("ShiftworkMaintenanceLate", {'shiftwork_maintenance_age_seconds{maintenance_job="reclaim"': "0+60x60"}),
    ("ShiftworkBacklogAges", {"shiftwork_oldest_ready_seconds{": "4000+60x60"}),
    ("ShiftworkWaitsAreLong", {'task_queue_wait_seconds{quantile="p95"': "1000+0x60"}),
    ("ShiftworkFailures", {'shiftwork_failure_rate{agent_type="a"': "0.6+0x60"}),
    ("ShiftworkDeadLetters", {"tasks_dead_lettered_total{": "0+1x60"}),
    ("ShiftworkAgentSilent", {'agent_heartbeat_misses_total{agent_id="a"': "0+1x60"}),
    ("ShiftworkBreakerOpen", {'shiftwork_gates_closed{kind="breaker"': "1+0x60"}),
    ("ShiftworkBudgetLow", {'budget_remaining_usd{agent="a"': "0.5+0x60"}),
    ("ShiftworkAlertsOpen", {'shiftwork_alerts_open{severity="critical"': "1+0x60"}),
    ("ShiftworkServerSlow", {
        'shiftwork_request_seconds_bucket{operation="submit", status="201", le="1.0"': "0+0x60",
        'shiftwork_request_seconds_bucket{operation="submit", status="201", le="2.5"': "0+10x60",
        'shiftwork_request_seconds_bucket{operation="submit", status="201", le="+Inf"': "0+10x60",
    }),
]  # fmt: skip


def test_every_alert_has_a_test_scene() -> None:
    assert [name for name, _ in SCENES] == [rule["alert"] for rule in rules() if "alert" in rule]


@pytest.mark.parametrize(("alert", "series"), SCENES, ids=[name for name, _ in SCENES])
def test_alert_is_raised_in_its_scene_and_not_before(alert: str, series: dict[str, str], tmp_path: Path) -> None:
    """Evaluated by Prometheus: silent at the beginning, raised an hour later."""
    inputs = [{"series": _selector(name), "values": values} for name, values in series.items()]
    scene = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": inputs,
                "promql_expr_test": [
                    {"expr": f'count(ALERTS{{alertname="{alert}", alertstate="firing"}})', "eval_time": at, **output}
                    for at, output in (
                        ("0m", {"exp_samples": []}),
                        ("50m", {"exp_samples": [{"labels": "{}", "value": 1}]}),
                    )
                ],
            }
        ],
    }
    file = tmp_path / "scene.yml"
    file.write_text(yaml.safe_dump(scene), encoding="utf-8")
    done = promtool.run("test", "rules", file)
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()


def _selector(name: str) -> str:
    return f'{name}{"" if name.endswith("{") else ", "}job="queue"}}'


def test_no_alert_is_raised_while_tasks_complete(tmp_path: Path) -> None:
    fine = {
        **WAITING,
        'tasks_completed_total{type="a"': "0+5x60",
        'shiftwork_agents{status="active"': "1+0x60",
        "tasks_dead_lettered_total{": "3+0x60",
        'shiftwork_maintenance_age_seconds{maintenance_job="reclaim"': "1+0x60",
        "shiftwork_oldest_ready_seconds{": "60+0x60",
        'shiftwork_failure_rate{agent_type="a"': "0.1+0x60",
    }
    inputs = [{"series": _selector(name), "values": values} for name, values in fine.items()]
    quiet = {"expr": "ALERTS", "eval_time": "50m", "exp_samples": []}
    scene = {"interval": "1m", "input_series": inputs, "promql_expr_test": [quiet]}
    file = tmp_path / "scene.yml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "tests": [scene]}), encoding="utf-8")
    done = promtool.run("test", "rules", file)
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()


def test_grafana_dashboard_shows_every_metric() -> None:
    assert {name for expression in shown() for name in measured(expression)} == set(METRICS)


def test_prometheus_accepts_the_dashboard_expressions(tmp_path: Path) -> None:
    asked = [{"record": f"panel:{place}", "expr": expression} for place, expression in enumerate(shown())]
    file = tmp_path / "panels.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": asked}]}), encoding="utf-8")
    done = promtool.run("check", "rules", file)
    assert done.returncode == 0, done.stderr


def test_grafana_dashboard_can_be_imported() -> None:
    """Importing it requires an id, panels that do not overlap, and a selectable data source."""
    found = dashboard()
    assert {"uid", "title", "schemaVersion", "panels", "templating", "time"} <= found.keys()
    panels = found["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places: set[tuple[int, int]] = set()
    for panel in panels:
        grid = panel["gridPos"]
        cells = {
            (x, y) for x in range(grid["x"], grid["x"] + grid["w"]) for y in range(grid["y"], grid["y"] + grid["h"])
        }
        assert grid["x"] + grid["w"] <= 24
        assert not cells & places, panel["title"]
        places |= cells
        assert panel["type"] in {"row", "stat", "timeseries"}
        assert all(target["datasource"]["uid"] == "${datasource}" for target in panel.get("targets", ()))
    variables = {variable["name"] for variable in found["templating"]["list"]}
    assert set(re.findall(r"\$\{?(\w+)", json.dumps(panels))) <= variables | {"__rate_interval"}


@pytest.mark.requirement("F-242")
async def test_promtool_accepts_a_metrics_scrape(tmp_path: Path) -> None:
    async with running(f"sqlite:///{tmp_path}/q.db") as server:
        await server.post("/api/tasks", {"type": "code"})
        await finish(server.state.queue)
        await dead_letter(server.state.queue)
        scraped = (await server.call("GET", "/metrics")).body
    done = promtool.run("check", "metrics", stdin=scraped)
    assert b"error while linting" not in done.stderr
    assert done.returncode in {0, 3}, done.stderr  # 3: opinions about names, which the document gives
