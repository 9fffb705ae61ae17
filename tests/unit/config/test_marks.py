"""Names of variables and files of the machine have types of their own, so that nobody lists them elsewhere."""

from __future__ import annotations

from router.config import loads
from router.config.marks import LocalFile, Variable, named
from tests.unit.config.test_shown_values import FIELDS

FLEET = """
auth: {admin_key_env: ADMIN, engine_env: [LATER]}
store: {url: "postgresql+asyncpg://h/d", password_env: DB}
models: [{name: m}]
instances:
  - {name: a, kind: vllm, url: "http://a", serves: {m: m}, ca_file: ca.pem, tokenizer: t.json, headers_env: {X-Org: ORG}}
discovery:
  - {kubernetes: {selector: app=x}, instance: {kind: vllm, serves: {m: m}, api_key_env: POD}}
"""


def test_what_a_fleet_file_names() -> None:
    assert [(each.path, type(each.name), each.name) for each in named(loads(FLEET))] == [
        (("auth", "admin_key_env"), Variable, "ADMIN"),
        (("auth", "engine_env", 0), Variable, "LATER"),
        (("store", "password_env"), Variable, "DB"),
        (("instances", 0, "tokenizer"), LocalFile, "t.json"),
        (("instances", 0, "ca_file"), LocalFile, "ca.pem"),
        (("instances", 0, "headers_env", "X-Org"), Variable, "ORG"),
        (("discovery", 0, "instance", "api_key_env"), Variable, "POD"),
    ]


def test_settings_hold_whatever_the_file_says() -> None:
    """The scaler refuses them later, in words."""
    assert not [*named(loads("models: [{name: m}]\nscaling: {settings: {instances: {p: {q: 1}}}}"))]


def test_every_key_that_names_a_variable_ends_so() -> None:
    """The tests of secrets go by this ending."""
    keys = {str(path[-1]) for path in FIELDS if isinstance(path[-1], str) and path[-1].endswith("_env")}
    assert keys == {"admin_key_env", "engine_env", "password_env", "api_key_env", "headers_env"}
