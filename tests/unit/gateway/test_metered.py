"""What of a stream is passed on for its money: the same however the bytes were cut into reads."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.scanning import Assembler, SseScanner
from router.core.errors import UpstreamError
from router.core.interfaces import Batch
from router.core.money.account import OutputBound
from router.core.money.meter import TokenMeter
from router.core.money.reservation import Allowance
from router.core.types import Candidate, Price, Request
from router.gateway.relay.event_tokens import tokens_of_json, tokens_of_text
from router.gateway.relay.metered import MeteredStream

BOUND = 100
PRICE = Price(1.0, 5.0)


def metered(
    bound: OutputBound, allowance: Allowance | None = None, *, hide_usage: bool = False, choices: int = 1
) -> MeteredStream:
    request = Request("r", 0.0, "p", ("m",), prompt_tokens_bound=BOUND)
    meter = TokenMeter(request, Candidate("i", "m", "m", PRICE), bound, allowance)
    return MeteredStream(meter, choices, hide_usage=hide_usage)


def paid(tokens: int, bound: int | None = None, **options: Any) -> MeteredStream:
    """A cap pays for so many tokens; the engine gets `bound` (by default the same)."""
    return metered(OutputBound(tokens if bound is None else bound, True, tokens, 1.0), **options)


def reserved(tokens: int, prompt_tokens: int = BOUND, *, final: bool = False) -> Allowance:
    """The cost of so many tokens is reserved."""
    covered_usd = PRICE.cost_usd(prompt_tokens, tokens) + 1e-12
    return Allowance(covered_usd, covered_usd, final)


def event(delta: dict[str, Any], finish: str | None = None, index: int = 0, **members: Any) -> bytes:
    chunk = {"model": "m", "choices": [{"index": index, "delta": delta, "finish_reason": finish}]} | members
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def said(text: str, **members: Any) -> bytes:
    return event({"content": text}, **members)


USAGE = {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 3}}


def ended(choices: list[int], **members: Any) -> bytes:
    found = [{"index": index, "delta": {}, "finish_reason": "stop"} for index in choices]
    return event({}, **{"choices": found, **members})


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
        ("—" * 32, 1),
        (" สำนักเลขานุการองค์กร", 1),  # one token of GPT-4o's vocabulary, of 61 bytes
        # 87 bytes: Qwen 3 makes 19 tokens of them, Llama 3.1 26
        ("人人生而自由，在尊严和权利上一律平等。他们赋有理性和良心。", 22),
        ("人民代表", 1),
        ("ありがとう", 4),  # 15 bytes
        ("哈哈哈哈哈", 1),
        ("👩🏽\u200d💻👩🏽\u200d💻", 8),  # 30 bytes
        ("0123456789abcdef" * 16, 64),
        ("\udc80", 1),
    ],
)
def test_tokens_of_a_text(text: str, tokens: int) -> None:
    assert tokens_of_text(text) == tokens


@given(
    st.text(st.sampled_from('ab \n"\\\x7fé好\u2003'), min_size=1) | st.text("a ", min_size=100, max_size=150)
)
def test_tokens_of_a_text_in_the_form_of_json_are_those_of_the_text(text: str) -> None:
    assert tokens_of_json(orjson.dumps(text)[1:-1]) == tokens_of_text(text)


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
    stream = paid(50)
    stream.take(Batch(event(delta, **members)))
    assert stream.meter.tokens == tokens


def test_lists_of_tokens_are_exact() -> None:
    chunk = {"choices": [{"index": 0, "text": "a b c", "logprobs": {"tokens": ["a", " b c"]}}]}
    stream = paid(50)
    stream.take(Batch(b"data: " + json.dumps(chunk).encode() + b"\n\n"))
    chunk = {"choices": [{"index": 0, "delta": {"content": "abc"}, "token_ids": [1, 2, 3]}]}
    stream.take(Batch(b"data: " + json.dumps(chunk).encode() + b"\n\n"))
    assert stream.meter.tokens == 5


@pytest.mark.parametrize("batches", [1, 4])
def test_events_of_several_tokens_do_not_end_an_answer_before_the_clients_bound(batches: int) -> None:
    """Their text may hold fewer tokens than it seems to; each event holds at least one."""
    request = Request("r", 0.0, "p", ("m",), prompt_tokens_bound=BOUND, max_tokens=4)
    meter = TokenMeter(request, Candidate("i", "m", "m", PRICE), OutputBound(4, False, 90, 1.0), None)
    stream = MeteredStream(meter, 1, hide_usage=False)
    for _ in range(batches):
        stream.take(Batch(said("one two") * (4 // batches)))
    assert (stream.meter.tokens, stream.stopped) == (8, False)
    stream.take(Batch(said("one two")))
    assert (stream.stopped, meter.by_money) == (True, False)


def test_what_is_no_event_passes_and_what_is_no_json_does_not() -> None:
    stream = paid(5)
    assert stream.take(Batch(b": still here\n\n")).data == b": still here\n\n"
    with pytest.raises(UpstreamError):
        stream.take(Batch(b'data: {"choices": [\n\n'))


def test_the_answer_stops_with_the_last_paid_token() -> None:
    stream = paid(5, 50)
    kept = stream.take(Batch(said("x") * 7, 7))
    assert (kept.data, kept.tokens, stream.stopped) == (said("x") * 5, 5, True)


def test_the_end_of_an_answer_is_no_cut() -> None:
    stream = paid(2, 50)
    kept = stream.take(Batch(said("x") + event({"content": "y"}, "stop"), 2, None, "stop"))
    assert (kept.finish_reason, stream.stopped) == ("stop", False)


@pytest.mark.parametrize("hide", [False, True])
def test_usage_that_only_the_router_asked_for_is_taken_out(hide: bool) -> None:
    usage = {"prompt_tokens": 7, "completion_tokens": 1}
    kept = paid(50, hide_usage=hide).take(Batch(said("x", usage=usage)))
    assert (b"usage" in kept.data, b'"x"' in kept.data) == (not hide, True)


@pytest.mark.parametrize("counted", [False, True])
def test_events_that_are_alike_are_not_parsed(counted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def said_again(text: str, count: int) -> bytes:
        usage = {"prompt_tokens": 9, "completion_tokens": count}
        return said(text, usage=usage) if counted else said(text)

    stream = paid(50, hide_usage=True)
    usage = {"prompt_tokens": 9, "completion_tokens": 4} if counted else None
    stream.take(Batch(said_again("x", 1), 1, None if usage is None else usage | {"completion_tokens": 1}))
    monkeypatch.setattr("router.gateway.relay.metered.chunk_of", None)
    kept = stream.take(Batch(said_again(" y", 2) + said_again("\u00fc, z", 4), 2, usage))
    assert (kept.tokens, stream.meter.tokens) == (3, 4)
    assert b"".join(kept.data.split(b" ")) == b"".join((said(" y") + said("\u00fc, z")).split(b" "))
    assert (stream.usage or {}).get("completion_tokens") == (4 if counted else None)


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize(
    ("choices", "ends", "tokens"),
    [
        (1, [ended([0], usage=USAGE | {"completion_tokens": 2})], 2),  # fewer than events
        (1, [ended([0]), b'data: {"usage": {"prompt_tokens": 9, "completion_tokens": 5}}\n\n'], 5),
        (1, [ended([0]), b'data: {"choices": null, "usage": {"completion_tokens": 5}}\n\n'], 5),
        (1, [ended([0]), b'data: {"choices": [], "usage": {"completion_tokens": 5}}\n\n'], 5),
        (2, [ended([0]), ended([1], usage=USAGE | {"completion_tokens": 4})], 4),
        (2, [ended([0, 1], usage=USAGE | {"completion_tokens": 40})], 40),
    ],
)
def test_the_engine_s_usage_of_the_whole_answer_counts_wherever_it_comes(
    choices: int, ends: list[bytes], tokens: int, cut: bool
) -> None:
    scanner, stream = SseScanner("m", choices=choices), metered(OutputBound(), reserved(90), choices=choices)
    events = [said("a"), said("b"), *([said("c", index=1)] if choices > 1 else [said("c")]), *ends]
    for data in events if cut else [b"".join(events)]:
        batch = scanner.feed(data)
        if batch is not None:
            stream.take(batch)
    assert stream.usage["completion_tokens"] == tokens
    if "prompt_tokens_details" in str(ends):
        assert stream.usage["prompt_tokens_details"] == {"cached_tokens": 3}


def test_usage_in_the_middle_is_not_that_of_the_whole_answer() -> None:
    usage = {"prompt_tokens": BOUND, "completion_tokens": 1, "total_tokens": BOUND + 1}
    between = b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n"
    scanner, stream = SseScanner("m"), metered(OutputBound(), reserved(90))
    for data in (said("a") + between, said("b"), said("c") + ended([0])):
        batch = scanner.feed(data)
        assert batch is not None
        stream.take(batch)
    assert stream.meter.tokens == 3
    assert stream.usage is None  # so the events count
    counting = metered(OutputBound(), reserved(2))
    each = [said("x", usage=usage | {"completion_tokens": n, "total_tokens": BOUND + n}) for n in range(1, 9)]
    counting.take(Batch(b"".join(each), 8, usage | {"completion_tokens": 8, "total_tokens": BOUND + 8}))
    assert counting.waiting
    counting.meter.allow(reserved(4))
    counting.go_on()
    assert (counting.usage or {}).get("completion_tokens") == counting.meter.tokens < 8


@pytest.mark.parametrize("per_choice", [True, False])
def test_usage_of_each_event_is_that_of_its_choice_or_of_all(per_choice: bool) -> None:
    stream = metered(OutputBound(), reserved(90), choices=2)
    for number in range(1, 5):
        for index in (0, 1):
            count = number if per_choice else 2 * number - 1 + index
            stream.take(Batch(said("x", index=index, usage={"prompt_tokens": 9, "completion_tokens": count})))
    assert stream.meter.tokens == 8


EVENTS = st.lists(
    st.tuples(st.sampled_from(["", "x", " y", "a b", "one two three "]), st.sampled_from([None, 1, 3])),
    max_size=25,
)


def events_of(written: list[tuple[str, int | None]], prompt_tokens: int) -> list[bytes]:
    """An event for each text; where a number stands beside it, with the usage so far."""
    count, events = 0, [event({"role": "assistant"})]
    for text, more in written:
        count += more or 0
        usage = {"prompt_tokens": prompt_tokens, "completion_tokens": count}
        events.append(said(text) if more is None else said(text, usage=usage))
    return events


@given(EVENTS, st.integers(1, 20), st.sampled_from([None, 40]), st.lists(st.integers(0, 4000), max_size=6))
def test_the_same_however_the_bytes_were_cut(
    written: list[tuple[str, int | None]], most: int, bound: int | None, cuts: list[int]
) -> None:
    data = b"".join([*events_of(written, 9), b"data: [DONE]\n\n"])

    def outcome(places: list[int]) -> tuple[bytes, int, bool, Any]:
        scanner, stream, out = SseScanner("m"), paid(most, bound), b""
        for start, stop in pairwise([0, *sorted(places), len(data)]):
            if stop > start and not scanner.done:
                batch = scanner.feed(data[start:stop])
                if batch is not None:
                    out += stream.take(batch).data
                    if stream.stopped:
                        break
        return out, stream.meter.tokens, stream.stopped, stream.usage

    whole = outcome([])
    assert outcome([cut % len(data) for cut in cuts]) == whole
    assert outcome(list(range(0, len(data), 7))) == whole
    assert tokens_in(whole[0]) <= most  # what the client has is paid for


@given(EVENTS, st.integers(1, 20), st.lists(st.integers(0, 4000), max_size=6))
def test_a_collector_gets_what_is_passed_on(
    written: list[tuple[str, int | None]], most: int, cuts: list[int]
) -> None:
    data = b"".join([*events_of(written, 9), event({}, "stop"), b"data: [DONE]\n\n"])
    scanner, passing, collecting = SseScanner("m"), paid(most, 40), paid(most, 40)
    passed, collected = Assembler("chat"), Assembler("chat")
    collecting.collector = collected
    for start, stop in pairwise([0, *sorted(cut % len(data) for cut in cuts), len(data)]):
        batch = scanner.feed(data[start:stop]) if stop > start and not scanner.done else None
        if batch is None or passing.stopped:
            continue
        kept, counted = passing.take(batch), collecting.take(batch)
        passed.feed(kept.data)
        assert (counted.data, counted[1:]) == (b"", kept[1:])
        assert (collecting.stopped, collecting.usage) == (passing.stopped, passing.usage)
    assert collected.result() == passed.result()


def tokens_in(data: bytes) -> int:
    """Tokens of what was passed on."""
    stream = paid(10**6)
    stream.take(Batch(data))
    return stream.meter.tokens


@given(EVENTS, st.integers(1, 60), st.integers(1, 30), st.lists(st.integers(0, 4000), max_size=6))
def test_what_is_held_grows_and_the_outcome_is_the_same_however_the_bytes_were_cut(
    written: list[tuple[str, int | None]], most: int, step: int, cuts: list[int]
) -> None:
    """`most` tokens can be reserved, `step` at a time: each that is missing is waited for, and the last ones are refused."""
    data = b"".join([*events_of(written, BOUND), event({}, "stop"), b"data: [DONE]\n\n"])

    def outcome(places: list[int]) -> tuple[bytes, int, bool, str | None]:
        held = min(step, most)
        stream = metered(OutputBound(), reserved(held))
        scanner, out, finish = SseScanner("m"), b"", None
        for start, stop in pairwise([0, *sorted(places), len(data)]):
            batch = scanner.feed(data[start:stop]) if stop > start and not scanner.done else None
            kept = None if batch is None else stream.take(batch)
            while kept is not None:
                out += kept.data
                finish = kept.finish_reason or finish
                kept = None
                if stream.waiting:
                    assert stream.meter.report_usd is not None
                    while held < most and PRICE.cost_usd(BOUND, held) + 1e-12 < stream.meter.report_usd:
                        held = min(most, held + step)
                    covered = PRICE.cost_usd(BOUND, held) + 1e-12 >= stream.meter.report_usd
                    stream.meter.allow(reserved(held, final=not covered))
                    kept = stream.go_on()
            if stream.stopped:
                assert stream.meter.by_money
                break
        return out, stream.meter.tokens, stream.stopped, finish

    whole = outcome([])
    assert outcome([cut % len(data) for cut in cuts]) == whole
    assert outcome(list(range(0, len(data), 7))) == whole
    assert tokens_in(whole[0]) <= most  # what the client has is paid for
    if not whole[2]:
        assert (whole[0] + b"data: [DONE]\n\n", whole[3]) == (data, "stop")


@pytest.mark.parametrize("held", [40, 10])
def test_more_at_the_end_than_could_be_seen_is_asked_for_before_it_ends(held: int) -> None:
    usage = {"prompt_tokens": BOUND + 5, "completion_tokens": 40, "total_tokens": BOUND + 45}
    stream = metered(OutputBound(), reserved(10, BOUND + 5))
    kept = stream.take(Batch(said("x") + event({}, "stop"), 1, usage, "stop"))
    assert (kept.finish_reason, kept.usage, stream.waiting) == (None, None, True)
    assert stream.meter.report_usd == PRICE.cost_usd(BOUND + 5, 40)
    stream.meter.allow(reserved(held, BOUND + 5, final=held == 10))
    kept = stream.go_on()
    assert (kept.data, kept.finish_reason, kept.usage) == (b"", "stop", usage)
    assert not stream.stopped
