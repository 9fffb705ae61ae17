"""What holds for every registered policy, whatever the options look like."""

from __future__ import annotations

import copy
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies import POLICIES, PolicySettings
from router.core.interfaces import Choice, Option, Policy
from router.core.profile import EngineProfile
from router.core.state import Instance
from router.core.types import Candidate, LoadReport, Prediction, Request, Slo

PROFILE = EngineProfile("p", 1e-3, 9e-3, 1e-4, 1e-7, 1e-9, 100_000)

seconds = st.one_of(st.none(), st.floats(0.0, 1e4))
counts = st.integers(0, 300)


@st.composite
def option_sets(draw: st.DrawFn) -> list[Option]:
    names = draw(
        st.lists(
            st.tuples(st.sampled_from("abcdefgh"), st.sampled_from("mno")),
            min_size=1,
            max_size=8,
            unique=True,
        )
    )
    options = []
    for name, model in names:
        candidate = Candidate(name, model, model)
        instance = Instance(
            name,
            draw(st.sampled_from(["vllm", "ollama"])),
            {model: candidate},
            profiles={model: PROFILE} if draw(st.booleans()) else {},
            usd_per_hour=draw(st.one_of(st.none(), st.floats(0.0, 50.0))),
        )
        instance.in_flight = draw(counts)
        instance.awaiting_first_token = draw(st.integers(0, instance.in_flight))
        instance.pending_prefill_tokens = draw(st.integers(0, 100_000))
        instance.dispatched_since_report = draw(counts)
        instance.ended_since_report = draw(counts)
        instance.report = LoadReport(
            running=draw(st.one_of(st.none(), counts)), waiting=draw(st.one_of(st.none(), counts))
        )
        tokens = draw(st.floats(1.0, 1e5))
        prediction = Prediction(
            output_tokens_p50=tokens,
            output_tokens_p90=2 * tokens,
            output_tokens_mean=1.2 * tokens,
            ttft_s_p50=draw(seconds),
            ttft_s_p95=draw(seconds),
            tpot_s=draw(seconds),
            e2e_s_mean=draw(seconds),
            e2e_s_p50=draw(seconds),
            e2e_s_p95=draw(seconds),
            quality=draw(st.one_of(st.none(), st.floats(0.0, 1.0))),
            cost_usd=draw(seconds),
            p_miss=draw(st.one_of(st.none(), st.floats(0.0, 1.0))),
        )
        options.append(Option(candidate, instance, prediction))
    return options


requests = st.builds(
    Request,
    id=st.just("r"),
    arrived_at=st.just(0.0),
    policy=st.just("x"),
    models=st.just(("m", "n", "o")),
    prompt_tokens=st.integers(0, 100_000),
    slo=st.one_of(st.none(), st.just(Slo(ttft_s=1.0))),
    seed=st.one_of(st.none(), st.integers(-(2**63), 2**63)),
    prefix=st.sampled_from([(), (1, 2, 3)]),
)


def fresh(name: str) -> Policy:
    return POLICIES[name](PolicySettings(cached_tokens=lambda request, instance: 50.0))


def is_sound(choice: Choice, options: list[Option]) -> None:
    assert 0 <= choice.index < len(options)
    assert len(choice.scores) == len(choice.reasons) == len(options)
    assert 0.0 < choice.propensity <= 1.0
    for at, reason in enumerate(choice.reasons):
        assert (reason is None) == (at == choice.index)


def for_policy(policy: Policy, options: list[Option]) -> list[Option]:
    """Options as the scheduler gives them: predictions only where the policy asks for them."""
    return options if policy.predicts else [replace(option, prediction=None) for option in options]


def memory(policy: Policy) -> dict[str, Any]:
    return copy.deepcopy(getattr(policy, "__dict__", {}))


@given(options=option_sets(), request_=requests, seed=st.integers(0, 1000))
@settings(max_examples=250, deadline=None)
def test_choice_is_sound_and_pure(options: list[Option], request_: Request, seed: int) -> None:
    for name in POLICIES:
        policy = fresh(name)
        given_options = for_policy(policy, options)
        policy.placed(request_, given_options, policy.choose(request_, given_options, Random(seed)))
        before, seen = memory(policy), copy.deepcopy(given_options)
        choice = policy.choose(request_, given_options, Random(seed))
        is_sound(choice, given_options)
        assert policy.choose(request_, given_options, Random(seed)) == choice
        assert memory(policy) == before
        assert given_options == seen


@given(options=option_sets(), request_=requests, seed=st.integers(0, 1000))
@settings(max_examples=100, deadline=None)
def test_a_seeded_request_gets_the_same_choice_from_any_generator(
    options: list[Option], request_: Request, seed: int
) -> None:
    request_ = replace(request_, seed=seed)
    for name in POLICIES:
        policy = fresh(name)
        given_options = for_policy(policy, options)
        first = given_options[policy.choose(request_, given_options, Random(1)).index]
        backwards = given_options[::-1]
        again = backwards[policy.choose(request_, backwards, Random(2)).index]
        assert again.candidate == first.candidate, name


@given(options=option_sets(), request_=requests)
@settings(max_examples=100, deadline=None)
def test_one_option_is_taken_for_certain(options: list[Option], request_: Request) -> None:
    for name in POLICIES:
        policy = fresh(name)
        choice = policy.choose(request_, for_policy(policy, options[:1]), Random(0))
        assert (choice.index, choice.propensity, list(choice.reasons)) == (0, 1.0, [None])


@pytest.mark.parametrize("name", POLICIES)
def test_propensities_are_the_frequencies(name: str) -> None:
    policy = fresh(name)
    options = []
    for at, running in enumerate((2, 0, 1, 1, 0)):
        candidate = Candidate(f"i{at}", "m", "m")
        instance = Instance(f"i{at}", "vllm", {"m": candidate})
        instance.in_flight = running
        prediction = Prediction(e2e_s_mean=1.0 + at, cost_usd=1.0, p_miss=0.01 * at)
        options.append(Option(candidate, instance, prediction))
    options = for_policy(policy, options)
    request = Request("r", 0.0, "x", ("m",), prompt_tokens=10)
    rng = Random(11)
    told: dict[int, float] = {}
    taken = [0] * len(options)
    for _ in range(5000):
        choice = policy.choose(request, options, rng)
        assert told.setdefault(choice.index, choice.propensity) == choice.propensity
        taken[choice.index] += 1
    for index, propensity in told.items():
        assert taken[index] / 5000 == pytest.approx(propensity, abs=0.03)
    assert sum(told.values()) == pytest.approx(1.0)


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_tells_its_name(name: str) -> None:
    assert fresh(name).name == name
