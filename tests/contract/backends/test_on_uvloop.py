"""The same on uvloop, which serves in production: its transports differ from asyncio's."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tests.contract.backends import test_misbehaving_engines as scenarios
from tests.contract.backends.dialects import Dialect

Scenario = Callable[[Dialect], Coroutine[Any, Any, None]]


@pytest.mark.parametrize(
    "scenario",
    [
        scenarios.test_an_answer_and_the_next_on_the_same_connection,
        scenarios.test_everything_in_one_packet,
        scenarios.test_a_body_that_ends_with_the_connection,
        scenarios.test_silence_after_the_first_token_is_a_timeout,
        scenarios.test_a_connection_closed_just_when_it_is_reused,
        scenarios.test_a_connection_closed_while_idle_is_replaced,
        scenarios.test_abort_while_another_task_reads,
        scenarios.test_an_unread_stream_holds_the_engine_back,
        scenarios.test_nobody_listens,
        scenarios.test_a_handshake_that_never_ends_is_a_timeout,
    ],
    ids=lambda scenario: scenario.__name__.removeprefix("test_"),
)
def test_scenario(scenario: Scenario, dialect: Dialect) -> None:
    uvloop.run(scenario(dialect))


@pytest.mark.parametrize("how", ["clean", "cut", "mid_event", "bad_chunk"])
def test_a_stream_without_its_end_mark(dialect: Dialect, how: str) -> None:
    uvloop.run(scenarios.test_a_stream_without_its_end_mark(dialect, how))


def test_over_tls(dialect: Dialect, tmp_path: Path) -> None:
    uvloop.run(scenarios.test_over_tls(dialect, tmp_path))
