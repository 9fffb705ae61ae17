"""Routing parameters as clients write them: the body's `routing` object and headers."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.errors import Refusal
from router.core.types import Slo
from router.request.routing_input import ROUTING_HEADERS, RoutingInput, from_body, from_headers


def refused(routing: object) -> Refusal:
    with pytest.raises(Refusal) as caught:
        from_body(routing)
    assert caught.value.status == 400
    assert caught.value.code == "invalid_request"
    assert caught.value.outcome == "rejected_invalid"
    return caught.value


def attempt(read: Callable[[Any], RoutingInput | None], value: Any) -> RoutingInput | Refusal | None:
    try:
        return read(value)
    except Refusal as refusal:
        return refusal


def headers(**values: str) -> RoutingInput | None:
    given_headers = {f"x-{name.replace('_', '-')}".encode(): value.encode() for name, value in values.items()}
    return from_headers(given_headers)


def refused_header(name: str, value: bytes) -> Refusal:
    with pytest.raises(Refusal) as caught:
        from_headers({name.encode(): value})
    assert caught.value.status == 400
    assert caught.value.param == name
    return caught.value


def test_the_example_of_the_contract() -> None:
    params = from_body(
        {
            "policy": "cost",
            "slo": {"ttft_ms": 800, "tpot_ms": 50, "e2e_ms": 20000},
            "on_miss": "reject",
            "max_cost_usd": 0.002,
            "min_quality": 0.7,
            "models": ["llama-3.1-8b", "qwen2.5-72b"],
            "priority": 0,
            "seed": 1,
        }
    )
    assert params == RoutingInput(
        policy="cost",
        slo=Slo(0.8, 0.05, 20.0),
        on_miss="reject",
        max_cost_usd=0.002,
        min_quality=0.7,
        models=("llama-3.1-8b", "qwen2.5-72b"),
        priority=0,
        seed=1,
    )


def test_null_is_not_given_and_an_empty_slo_is() -> None:
    nothing = dict.fromkeys(RoutingInput.__dataclass_fields__)
    assert from_body({}) == from_body(nothing) == RoutingInput()
    assert from_body({"slo": {}}).slo == Slo()
    assert from_body({"slo": {"ttft_ms": None, "e2e_ms": 1}}).slo == Slo(e2e_s=0.001)


def test_the_edges_of_the_ranges_are_inside() -> None:
    params = from_body({"max_cost_usd": 0, "min_quality": 1, "priority": -(2**63), "seed": 2**63 - 1})
    assert (params.max_cost_usd, params.min_quality) == (0.0, 1.0)
    assert (params.priority, params.seed) == (-(2**63), 2**63 - 1)
    assert from_body({"min_quality": 0}).min_quality == 0.0


@pytest.mark.parametrize(
    ("routing", "param"),
    [
        ([], "routing"),
        ("cost", "routing"),
        (None, "routing"),
        ({"polcy": "cost"}, "routing.polcy"),
        ({"policy": 3}, "routing.policy"),
        ({"policy": ""}, "routing.policy"),
        ({"slo": 800}, "routing.slo"),
        ({"slo": {"ttft": 1}}, "routing.slo.ttft"),
        ({"slo": {"ttft_ms": "800"}}, "routing.slo.ttft_ms"),
        ({"slo": {"ttft_ms": True}}, "routing.slo.ttft_ms"),
        ({"slo": {"ttft_ms": 0}}, "routing.slo.ttft_ms"),
        ({"slo": {"tpot_ms": -1}}, "routing.slo.tpot_ms"),
        ({"slo": {"e2e_ms": math.nan}}, "routing.slo.e2e_ms"),
        ({"slo": {"e2e_ms": math.inf}}, "routing.slo.e2e_ms"),
        ({"slo": {"e2e_ms": 10**400}}, "routing.slo.e2e_ms"),
        ({"slo": {"e2e_ms": 5e-324}}, "routing.slo.e2e_ms"),
        ({"on_miss": "explode"}, "routing.on_miss"),
        ({"on_miss": True}, "routing.on_miss"),
        ({"on_miss": ["reject"]}, "routing.on_miss"),
        ({"max_cost_usd": -0.1}, "routing.max_cost_usd"),
        ({"max_cost_usd": False}, "routing.max_cost_usd"),
        ({"max_cost_usd": math.nan}, "routing.max_cost_usd"),
        ({"min_quality": 1.01}, "routing.min_quality"),
        ({"min_quality": -0.01}, "routing.min_quality"),
        ({"min_quality": "0.5"}, "routing.min_quality"),
        ({"models": []}, "routing.models"),
        ({"models": "a"}, "routing.models"),
        ({"models": ["a", 1]}, "routing.models"),
        ({"models": [""]}, "routing.models"),
        ({"priority": 1.0}, "routing.priority"),
        ({"priority": True}, "routing.priority"),
        ({"priority": 2**63}, "routing.priority"),
        ({"seed": "1"}, "routing.seed"),
        ({"seed": -(2**63) - 1}, "routing.seed"),
    ],
)
def test_bad_bodies_name_their_field(routing: object, param: str) -> None:
    refusal = refused(routing)
    assert refusal.param == param
    assert param in refusal.message


def test_an_unknown_key_is_refused_with_the_known_ones_and_cut_when_long() -> None:
    assert "max_cost_usd" in refused({"max_cost": 1}).message
    assert len(refused({"k" * 5000: 1}).message) < 300


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.sampled_from(sorted(RoutingInput.__dataclass_fields__))


@given(st.dictionaries(FIELDS, JSON, max_size=4) | JSON)
def test_any_json_is_read_or_refused_with_a_param(routing: Any) -> None:
    params = attempt(from_body, routing)
    if isinstance(params, Refusal):
        assert params.status == 400
        assert params.param.startswith("routing")
        return
    assert isinstance(routing, dict)
    for name, value in routing.items():
        assert (getattr(params, name) is None) == (value is None)


@given(st.floats(allow_nan=True, allow_infinity=True) | st.integers())
def test_a_target_is_taken_exactly_when_it_is_a_finite_number_above_0(ms: float) -> None:
    params = attempt(from_body, {"slo": {"ttft_ms": ms}})
    if isinstance(params, Refusal):
        assert not (math.isfinite(ms) and ms / 1000 > 0)
        return
    assert params.slo == Slo(ttft_s=float(ms) / 1000)


# --- headers -----------------------------------------------------------------------------------------
def test_without_routing_headers_there_are_no_parameters() -> None:
    assert from_headers({b"host": b"x", b"x-headway": b"1", b"content-type": b"y"}) is None


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("x-headway-model", "x-headway-models"),
        ("x-headway-ttft", "x-headway-ttft-ms"),
        ("x-headway-ttft_ms", "x-headway-ttft-ms"),
        ("x-headway-colour", "known: x-headway-(policy|"),
        ("x-headway-", "known: "),
    ],
)
def test_an_unknown_header_of_ours_is_refused_with_the_near_names(name: str, near: str) -> None:
    assert near in refused_header(name, b"1").message


def test_a_very_long_unknown_header_is_cut() -> None:
    with pytest.raises(Refusal) as caught:
        from_headers({b"x-headway-" + b"a" * 60_000: b"1"})
    assert len(caught.value.message) < 500


def test_all_headers() -> None:
    assert headers(
        headway_policy="price",
        headway_ttft_ms="800",
        headway_tpot_ms="50.5",
        headway_e2e_ms="2e4",
        headway_on_miss="reject",
        headway_max_cost_usd=".002",
        headway_min_quality="0.7",
        headway_models=" a, b ,,c:7b",
        headway_priority="-3",
    ) == RoutingInput(
        policy="price",
        slo=Slo(0.8, 0.0505, 20.0),
        on_miss="reject",
        max_cost_usd=0.002,
        min_quality=0.7,
        models=("a", "b", "c:7b"),
        priority=-3,
    )


@pytest.mark.parametrize("name", [name.decode() for name in ROUTING_HEADERS])
def test_each_header_is_seen_alone_and_refused_when_empty(name: str) -> None:
    value = b"reject" if name.endswith("on-miss") else b"1"
    assert from_headers({name.encode(): value}) not in (None, RoutingInput())
    refused_header(name, b" \t")
    refused_header(name, b"\xff")


def test_llm_d_targets_fill_what_ours_leave_open() -> None:
    params = headers(headway_ttft_ms="100", llm_d_slo_ttft_ms="900", llm_d_slo_tpot_ms="40")
    assert params.slo == Slo(ttft_s=0.1, tpot_s=0.04)


def test_a_bad_number_is_refused_even_where_another_header_wins() -> None:
    with pytest.raises(Refusal) as caught:
        headers(headway_ttft_ms="100", llm_d_slo_ttft_ms="soon")
    assert caught.value.param == "x-llm-d-slo-ttft-ms"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-headway-ttft-ms", "fast"),
        ("x-headway-ttft-ms", "nan"),
        ("x-headway-tpot-ms", "inf"),
        ("x-headway-e2e-ms", "0"),
        ("x-headway-e2e-ms", "-1"),
        ("x-headway-e2e-ms", "1_000"),
        ("x-headway-e2e-ms", "1e999"),
        ("x-headway-e2e-ms", "0x10"),
        ("x-headway-e2e-ms", "１０"),
        ("x-headway-e2e-ms", "1 0"),
        ("x-headway-on-miss", "Reject"),
        ("x-headway-max-cost-usd", "$1"),
        ("x-headway-max-cost-usd", "-1"),
        ("x-headway-min-quality", "1.5"),
        ("x-headway-models", " , ,"),
        ("x-headway-priority", "1.5"),
        ("x-headway-priority", "9223372036854775808"),
        ("x-headway-priority", "9" * 5000),
        ("x-llm-d-slo-ttft-ms", "x"),
        ("x-llm-d-slo-tpot-ms", "-2"),
    ],
)
def test_bad_headers_are_named(name: str, value: str) -> None:
    assert name in refused_header(name, value.encode()).message


@given(st.floats(min_value=1e-300, max_value=1e300))
def test_header_and_body_numbers_mean_the_same(ms: float) -> None:
    assert headers(headway_ttft_ms=json.dumps(ms)).slo == from_body({"slo": {"ttft_ms": ms}}).slo


@given(st.sampled_from([name.decode() for name in ROUTING_HEADERS]), st.binary(max_size=12))
def test_any_header_is_read_or_refused_by_name(name: str, value: bytes) -> None:
    params = attempt(from_headers, {name.encode(): value})
    if isinstance(params, Refusal):
        assert (params.status, params.param) == (400, name)
        return
    assert params not in (None, RoutingInput())
