"""Alert rules and the dashboard ask for metrics and labels that a gateway exports."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from router.core.types import Outcome
from router.gateway.scraping import families
from router.gateway.telemetry.metrics import Metrics
from router.store.records import RequestRecord
from tests.metrics_page import idle_gateway, metrics_text

ROOT = Path(__file__).resolve().parents[3]
RULES = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text(encoding="utf-8"))
DASHBOARD = json.loads((ROOT / "deploy/grafana/dashboards/headway.json").read_text(encoding="utf-8"))
_METRIC = re.compile(r"\b((?:headway_|gen_ai_|process_|headway:)[a-z0-9_:]+)(?:\{([^}]*)\})?")
_RECORDED = {rule["record"] for group in RULES["groups"] for rule in group["rules"] if "record" in rule}
#: Put on by Prometheus, or by the gateway where it has several workers.
_FROM_OUTSIDE = {"job", "instance", "gateway", "le", "worker"}


def exported() -> dict[str, set[str]]:
    """Labels by sample name, of everything that a gateway may export."""
    found: dict[str, set[str]] = {"headway_worker_restarts_total": set()}  # of a supervisor
    endings = {"histogram": ("_bucket", "_sum", "_count")}
    for family in families(idle_gateway(Metrics())):
        for ending in endings.get(family.kind, ("",)):
            found[family.name + ending] = set(family.labels)
    return found


def asked() -> Iterator[tuple[str, str]]:
    """Where an expression stands, and the expression."""
    for group in RULES["groups"]:
        for rule in group["rules"]:
            yield rule.get("record") or rule["alert"], rule["expr"]
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield f"{panel['title']} {target['refId']}", target["expr"]
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["definition"]


@pytest.fixture(scope="module")
def names() -> dict[str, set[str]]:
    return exported()


@pytest.mark.parametrize("expression", [pytest.param(each, id=where) for where, each in asked()])
def test_an_expression_asks_for_what_there_is(expression: str, names: dict[str, set[str]]) -> None:
    groups = r"\b(?:by|on)\s*\(([^)]*)\)"
    used = _METRIC.findall(re.sub(groups, "", expression))
    assert used or expression.startswith("up{")
    known: set[str] = set(_FROM_OUTSIDE)
    for metric, selected in used:
        assert metric in names or metric in _RECORDED or metric.startswith("process_"), metric
        labels = names.get(metric, set())
        known |= labels
        for label in re.findall(r"([a-z_]+)=", selected):
            assert label in labels | _FROM_OUTSIDE, label
    for grouped in re.findall(groups, expression):
        assert {label.strip() for label in grouped.split(",")} <= known
    assert expression.count("(") == expression.count(")")


@pytest.mark.parametrize("outcome", sorted(set(re.findall(r'outcome="([a-z_]+)"', str(RULES)))))
def test_outcomes_in_rules_exist(outcome: str) -> None:
    assert outcome in set(Outcome)


def test_every_alert_says_how_bad_it_is_and_what_it_is() -> None:
    alerts = [rule for group in RULES["groups"] for rule in group["rules"] if "alert" in rule]
    assert len({alert["alert"] for alert in alerts}) == len(alerts)
    for alert in alerts:
        assert alert["labels"]["severity"] in {"page", "ticket"}
        assert alert["annotations"]["summary"]


def test_an_alert_about_a_gateway_is_over_all_its_workers() -> None:
    alerts = [rule for group in RULES["groups"] for rule in group["rules"] if "alert" in rule]
    about = [each for each in alerts if "$labels.gateway" in each["annotations"]["summary"]]
    assert [each["alert"] for each in about if "without (worker)" not in each["expr"]] == ["HeadwayDown"]


def test_what_is_not_there_raises_an_alert() -> None:
    """A gateway that its service discovery has dropped, and a model without an instance, have no series to compare."""
    rules = {rule.get("alert"): rule["expr"] for group in RULES["groups"] for rule in group["rules"]}
    assert "or absent(" in rules["HeadwayDown"]
    assert "or 0 * max by (model) (headway_desired_replicas)" in rules["HeadwayWantsMoreReplicas"]


def test_the_burn_rate_is_the_share_of_misses_over_the_budget() -> None:
    """A miss in every two requests burns a budget of 5 % ten times too fast."""
    metrics = Metrics()
    metrics.set_fleet(policies=["slo"], models=["m"], instances={"a": "vllm"})
    for met in (True, False):
        record = RequestRecord("r", 0.0, policy="slo", model="m", instance="a", slo_ttft_s=1.0)
        record.slo_met = met
        metrics.record(record)
    families = text_string_to_metric_families(metrics_text(idle_gateway(metrics)).decode())
    samples = {sample.name: sample.value for family in families for sample in family.samples}
    burn = (1 - samples["headway_slo_met_total"] / samples["headway_slo_offered_total"]) / 0.05
    assert burn == pytest.approx(10)


def test_panels_have_their_own_places_and_ids() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken
        assert place["x"] + place["w"] <= 24
        taken |= cells
