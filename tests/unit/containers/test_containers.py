"""docker-compose.yml against the compose specification's own schema, and what the image must keep.

`compose-spec.json` beside this file is the schema of the Compose Specification
(github.com/compose-spec/compose-spec, schema/compose-spec.json, Apache-2.0), as the package
check-jsonschema 0.39.0 carries it.
"""

import json
import re
import shlex
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jsonschema
import pytest
import yaml

from router.cli import build_parser
from router.config import FleetConfig, load

ROOT = Path(__file__).resolve().parents[3]
SCHEMA = json.loads((Path(__file__).parent / "compose-spec.json").read_text(encoding="utf-8"))
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES = COMPOSE["services"]
#: Those that run our image: the gateway and one emulated engine for each instance of the fleet.
OURS = sorted(name for name, service in SERVICES.items() if service["image"] == "headway:local")
ENGINES = [name for name in OURS if name != "gateway"]
FLEETS = sorted(path.name for path in (ROOT / "fleets").glob("compose*.yaml"))


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


@pytest.mark.parametrize("name", [name for name in SERVICES if "profiles" not in SERVICES[name]])
def test_services_have_no_privileges(name: str) -> None:
    service = SERVICES[name]
    assert "no-new-privileges:true" in service["security_opt"]
    assert "privileged" not in service
    if name != "postgres":  # whose image prepares its volume as root and then runs without
        assert service["cap_drop"] == ["ALL"]
        assert service["read_only"] is True


def test_ports_are_on_loopback_only() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert sorted(published) == ["grafana", "prometheus", "proxy"]
    assert all(port.startswith("127.0.0.1:") for ports in published.values() for port in ports)


def test_two_gateways_share_one_state_and_one_store(fleet: FleetConfig) -> None:
    assert SERVICES["gateway"]["deploy"]["replicas"] == 2
    assert fleet.state.url.startswith("redis://redis:")
    assert fleet.store.url.startswith("postgresql+asyncpg://headway@postgres/")


@pytest.mark.parametrize("name", FLEETS)
def test_a_fleet_gets_every_secret_and_reaches_only_services(name: str) -> None:
    fleet = load(ROOT / "fleets" / name)
    given = SERVICES["gateway"]["environment"]
    for wanted in (fleet.auth.admin_key_env, fleet.store.password_env, fleet.state.password_env):
        assert wanted in given
    for url in (fleet.store.url, fleet.state.url, *(each.url for each in fleet.instances)):
        assert urlsplit(url).hostname in SERVICES


def test_a_password_is_the_same_on_both_sides() -> None:
    gateway = SERVICES["gateway"]["environment"]
    assert SERVICES["postgres"]["environment"]["POSTGRES_PASSWORD"] == gateway["HEADWAY_STORE_PASSWORD"]
    assert gateway["HEADWAY_STATE_PASSWORD"] in SERVICES["redis"]["command"]


def test_nothing_starts_without_secrets_of_its_own() -> None:
    text = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    given = dict(re.findall(r"\$\{(\w+):([-?])", text))
    secrets = {name for name in given if re.search("KEY|PASSWORD", name)}
    assert secrets == {
        "HEADWAY_ADMIN_KEY",
        "HEADWAY_STORE_PASSWORD",
        "HEADWAY_STATE_PASSWORD",
        "GRAFANA_PASSWORD",
    }
    for name in secrets:
        assert set(re.findall(rf"\$\{{{name}(..)", text)) == {":?"}  # unset and empty are refused


@pytest.mark.parametrize("name", FLEETS)
def test_clients_need_keys(name: str) -> None:
    assert load(ROOT / "fleets" / name).auth.required


def test_the_proxy_says_who_asked_and_believes_nobody() -> None:
    text = (ROOT / "deploy" / "nginx" / "headway.conf").read_text(encoding="utf-8")
    told = dict(re.findall(r"^proxy_set_header (\S+) (.+?);", text, re.MULTILINE))
    # What a client says itself is replaced.
    assert told["X-Forwarded-For"] == told["X-Real-IP"] == "$remote_addr"
    assert (told["Host"], told["X-Forwarded-Host"], told["Forwarded"]) == ("$http_host", "$http_host", '""')


def test_every_instance_of_the_fleet_is_a_service_with_its_engine(fleet: FleetConfig) -> None:
    assert sorted(each.name for each in fleet.instances) == ENGINES
    for instance in fleet.instances:
        command = SERVICES[instance.name]["command"]
        options = dict(zip(command[1::2], command[2::2], strict=True))
        assert instance.url == f"http://{instance.name}:{options['--port']}"
        assert options["--kind"] == instance.kind
        (model,) = instance.serves
        assert options["--profile"] == instance.profile_name(model)
        assert options.get("--model", model) == instance.serves[model].name


@pytest.mark.parametrize(("profile", "engine"), [("vllm", "vllm-0"), ("ollama", "ollama-0")])
def test_a_profile_brings_a_real_engine_on_a_gpu(profile: str, engine: str) -> None:
    fleet = load(ROOT / "fleets" / f"compose-{profile}.yaml")
    (instance,) = fleet.instances
    service = SERVICES[engine]
    assert (instance.name, instance.kind, service["profiles"]) == (engine, profile, [profile])
    (device,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert device["capabilities"] == ["gpu"]
    assert str(urlsplit(str(instance.url)).port) in service["expose"]


def test_prometheus_scrapes_every_emulated_vllm(fleet: FleetConfig) -> None:
    prometheus = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text(encoding="utf-8"))
    gateways, engines = prometheus["scrape_configs"]
    assert gateways["dns_sd_configs"][0]["names"] == ["gateway"]
    known = {f"{each.name}:8000" for each in fleet.instances if each.kind == "vllm"}
    assert set(engines["static_configs"][0]["targets"]) == known


def test_what_is_mounted_exists() -> None:
    for service in SERVICES.values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0].replace("${HEADWAY_FLEET", "")
            if source == "./fleets/":
                source = "./fleets/compose.yaml"
            assert (ROOT / source).exists() if source.startswith(".") else source in COMPOSE["volumes"]


@pytest.mark.parametrize("name", OURS)
def test_commands_are_known_to_the_command_line(name: str) -> None:
    command = [str(word) for word in SERVICES[name]["command"]]
    assert build_parser(command[0]).parse_args(command).command == command[0]


def test_the_gateway_reads_the_fleet_that_is_mounted() -> None:
    gateway = SERVICES["gateway"]
    path = gateway["command"][gateway["command"].index("--config") + 1]
    assert f"./fleets/${{HEADWAY_FLEET:-compose.yaml}}:{path}:ro" in gateway["volumes"]


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
    assert len(bases) == 2
    assert len(set(bases)) == 1
    assert re.match(r"python:3\.11\.\d+-slim-", bases[0])


#: Images that are not pinned by digest, with the reason. Every other one is, so that a tag that is moved changes nothing.
UNPINNED = {"headway:local": "built on the spot from the Dockerfile"}


def test_every_image_is_pinned_by_digest() -> None:
    files = [
        ROOT / "Dockerfile",
        ROOT / "docker-compose.yml",
        *(ROOT / "deploy").rglob("*.yaml"),
        *(ROOT / "deploy").rglob("*.yml"),
    ]
    named = [
        (path.name, image)
        for path in files
        for image in re.findall(
            r"^\s*(?:FROM|image:|# ?syntax ?=)[ \t]*([^\s{}]+)",
            path.read_text(encoding="utf-8"),
            re.MULTILINE,
        )
        if image not in ('""', '"')  # a template, filled in from values
    ]
    assert len(named) > 8
    loose = [each for each in named if not re.search(r":[\w.-]+@sha256:[0-9a-f]{64}$", each[1])]
    assert {image for _, image in loose} == set(UNPINNED)
    digests: dict[str, set[str]] = {}
    for _, image in named:
        digests.setdefault(image.partition("@")[0], set()).add(image)
    assert all(len(each) == 1 for each in digests.values())


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
