"""Which answers engines are asked for in one piece, and how these count."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from router.core.events import Arrived, Ended, Event, FirstToken, LoadReported, Tick
from router.core.money.reservation import Funding
from router.core.settings import SchedulerSettings
from router.core.state import Instance
from router.core.streaming import as_sent, needs_stream
from router.core.types import Candidate, EndedHow, LoadReport, Prediction, Request, Slo
from router.decision_log import compared
from tests.unit.core.worlds import Fixed, dispatched, finished, instance, request, scheduler

WHEN_NEEDED = {"streams_when_needed": True, "streamed_share": 0.0}
NOBODY_STREAMS = {"client_streams": False}


@pytest.mark.parametrize(
    ("fields", "settings", "needed"),
    [
        ({}, {}, False),
        ({"slo": Slo(e2e_s=9.0), "hard": True}, {}, False),
        ({"hedges": False}, {"hedge_share": 0.1}, False),
        ({"slo": Slo(e2e_s=9.0)}, {"hedge_share": 0.1}, True),
        ({"slo": Slo(ttft_s=1.0)}, {}, True),
        ({"slo": Slo(tpot_s=1.0)}, {}, True),
        ({"max_cost_usd": 1.0}, {}, True),
        ({"slo": Slo(ttft_s=1.0)}, {"hedge_share": 0.1}, True),
        ({"client_streams": True}, {}, True),
    ],
)
def test_what_needs_the_stream(fields: dict[str, Any], settings: dict[str, Any], needed: bool) -> None:
    asked = request(**NOBODY_STREAMS | fields)
    given = SchedulerSettings(**WHEN_NEEDED | settings)
    assert needs_stream(asked, None, given) is needed
    assert as_sent(asked, None, given, Random(1)).engine_streams is needed
    assert asked.engine_streams
    if not needed:
        assert as_sent(asked, None, given, Random(1)) == replace(asked, engine_streams=False, hedges=False)
    assert needs_stream(asked, Funding(1.0, 1.0, 1.0, 1.0), given)
    always = SchedulerSettings(**settings)
    assert as_sent(asked, None, always, Random(1)) is asked


def test_a_share_is_streamed_all_the_same() -> None:
    settings = SchedulerSettings(streams_when_needed=True, streamed_share=0.25)
    rng = Random(1)
    streamed = sum(
        as_sent(request(**NOBODY_STREAMS), None, settings, rng).engine_streams for _ in range(2000)
    )
    assert 430 < streamed < 570


class Second(Fixed):
    """Predicts a first token after a second."""

    def predict(self, request: Request, candidate: Candidate, instance: Instance, now: float) -> Prediction:
        return Prediction(output_tokens_p50=10.0, engine_ttft_s=1.0)


def work(of: Instance) -> tuple[int, int, int, int]:
    return of.in_flight, of.awaiting_first_token, of.pending_prefill_tokens, of.context_tokens


def test_an_answer_in_one_piece_has_no_ttft_and_leaves_nothing_behind() -> None:
    predictor, a = Second(), instance("a")
    s = scheduler(a, predictor=predictor, **WHEN_NEEDED)
    sent = dispatched(s.handle(Arrived(request(slo=Slo(e2e_s=9.0), **NOBODY_STREAMS)), 0.0))
    assert not sent.streams
    assert work(a) == (1, 1, 100, 0)
    s.handle(Arrived(request("r2")), 0.5)
    assert work(a) == (2, 2, 200, 0)
    s.handle(FirstToken("r2", 1), 2.0)  # by now the first one's is assumed
    assert work(a) == (2, 0, 0, 220)
    settlement = finished(s.handle(Ended("r1", 1, EndedHow.OK, 7, 90), 3.0))
    assert (settlement.ttft_s, settlement.tpot_s, settlement.e2e_s) == (None, None, 3.0)
    assert (settlement.slo_met, settlement.decoded) == (True, True)
    s.handle(Ended("r2", 1, EndedHow.OK, 7, 90), 3.0)
    assert work(a) == (0, 0, 0, 0)
    assert predictor.ttfts == [1.5]
    assert predictor.ends == [(7, None), (7, pytest.approx(1 / 6))]


@pytest.mark.parametrize("event", [Tick(), LoadReported("nobody", LoadReport())])
def test_an_assumed_first_token_makes_room_in_an_engines_queue(event: Event) -> None:
    s = scheduler(instance("a"), predictor=Second(), **WHEN_NEEDED)
    for number in range(4):
        dispatched(s.handle(Arrived(request(f"r{number}", **NOBODY_STREAMS)), 0.0))
    s.handle(LoadReported("a", LoadReport(running=1, waiting=9)), 0.1)
    assert s.wake_at == 600.0
    assert s.handle(Arrived(request("r4")), 0.2) == []
    assert s.wake_at == 1.0
    assert s.handle(Tick(), 0.3) == []
    assert dispatched(s.handle(event, 1.0)).request_id == "r4"
    assert s.wake_at == 600.0
    assert s._open.first_tokens_at == float("inf")


def test_an_end_before_the_assumed_first_token() -> None:
    a = instance("a")
    s = scheduler(a, predictor=Second(), **WHEN_NEEDED)
    s.handle(Arrived(request(**NOBODY_STREAMS)), 0.0)
    s.handle(Ended("r1", 1, EndedHow.OK, 7, 90), 0.5)
    s.handle(Arrived(request("r2", at=2.0)), 2.0)
    assert work(a) == (1, 1, 100, 0)


def test_only_what_is_not_streamed_is_written_in_the_decision_log() -> None:
    """So logs of earlier versions are compared too."""
    for fields, whole in (({}, False), (NOBODY_STREAMS, True)):
        s = scheduler(instance("a"), **WHEN_NEEDED)
        sent = dispatched(s.handle(Arrived(request(**fields)), 0.0))
        text = compared([sent])
        assert text.endswith("null,false,false]]\n" if whole else "null,false]]\n")
