"""Error shapes of engines."""

from __future__ import annotations

import orjson
import pytest

from backends.engine_errors import from_response
from router.core.errors import UpstreamRejected

VALIDATION = (
    "1 validation error:\n  {'type': 'list_type', 'loc': 'body.messages', "
    "'msg': 'Input should be a valid list', 'input': 'SECRET PROMPT'}"
)


def refused(payload: object, status: int = 400) -> UpstreamRejected:
    error = from_response(status, orjson.dumps(payload))
    assert isinstance(error, UpstreamRejected)
    return error


def test_vllm_s_refusal() -> None:
    error = refused(
        {"error": {"message": "m", "type": "BadRequestError", "param": "body.top_k", "code": 400}}
    )
    assert (str(error), error.param, error.code, error.status) == ("m", "top_k", None, 400)


def test_openai_s_refusal_keeps_its_code() -> None:
    error = refused({"error": {"message": "m", "type": "invalid_request_error", "param": None, "code": "x"}})
    assert (error.param, error.code) == (None, "x")


@pytest.mark.parametrize("code", ["a\nb", "x" * 65, "a b", "", "\x00", 7, ["a"]])
def test_a_code_that_is_no_identifier_is_left_out(code: object) -> None:
    assert refused({"error": {"message": "m", "code": code}}).code is None


@pytest.mark.parametrize(
    "payload",
    [
        {"error": {"message": VALIDATION, "type": "Bad Request", "code": 400}},
        {"object": "error", "message": VALIDATION},
        {"error": VALIDATION},
    ],
)
def test_repeated_input_is_left_out(payload: object) -> None:
    assert str(refused(payload)) == "Input should be a valid list"


def test_fastapi_s_detail() -> None:
    detail = [{"loc": ["body", "n"], "msg": "too big", "input": "SECRET PROMPT"}]
    assert str(refused({"detail": detail}, 422)) == "body.n: too big"
    assert str(refused({"detail": "bad"})) == "bad"


def test_the_offending_value_is_left_out() -> None:
    message = "temperature must be non-negative (parameter=temperature, value=-3.0)"
    assert str(refused({"error": {"message": message}})) == "temperature must be non-negative"


@pytest.mark.parametrize(
    "error",
    [
        {"message": "This model's maximum context length is 2048 tokens. However, ...", "code": 400},
        {"message": "too many tokens", "type": "exceed_context_size_error", "code": 400},
        "the input length exceeds the context length",
    ],
)
def test_a_prompt_over_the_context(error: object) -> None:
    assert refused({"error": error}).code == "context_length_exceeded"


def test_long_messages_are_cut() -> None:
    assert len(str(refused({"error": "x" * 1000}))) == 300


@pytest.mark.parametrize("body", [b"", b"oops", b"null", b"[]", b'{"error":7}', b'{"detail":[3]}', b"{}"])
def test_shapeless_refusals(body: bytes) -> None:
    assert str(from_response(400, body)) == "the engine refused the request"


def test_failures_hold_no_text_of_the_engine() -> None:
    body = orjson.dumps({"error": {"message": "SECRET", "type": "Weird SECRET type", "code": "overloaded"}})
    error = from_response(503, body)
    assert not isinstance(error, UpstreamRejected)
    assert (str(error), error.status) == ("the engine answered 503 (overloaded)", 503)


@pytest.mark.parametrize(
    ("status", "body", "counts_as"),
    [
        (404, b'{"detail":"Not Found"}', 501),  # transformers serve, for /v1/embeddings
        (405, b'{"detail":"Method Not Allowed"}', 501),
        (
            404,
            b'{"error":{"message":"The model `m` does not exist.","type":"NotFoundError","code":404}}',
            404,
        ),
        (404, b"404 page not found", 404),
    ],
)
def test_an_endpoint_that_the_engine_does_not_have(status: int, body: bytes, counts_as: int) -> None:
    error = from_response(status, body)
    assert error.status == counts_as
    assert str(error).startswith(f"the engine answered {status}")
    assert ("no such endpoint" in str(error)) == (counts_as == 501)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (
            "input (3002 tokens) is too large to process. increase the physical batch size (current batch size: 512)",
            "input (3002 tokens) is too large to process",
        ),
        (
            "image input is not supported - hint: if this is unexpected, you may need to provide the mmproj",
            "image input is not supported",
        ),
    ],
)
def test_what_llama_server_lacks(message: str, reason: str) -> None:
    error = from_response(
        500, orjson.dumps({"error": {"code": 500, "message": message, "type": "server_error"}})
    )
    assert (str(error), error.status) == (f"the engine answered 500: {reason}", 501)
