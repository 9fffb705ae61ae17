"""Tables of names in the pages agree with the code: keys, policies, metrics, columns, outcomes, faults."""

from __future__ import annotations

import re
import tomllib
import typing
from collections.abc import Iterator
from typing import Any

import yaml
from pydantic import BaseModel

from backends import KINDS
from backends.emulator.faults import FaultKind
from backends.engine.hardware import HARDWARE, QUANTIZATIONS
from backends.engine.weights import VLLM_NAMES
from benchmarks.workloads.sources import SOURCES
from benchmarks.workloads.sources.generators import PROCESSES
from policies import POLICIES
from predictors.learned.artifact import SHIPPED, load, path_of
from predictors.learned.models import KINDS as ARTIFACTS
from router.config import FleetConfig
from router.config.instances import EMULATED
from router.core.types import EndedHow, Outcome
from router.gateway.telemetry.metrics import Metrics
from router.request.routing_input import ROUTING_HEADERS, RoutingInput
from router.store.entries import ATTEMPT_COLUMNS, REQUEST_COLUMNS
from router.store.tables import metadata
from tests.metrics_page import idle_gateway, metrics_text
from tests.unit.docs.pages import ROOT, blocks, first_cells, inline_code, prose

DOCS = ROOT / "docs"


def sections(annotation: Any) -> Iterator[type[BaseModel]]:
    """The section classes inside a field's type."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in typing.get_args(annotation):
        yield from sections(inner)


def fleet_keys(model: type[BaseModel], path: str = "") -> Iterator[str]:
    """Every key of the fleet file with those it stands in (`limits.max_queue`)."""
    for key, field in model.model_fields.items():
        yield path + key
        for section in sections(field.annotation):
            yield from fleet_keys(section, f"{path}{key}.")


def test_the_fleet_page_has_every_key_and_no_other() -> None:
    page = DOCS / "fleet.md"
    keys = set(fleet_keys(FleetConfig))
    told = set(first_cells(page))
    plain = {key.rpartition(".")[2] for key in keys}
    assert {each for each in told if each not in keys and each not in plain} == set()
    said = prose(page)
    headings = set(re.findall(r"[a-z]+", " ".join(re.findall(r"^## (.*)$", said, re.M))))
    words = set(re.findall(r"[a-z][a-z0-9_]*", " ".join(inline_code(page)))) | headings
    assert sorted(plain - words) == []


def test_the_fleet_page_names_every_kind_of_engine() -> None:
    (row,) = [line for line in prose(DOCS / "fleet.md").splitlines() if line.startswith("| `kind` |")]
    assert [each for each in (*KINDS, EMULATED) if f"`{each}`" not in row] == []


def test_policies() -> None:
    assert set(first_cells(DOCS / "policies.md")) == set(POLICIES)
    assert set(POLICIES) <= set(first_cells(ROOT / "README.md"))


def test_metrics() -> None:
    families = re.findall(r"^# HELP (\S+)", metrics_text(idle_gateway(Metrics())).decode(), re.M)
    ours = {each for each in families if each.startswith(("headway_", "gen_ai_"))}
    assert set(first_cells(DOCS / "metrics.md")) == ours


def test_every_alert_says_what_to_do() -> None:
    rules = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yml").read_text(encoding="utf-8"))
    alerts = {rule["alert"] for group in rules["groups"] for rule in group["rules"] if "alert" in rule}
    told = [each for each in first_cells(DOCS / "operations.md") if each.startswith("Headway")]
    assert sorted(told) == sorted(alerts)


def test_every_outcome_is_explained_beside_slos() -> None:
    assert set(Outcome) <= set(inline_code(DOCS / "slo.md"))


def test_every_extra_says_what_it_brings() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = set(project["project"]["optional-dependencies"])
    assert extras == {each for each in first_cells(DOCS / "install.md") if not each.startswith("headway ")}


def test_columns_tables_and_outcomes() -> None:
    words = set(inline_code(DOCS / "records.md"))
    assert set(metadata.tables) <= words
    assert [each for each in REQUEST_COLUMNS if each not in words and not each.startswith("predicted_")] == []
    assert {"predicted_*", *Outcome, *EndedHow} <= words
    assert "ended_how" in ATTEMPT_COLUMNS


def test_routing_parameters() -> None:
    words = set(inline_code(DOCS / "api.md"))
    assert [header.decode() for header in ROUTING_HEADERS if header.decode() not in words] == []
    fields = set(RoutingInput.__dataclass_fields__) - {"slo"}
    assert sorted(fields - words) == []


def test_faults_hardware_and_sources() -> None:
    emulator = DOCS / "emulator.md"
    assert {kind.value for kind in FaultKind} <= set(first_cells(emulator))
    said = prose(emulator).lower()
    assert [each for each in HARDWARE if each.replace("-", " ").removesuffix("g") not in said] == []
    workloads = set(inline_code(DOCS / "workloads.md"))
    assert {*SOURCES, *PROCESSES} <= workloads


def test_import_rules() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    layers = project["tool"]["importlinter"]["contracts"][0]["layers"]
    told = [each.text.splitlines() for each in blocks("text") if each.page.name == "ARCHITECTURE.md"]
    assert layers in told


def test_formats_of_weights() -> None:
    page = set(inline_code(DOCS / "fleet.md"))
    assert {name for names in VLLM_NAMES for name in names} | set(QUANTIZATIONS) <= page


def test_the_data_of_the_shipped_artifacts() -> None:
    rows = [
        row for row in prose(DOCS / "evaluation.md").splitlines() if re.match(r"\| `(latency|length)`", row)
    ]
    said = set()
    for row in rows:
        kinds, data, licences = row.strip("| ").replace(", outputs", "; outputs").split(" | ")
        for kind in re.findall(r"`(\w+)`", kinds):
            said.add(kind)
            found = {each["name"]: each["licence"] for each in load(path_of(SHIPPED, kind)).about["data"]}
            assert found.keys() == set(re.findall(r"`(\w+)`", data))
            assert [licence for licence in found.values() if licence not in licences] == []
    assert said == {kind for kind in ARTIFACTS if path_of(SHIPPED, kind).exists()}
