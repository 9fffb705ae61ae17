"""What a money cap lets through: the same however the bytes were cut into reads."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from router.gateway.relay.meter import TokenMeter, tokens_of_text

from backends.sse import SseScanner
from router.core.errors import UpstreamError
from router.core.events import Dispatch
from router.core.interfaces import Batch
from router.core.types import Candidate, Decision, Prediction, Price, Request

BOUND = 100
PRICE = Price(1.0, 5.0)


def meter(
    paid: int, bound: int | None = None, *, cap_usd: float = 1.0, hide: bool = False, **request: Any
) -> TokenMeter:
    asked = Request("r", 0.0, "p", ("m",), prompt_tokens_bound=BOUND, max_cost_usd=cap_usd, **request)
    dispatch = Dispatch(
        "r",
        1,
        Candidate("i", "m", "m", PRICE),
        paid if bound is None else bound,
        True,
        Prediction(),
        Decision("p", 0.0, 0, (), None, ()),
        paid,
    )
    return TokenMeter(dispatch, asked, lambda: cap_usd, hide_usage=hide)


def event(delta: dict[str, Any], finish: str | None = None, **members: Any) -> bytes:
    chunk = {"model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]} | members
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def said(text: str, **members: Any) -> bytes:
    return event({"content": text}, **members)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", 0),
        ("a", 1),
        (" internationalization", 1),
        ("\n\n", 1),
        (" " * 128, 1),
        (" " * 129, 2),
        ("one two", 2),
        ("one two three", 4),  # 13 bytes
        ("international organization", 7),
        ("好" * 40, 1),
        ("\udc80", 1),
    ],
)
def test_tokens_of_a_text(text: str, tokens: int) -> None:
    assert tokens_of_text(text) == tokens


@pytest.mark.parametrize(
    ("delta", "members", "tokens"),
    [
        ({"role": "assistant"}, {}, 0),
        ({"role": "assistant", "content": ""}, {}, 0),
        ({"reasoning": "a b", "reasoning_content": "a b"}, {}, 2),
        ({"refusal": "no"}, {}, 1),
        ({"tool_calls": [{"function": {"name": "f", "arguments": '{"city": "Rome"}'}}]}, {}, 5),
        ({"tool_calls": [{"index": 0}]}, {}, 0),
        ({"function_call": {"name": "f"}}, {}, 1),
        ({"content": "x"}, {"usage": {"prompt_tokens": 7, "completion_tokens": 4}}, 4),
        ({"content": "x y z"}, {"usage": {"prompt_tokens": 7, "completion_tokens": 2}}, 2),
        ({"content": "x y z"}, {"usage": {"prompt_tokens": 0, "completion_tokens": 0}}, 3),
        ({"content": ""}, {"usage": {"prompt_tokens": 7, "completion_tokens": 1}}, 1),
    ],
)
def test_tokens_of_an_event(delta: dict[str, Any], members: dict[str, Any], tokens: int) -> None:
    counted = meter(50)
    counted.take(Batch(event(delta, **members)))
    assert counted.tokens == tokens


def test_lists_of_tokens_are_exact() -> None:
    chunk = {"choices": [{"index": 0, "text": "a b c", "logprobs": {"tokens": ["a", " b c"]}}]}
    counted = meter(50)
    counted.take(Batch(b"data: " + json.dumps(chunk).encode() + b"\n\n"))
    chunk = {"choices": [{"index": 0, "delta": {"content": "abc"}, "token_ids": [1, 2, 3]}]}
    counted.take(Batch(b"data: " + json.dumps(chunk).encode() + b"\n\n"))
    assert counted.tokens == 5


def test_what_is_no_event_passes_and_what_is_no_json_does_not() -> None:
    counted = meter(5)
    assert counted.take(Batch(b": still here\n\n")).data == b": still here\n\n"
    with pytest.raises(UpstreamError):
        counted.take(Batch(b'data: {"choices": [\n\n'))


def test_an_engine_that_was_not_told_is_cut_with_the_last_paid_token() -> None:
    """Nothing beyond the cap is produced for it, as far as can be seen; an engine that knows its bound is left to
    end by itself."""
    for bound, spent in ((50, True), (5, False)):
        counted = meter(5, bound)
        kept = counted.take(Batch(said("x") * 5))
        assert (kept.data, kept.tokens, counted.spent) == (said("x") * 5, 5, spent)


def test_the_end_of_an_answer_is_no_cut() -> None:
    counted = meter(2, 50)
    kept = counted.take(Batch(said("x") + event({"content": "y"}, "stop"), 2, None, "stop"))
    assert (kept.finish_reason, counted.spent) == ("stop", False)


def test_the_prompt_takes_from_the_answer_by_price() -> None:
    """15 prompt tokens beyond the bound are the price of three output tokens."""
    cap_usd = PRICE.cost_usd(BOUND, 20)
    counted = meter(20, cap_usd=cap_usd)
    usage = {"prompt_tokens": BOUND + 15, "completion_tokens": 0}
    counted.take(Batch(event({"role": "assistant"}, usage=usage)))
    assert not counted.spent
    kept = counted.take(Batch(said("q") * 30))
    assert (kept.data.count(b"q"), counted.spent, counted.by_money) == (17, True, True)
    # A shorter one is no reason for more, which the engine was not told of.
    counted = meter(20, cap_usd=cap_usd)
    counted.take(Batch(event({"role": "assistant"}, usage=usage | {"prompt_tokens": 1})))
    assert counted.take(Batch(said("q") * 30)).data.count(b"q") == 20


def test_whose_bound_it_is() -> None:
    assert meter(5).by_money
    assert not meter(5, max_tokens=5).by_money
    assert meter(5, max_tokens=6).by_money
    assert not meter(10, 5, max_tokens=5, choices=2).by_money


EVENTS = st.lists(
    st.tuples(st.sampled_from(["", "x", " y", "a b", "one two three "]), st.sampled_from([None, 1, 3])),
    max_size=25,
)


@given(EVENTS, st.integers(1, 20), st.sampled_from([None, 40]), st.lists(st.integers(0, 4000), max_size=6))
def test_the_same_however_the_bytes_were_cut(
    written: list[tuple[str, int | None]], paid: int, bound: int | None, cuts: list[int]
) -> None:
    count, events = 0, [event({"role": "assistant"})]
    for text, more in written:
        if more is None:
            events.append(said(text))
        else:
            count += more
            events.append(said(text, usage={"prompt_tokens": 9, "completion_tokens": count}))
    data = b"".join(events) + b"data: [DONE]\n\n"

    def outcome(places: list[int]) -> tuple[bytes, int, bool, Any]:
        scanner, counted, out = SseScanner("m"), meter(paid, bound), b""
        for start, stop in pairwise([0, *sorted(places), len(data)]):
            if stop > start and not scanner.done:
                batch = scanner.feed(data[start:stop])
                if batch is not None:
                    out += counted.take(batch).data
                    if counted.spent:
                        break
        return out, counted.tokens, counted.spent, counted.usage

    whole = outcome([])
    assert outcome([cut % len(data) for cut in cuts]) == whole
    assert outcome(list(range(0, len(data), 7))) == whole
    passed = meter(10**6)
    passed.take(Batch(whole[0]))
    assert passed.tokens <= max(paid, 0)  # what the client has is paid for


@given(EVENTS, st.integers(1, 60), st.integers(1, 30), st.lists(st.integers(0, 4000), max_size=6))
def test_what_is_held_grows_and_the_outcome_is_the_same_however_the_bytes_were_cut(
    written: list[tuple[str, int | None]], most: int, step: int, cuts: list[int]
) -> None:
    """`most` tokens could be held, `step` at a time: each that is missing is waited for, and the last ones refused."""
    count, events = 0, [event({"role": "assistant"})]
    for text, more in written:
        count += more or 0
        usage = {"prompt_tokens": BOUND, "completion_tokens": count}
        events.append(said(text) if more is None else said(text, usage=usage))
    events.append(event({}, "stop"))
    data = b"".join(events) + b"data: [DONE]\n\n"

    def outcome(places: list[int]) -> tuple[bytes, int, bool, str | None]:
        held = [min(step, most)]
        asked = Request("r", 0.0, "p", ("m",), prompt_tokens_bound=BOUND)
        dispatch = Dispatch(
            "r",
            1,
            Candidate("i", "m", "m", PRICE),
            None,
            False,
            Prediction(),
            Decision("p", 0, 0, (), None, ()),
        )

        def pays(usd: float) -> bool:
            return usd <= PRICE.cost_usd(BOUND, held[0]) + 1e-12

        counted = TokenMeter(dispatch, asked, lambda: 0.0, hide_usage=False, pays=pays)
        scanner, out, finish = SseScanner("m"), b"", None
        for start, stop in pairwise([0, *sorted(places), len(data)]):
            batch = scanner.feed(data[start:stop]) if stop > start and not scanner.done else None
            kept = None if batch is None else counted.take(batch)
            while kept is not None:
                out += kept.data
                finish = kept.finish_reason or finish
                kept = None
                if counted.waiting:
                    assert not pays(counted.needs_usd)
                    while held[0] < most and not pays(counted.needs_usd):
                        held[0] = min(most, held[0] + step)
                    kept = counted.go_on(pays(counted.needs_usd))
            if counted.spent:
                assert counted.by_money
                break
        return out, counted.tokens, counted.spent, finish

    whole = outcome([])
    assert outcome([cut % len(data) for cut in cuts]) == whole
    assert outcome(list(range(0, len(data), 7))) == whole
    passed = meter(10**6)
    passed.take(Batch(whole[0]))
    assert passed.tokens <= most  # what the client has is paid for
    if not whole[2]:
        assert (whole[0] + b"data: [DONE]\n\n", whole[3]) == (data, "stop")


def test_more_at_the_end_than_could_be_seen_is_asked_for_before_it_ends() -> None:
    asked = Request("r", 0.0, "p", ("m",), prompt_tokens_bound=BOUND)
    dispatch = Dispatch(
        "r", 1, Candidate("i", "m", "m", PRICE), None, False, Prediction(), Decision("p", 0, 0, (), None, ())
    )
    usage = {"prompt_tokens": BOUND + 5, "completion_tokens": 40, "total_tokens": BOUND + 45}
    for held in (40, 10):
        covered = [PRICE.cost_usd(BOUND + 5, 10)]
        counted = TokenMeter(
            dispatch,
            asked,
            lambda: 0.0,
            hide_usage=False,
            pays=lambda usd, covered=covered: usd <= covered[0],
        )
        kept = counted.take(Batch(said("x") + event({}, "stop"), 1, usage, "stop"))
        assert (kept.finish_reason, kept.usage, counted.waiting) == (None, None, True)
        assert counted.needs_usd == PRICE.cost_usd(BOUND + 5, 40)
        covered[0] = PRICE.cost_usd(BOUND + 5, held)
        kept = counted.go_on(held == 40)
        assert (kept.data, kept.finish_reason, kept.usage) == (b"", "stop", usage)
        assert not counted.spent
