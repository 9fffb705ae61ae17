"""Ollama's read-only endpoints and error bodies."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from ollama import ListResponse, ProcessResponse, ShowResponse

from backends.ollama import tagged
from router.core.errors import Refusal, invalid_request
from router.core.types import Outcome
from router.gateway.codecs.ollama.answer import error_body, refusal_body
from router.gateway.routes.models import OLLAMA_VERSION, ModelCard, parameter_size, ps, show, tags

AT_NS = 1_700_000_000_000_000_000
AT = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
LLAMA = ModelCard("llama-3.1-8b", family="llama", quantization="Q4_K_M", context_tokens=131072)
PLAIN = ModelCard("org/custom:7b")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("llama-3.1-8b", "llama-3.1-8b:latest"),
        ("llama3.1:8b", "llama3.1:8b"),
        ("org/name", "org/name:latest"),
        ("host:5000/org/name", "host:5000/org/name:latest"),
    ],
)
def test_tagged(name: str, expected: str) -> None:
    assert tagged(name) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("llama-3.1-8b", "8.0B"),
        ("meta-llama/Llama-3.1-70B-Instruct", "70.0B"),
        ("qwen2.5:0.5b-instruct", "0.5B"),
        ("smollm-135m", "135.0M"),
        ("mixtral-8x7b", "8x7B"),
        ("gpt-4o", None),
        ("big-model", None),
        ("8bit-thing", None),
    ],
)
def test_parameter_size(name: str, expected: str | None) -> None:
    assert parameter_size(name) == expected


def test_tags() -> None:
    found = tags([LLAMA, PLAIN], AT_NS)
    one, two = ListResponse.model_validate(found).models
    assert (one.model, one.modified_at, one.size) == ("llama-3.1-8b:latest", AT, 0)
    assert (one.details.family, one.details.families) == ("llama", ["llama"])
    assert (one.details.parameter_size, one.details.quantization_level) == ("8.0B", "Q4_K_M")
    assert two.model == "org/custom:7b"
    assert found["models"][0]["name"] == "llama-3.1-8b:latest"
    assert found["models"][0]["details"]["context_length"] == 131072
    assert found["models"][0]["capabilities"] == ("completion", "tools")
    digests = [model["digest"] for model in found["models"]]
    assert [len(digest) for digest in digests] == [64, 64]
    assert len(set(digests)) == 2
    assert digests == [model["digest"] for model in tags([LLAMA, PLAIN], 0)["models"]]
    assert tags([], AT_NS) == {"models": []}


def test_ps() -> None:
    one, two = ProcessResponse.model_validate(ps([LLAMA, PLAIN])).models
    assert (one.name, one.context_length) == ("llama-3.1-8b:latest", 131072)
    assert (one.size, one.size_vram) == (0, 0)
    assert one.expires_at.year == 9999
    assert two.context_length == 0


def test_show() -> None:
    found = ShowResponse.model_validate(show(LLAMA, AT_NS))
    assert found.modified_at == AT
    assert found.capabilities == ["completion", "tools"]
    assert found.modelinfo["general.architecture"] == "llama"
    assert found.modelinfo["general.parameter_count"] == 8_000_000_000
    assert found.modelinfo["llama.context_length"] == 131072
    plain = ShowResponse.model_validate(show(ModelCard("x"), AT_NS))
    assert plain.modelinfo == {"general.architecture": "unknown", "general.basename": "x"}
    assert "general.parameter_count" not in show(ModelCard("mixtral-8x7b"), AT_NS)["model_info"]


def test_version_is_one_that_clients_can_compare() -> None:
    assert all(part.isdigit() for part in OLLAMA_VERSION.split("."))


def test_error_bodies() -> None:
    assert json.loads(error_body('a "b"')) == {"error": 'a "b"'}
    unknown = Refusal(404, "model_not_found", "The model does not exist", Outcome.REJECTED_INVALID)
    assert json.loads(refusal_body(unknown, "x:y")) == {"error": "model 'x:y' not found"}
    busy = Refusal(503, "server_overloaded", "The queue is full", Outcome.REJECTED_OVERLOAD)
    assert json.loads(refusal_body(busy, "x")) == {
        "error": "server busy, please try again.  maximum pending requests exceeded"
    }
    assert json.loads(refusal_body(invalid_request("bad seed", "options.seed"), "x")) == {"error": "bad seed"}
