"""The stream meter: what counts as a first token, how events are counted however they are cut."""

import orjson
import pytest

from benchmarks.replay.row import Row
from benchmarks.replay.stream import StreamMeter
from benchmarks.replay.summary import summarise


def event(**delta: object) -> bytes:
    return (
        b"data: " + orjson.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}) + b"\n\n"
    )


FINISH = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
USAGE = (
    b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4},"headway":{"outcome":"ok"}}\n\n'
)
DONE = b"data: [DONE]\n\n"


def test_role_and_keep_alive_are_no_first_token() -> None:
    meter = StreamMeter()
    meter.feed(b": ping\n\n" + event(role="assistant", content=""), 1.0)
    assert meter.first_at is None
    meter.feed(event(content="a"), 2.0)
    assert (meter.first_at, meter.events) == (2.0, 1)


@pytest.mark.parametrize("key", ["content", "reasoning", "reasoning_content", "refusal"])
def test_any_output_is_a_first_token(key: str) -> None:
    meter = StreamMeter()
    meter.feed(event(**{key: "x"}), 1.0)
    assert meter.first_at == 1.0


def test_tool_calls_and_plain_completions_too() -> None:
    tool, text = StreamMeter(), StreamMeter()
    tool.feed(event(tool_calls=[{"index": 0}]), 1.0)
    text.feed(b'data: {"choices":[{"text":"a"}]}\n\n', 1.0)
    assert tool.first_at == text.first_at == 1.0


def test_gaps_and_bunches() -> None:
    meter = StreamMeter()
    meter.feed(event(content="a"), 1.0)
    meter.feed(event(content="b") + event(content="c"), 1.5)
    meter.feed(event(content="d"), 1.6)
    meter.feed(FINISH + USAGE + DONE, 1.6)
    meter.finish()
    gaps = meter.gaps_s()
    assert meter.done
    assert gaps.max == pytest.approx(0.5)
    assert (meter.first_at, meter.last_at, meter.finish_reason) == (1.0, 1.6, "stop")
    assert meter.usage == {"prompt_tokens": 3, "completion_tokens": 4}
    assert meter.headway == {"outcome": "ok"}


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 10_000])
def test_events_are_counted_the_same_however_the_bytes_are_cut(size: int) -> None:
    tricky = event(content='data: {"x"') + event(content="\n\ndata: [DONE]\n\n") + event(content="c")
    stream = event(role="assistant") + event(content="a") + tricky + FINISH + USAGE + DONE
    meter = StreamMeter()
    for start in range(0, len(stream), size):
        meter.feed(stream[start : start + size], float(start))
    meter.finish()
    assert meter.events == 6  # a, three tricky ones, finish, usage
    assert meter.done
    assert meter.usage is not None


def test_an_answer_without_a_token_is_read_all_the_same() -> None:
    meter = StreamMeter()
    meter.feed(event(role="assistant"), 1.0)
    meter.feed(FINISH + USAGE, 2.0)
    meter.feed(DONE, 3.0)
    meter.finish()
    assert (meter.first_at, meter.finish_reason, meter.done) == (None, "stop", True)
    assert meter.usage is not None


def test_error_event_and_missing_done() -> None:
    meter = StreamMeter()
    meter.feed(event(content="a") + b'data: {"error":{"message":"gone","code":"upstream_error"}}\n\n', 1.0)
    meter.finish()
    assert not meter.done
    assert meter.error == {"message": "gone", "code": "upstream_error"}


def test_long_streams_keep_little() -> None:
    meter = StreamMeter()
    for index in range(5000):
        meter.feed(event(content="word "), float(index))
    meter.feed(FINISH + USAGE + DONE, 5000.0)
    assert len(meter._data) < 1 << 17
    meter.finish()
    assert meter.done
    assert meter.events == 5002


def judged(**fields: object) -> Row:
    row = Row(id="a", scheduled_s=0.0, sent_s=0.0, **fields)  # type: ignore[arg-type]
    row.judge()
    return row


def test_outcomes_in_the_contracts_words() -> None:
    slo = {"ttft_ms": 100.0}
    assert judged(status=200, complete=True, ttft_s=0.05, e2e_s=1.0, slo=slo).outcome == "ok"
    assert judged(status=200, complete=True, ttft_s=0.2, e2e_s=1.0, slo=slo).outcome == "late"
    assert judged(status=429, error_code="slo_unattainable", slo=slo).outcome == "rejected_slo"
    assert judged(status=429).outcome == "rejected_rate"
    assert judged(status=503, error_code="no_instance").outcome == "rejected_no_instance"
    assert judged(status=400, error_code="weird").outcome == "rejected_invalid"
    assert judged(status=500).outcome == "backend_error"
    assert judged(status=None).outcome == "backend_error"
    assert judged(status=200).outcome == "backend_error"  # a stream that broke
    assert judged(status=504, error_code="ttft_timeout", slo=slo).met is False


def test_the_gateways_own_slo_counts_where_the_client_knows_none() -> None:
    row = judged(status=200, complete=True, headway={"slo_met": False, "outcome": "late"})
    assert (row.met, row.outcome, row.gateway_outcome) == (False, "late", "late")
    assert judged(status=200, complete=True, headway={"slo_met": None}).met is None


def test_what_the_gateway_attained_counts_answers_that_money_ended_in_time() -> None:
    slo = {"ttft_ms": 100.0}
    done = {"status": 200, "complete": True, "ttft_s": 0.05, "e2e_s": 1.0, "slo": slo}
    rows = [
        judged(**done, headway={"outcome": "budget_exhausted_mid_decode", "slo_met": True}),
        judged(**done, headway={"outcome": "ok", "slo_met": True}),
        judged(**done, headway={"outcome": "late", "slo_met": False}),
        judged(status=429, error_code="slo_unattainable", slo=slo, headway={"outcome": "rejected_slo"}),
    ]
    assert summarise(rows)["gateway_attainment"] == 0.5
