"""docker-compose.yml against the compose specification's own schema, and what the image must keep.

`compose-spec.json` beside this file is the schema of the Compose Specification
(github.com/compose-spec/compose-spec, schema/compose-spec.json, Apache-2.0), as the package
check-jsonschema 0.39.0 carries it.
"""

import json
import shlex
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from router.cli import build_parser
from router.config import FleetConfig, load

ROOT = Path(__file__).resolve().parents[3]
SCHEMA = json.loads((Path(__file__).parent / "compose-spec.json").read_text(encoding="utf-8"))
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
ENGINES = sorted(name for name in COMPOSE["services"] if name != "gateway")


@pytest.fixture
def fleet() -> FleetConfig:
    return load(ROOT / "fleets" / "compose.yaml")


def test_compose_follows_the_specification() -> None:
    validator = jsonschema.Draft202012Validator(SCHEMA)
    assert [error.message for error in validator.iter_errors(COMPOSE)] == []


@pytest.mark.parametrize(
    "broken",
    [{"services": {"gateway": {"imagee": "x"}}}, {"services": {"gateway": {"ports": 80}}}, {"servicess": {}}],
)
def test_the_schema_refuses_what_compose_refuses(broken: dict[str, Any]) -> None:
    assert not jsonschema.Draft202012Validator(SCHEMA).is_valid(broken)


def test_services_run_one_image_without_privileges() -> None:
    for service in COMPOSE["services"].values():
        assert service["image"] == COMPOSE["services"]["gateway"]["image"]
        assert service["cap_drop"] == ["ALL"]
        assert service["read_only"] is True
        assert "privileged" not in service


def test_only_the_gateway_is_reachable_and_on_loopback_only() -> None:
    published = {
        name: service["ports"] for name, service in COMPOSE["services"].items() if "ports" in service
    }
    assert published == {"gateway": ["127.0.0.1:8080:8080"]}


def test_every_instance_of_the_fleet_is_a_service_with_its_engine(fleet: FleetConfig) -> None:
    assert sorted(each.name for each in fleet.instances) == ENGINES
    assert sorted(COMPOSE["services"]["gateway"]["depends_on"]) == ENGINES
    for instance in fleet.instances:
        command = COMPOSE["services"][instance.name]["command"]
        options = dict(zip(command[1::2], command[2::2], strict=True))
        assert instance.url == f"http://{instance.name}:{options['--port']}"
        assert options["--kind"] == instance.kind
        (model,) = instance.serves
        assert options["--profile"] == instance.profile_name(model)
        assert options.get("--model", model) == instance.serves[model].name


@pytest.mark.parametrize("name", sorted(COMPOSE["services"]))
def test_commands_are_known_to_the_command_line(name: str) -> None:
    command = [str(word) for word in COMPOSE["services"][name]["command"]]
    assert build_parser(command[0]).parse_args(command).command == command[0]


def test_the_gateway_reads_the_fleet_that_is_mounted() -> None:
    gateway = COMPOSE["services"]["gateway"]
    path = gateway["command"][gateway["command"].index("--config") + 1]
    assert f"./fleets/compose.yaml:{path}:ro" in gateway["volumes"]


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions, continuation lines joined, comments left out."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in lines]


def last(name: str) -> str:
    return [rest for instruction, rest in instructions() if instruction == name][-1]


def final_stage() -> list[tuple[str, str]]:
    starts = [at for at, (instruction, _) in enumerate(instructions()) if instruction == "FROM"]
    return instructions()[starts[-1] :]


def test_the_image_is_built_in_stages_from_the_slim_python() -> None:
    bases = [rest.split()[0] for instruction, rest in instructions() if instruction == "FROM"]
    assert bases == ["python:3.11-slim", "python:3.11-slim"]


def test_the_image_does_not_run_as_root() -> None:
    users = [rest for instruction, rest in final_stage() if instruction == "USER"]
    assert len(users) == 1
    assert int(users[0].split(":")[0]) > 0


def test_commands_are_in_exec_form_and_known() -> None:
    entry, command = json.loads(last("ENTRYPOINT")), json.loads(last("CMD"))
    assert entry == ["headway"]
    assert build_parser(command[0]).parse_args(command).command == "serve"
    probe = last("HEALTHCHECK").split("CMD ", 1)[1]
    compile(json.loads(probe)[2], "healthcheck", "exec")


def test_what_is_copied_exists_and_reaches_the_builder() -> None:
    ignore = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    for instruction, rest in instructions():
        if instruction != "COPY" or rest.startswith("--from"):
            continue
        for source in shlex.split(rest)[:-1]:
            assert (ROOT / source).exists()
            assert f"!{source}" in ignore


def test_the_image_installs_pinned_versions_only() -> None:
    pins = (ROOT / "requirements" / "runtime.txt").read_text(encoding="utf-8").splitlines()
    assert all("==" in pin for pin in pins if not pin.startswith("#"))
    assert "-r requirements/runtime.txt" in (ROOT / "Dockerfile").read_text(encoding="utf-8")
