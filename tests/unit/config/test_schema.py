"""The published JSON schema of the fleet file, from which editors complete and check."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from router.config import ConfigError, loads
from tests.commands import Headway

ROOT = Path(__file__).resolve().parents[3]
PUBLISHED = ROOT / "docs" / "fleet.schema.json"


def test_the_published_schema_is_the_one_of_this_version(headway: Headway) -> None:
    """If this fails: headway check --schema > docs/fleet.schema.json"""
    assert json.loads(PUBLISHED.read_text(encoding="utf-8")) == json.loads(headway.out("check", "--schema"))


@pytest.mark.parametrize("path", sorted((ROOT / "fleets").glob("*.yaml")), ids=lambda path: path.name)
def test_our_fleets_are_valid_to_an_editor(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    schema = json.loads(PUBLISHED.read_text(encoding="utf-8"))
    validator = jsonschema.Draft202012Validator(schema)
    validator.check_schema(schema)
    assert [error.message for error in validator.iter_errors(yaml.safe_load(text))] == []
    if not path.is_symlink():
        assert text.startswith("# yaml-language-server: $schema=../docs/fleet.schema.json\n")


@pytest.mark.parametrize(
    "section",
    [
        {"auth": {"keys": [{"name": "a", "sha256": "sk-plain"}]}},
        {"auth": {"admin_key_env": "sk-plain"}},
        {"store": {"url": "sqlite:///x.db"}},
        {"state": {"url": "localhost:6379"}},
        {"instances": [{"name": "a", "kind": "vllm", "url": "10.0.0.3:8000", "serves": {"m": "x"}}]},
        {"instances": [{"name": "a", "kind": "emulated", "profile": "llama", "serves": {"m": "x"}}]},
    ],
)
def test_an_editor_sees_what_a_check_refuses(section: dict[str, Any]) -> None:
    validator = jsonschema.Draft202012Validator(json.loads(PUBLISHED.read_text(encoding="utf-8")))
    fleet = {"models": [{"name": "m"}]} | section
    with pytest.raises(ConfigError):
        loads(json.dumps(fleet))
    assert len(list(validator.iter_errors(fleet))) == 1


def test_an_editor_sees_a_typo() -> None:
    validator = jsonschema.Draft202012Validator(json.loads(PUBLISHED.read_text(encoding="utf-8")))
    fleet = yaml.safe_load((ROOT / "fleets" / "mixed-8b.yaml").read_text(encoding="utf-8"))
    fleet["limits"] = {"max_que": 3}
    (error,) = validator.iter_errors(fleet)
    assert "max_que" in error.message
