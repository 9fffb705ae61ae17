"""Log lines: their form, the request that they are about, and what they never hold."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator

import aiosqlite
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router import logs
from router.core.types import Outcome
from router.store.records import RequestRecord


@pytest.fixture
def output() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    yield io.StringIO()
    root.handlers[:] = before
    root.setLevel(level)


def redirect(output: io.StringIO) -> None:
    (handler,) = logging.getLogger().handlers
    assert isinstance(handler, logging.StreamHandler)
    handler.setStream(output)


def record() -> RequestRecord:
    made = RequestRecord(
        "req_1", 1.0, Outcome.LATE, api="chat", key_name="team-a", policy="slo", ttft_s=0.12345678
    )
    made.prompt = "the secret prompt"
    return made


def test_json_lines_parse_and_name_the_request(output: io.StringIO) -> None:
    logs.configure("json", "info")
    redirect(output)
    logger = logging.getLogger("headway")
    logger.info("two\nlines and \u2028 a %s", "separator")
    token = logs.current_request.set("req_7")
    try:
        try:
            raise ValueError("told")
        except ValueError:
            logger.exception("failed")
    finally:
        logs.current_request.reset(token)
    logger.debug("not at this level")
    first, second = map(json.loads, output.getvalue().strip().split("\n"))
    assert first["message"] == "two\nlines and \u2028 a separator"
    assert (first["level"], first["logger"]) == ("info", "headway")
    assert first["time"].endswith("+00:00")
    assert "request_id" not in first
    assert second["request_id"] == "req_7"
    assert "ValueError: told" in second["exception"]


def test_a_request_has_a_line_without_its_prompt(output: io.StringIO) -> None:
    logs.configure("json", "info")
    redirect(output)
    logs.log_request(record())
    (line,) = output.getvalue().strip().split("\n")
    told = json.loads(line)
    assert told["request_id"] == "req_1"
    assert (told["outcome"], told["key_name"], told["ttft_s"]) == ("late", "team-a", 0.123457)
    assert "instance" not in told
    assert "secret" not in line


def test_text_lines_say_the_same(output: io.StringIO) -> None:
    logs.configure("text", "info")
    redirect(output)
    logs.log_request(record())
    token = logs.current_request.set("req_7")
    logging.getLogger("headway").warning("slow")
    logs.current_request.reset(token)
    first, second = output.getvalue().strip().split("\n")
    assert "[req_1] api=chat key_name=team-a policy=slo outcome=late" in first
    assert second.endswith("WARNING headway: slow [req_7]")


def test_the_values_of_statements_are_in_no_log(output: io.StringIO) -> None:
    logs.configure("text", "debug")
    redirect(output)

    async def insert() -> None:
        async with aiosqlite.connect(":memory:") as database:
            await database.execute("SELECT ?", ("the hash of a key",))

    asyncio.run(insert())
    assert "hash" not in output.getvalue()


@given(st.text(), st.text())
def test_nobody_s_text_passes_for_a_line_of_the_log(message: str, value: str) -> None:
    forged = f"{message}\r\n2026-01-01 00:00:00,000 ERROR headway: forged\x1b[2K\u2028x"
    made = logging.LogRecord("headway", logging.INFO, "", 0, "engine said %s", (forged,), None)
    made.fields = {"error_code": value + forged}
    for form in (logs.TextLines(), logs.JsonLines()):
        lines = form.format(made).replace("\r", "\n").split("\n")
        assert not any(line.startswith("2026-01-01 00:00:00,000 ERROR") for line in lines)
        assert "\x1b" not in "".join(lines)


def test_requests_cost_nothing_where_they_are_not_logged(output: io.StringIO) -> None:
    logs.configure("text", "warning")
    redirect(output)
    logs.log_request(record())
    assert output.getvalue() == ""
