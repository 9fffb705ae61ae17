"""What holds for every registered policy, whatever the options look like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies import POLICIES, PolicySettings
from router.core.interfaces import Option, Policy, TextEstimates
from router.core.profile import EngineProfile
from router.core.state import Instance
from router.core.types import Candidate, LoadReport, Prediction, Price, PromptFeatures, Request, Slo
from tests.contract.policies.checks import (
    Case,
    check_choices,
    check_dry_runs,
    check_one_option,
    check_placed,
    check_propensities,
    check_seed,
)

PROFILE = EngineProfile("p", 1e-3, 9e-3, 1e-4, 1e-7, 1e-9, 100_000)
MODELS = "mno"
ESTIMATORS = ("mean", "knn", "clusters", "logistic", "eccos_t", "eccos_r", "factorisation")

seconds = st.one_of(st.none(), st.floats(0.0, 1e4))
counts = st.integers(0, 300)
shares = st.one_of(st.none(), st.floats(0.0, 1.0))


@st.composite
def option_sets(draw: st.DrawFn) -> list[Option]:
    names = draw(
        st.lists(
            st.tuples(st.sampled_from("abcdefgh"), st.sampled_from(MODELS)),
            min_size=1,
            max_size=8,
            unique=True,
        )
    )
    options = []
    for name, model in names:
        candidate = Candidate(name, model, model, Price(1.0, float(len(names))), quality=draw(shares))
        instance = Instance(
            name,
            draw(st.sampled_from(["vllm", "ollama"])),
            {model: candidate},
            profiles={model: PROFILE} if draw(st.booleans()) else {},
            usd_per_hour=draw(st.one_of(st.none(), st.floats(0.0, 50.0))),
            max_concurrency=draw(st.one_of(st.none(), st.integers(1, 300))),
        )
        instance.in_flight = draw(counts)
        instance.awaiting_first_token = draw(st.integers(0, instance.in_flight))
        instance.pending_prefill_tokens = draw(st.integers(0, 100_000))
        instance.dispatched_since_report = draw(counts)
        instance.ended_since_report = draw(counts)
        instance.promised_tpot_s = sorted(draw(st.lists(st.floats(0.001, 0.5), max_size=3)))
        instance.report = LoadReport(
            running=draw(st.one_of(st.none(), counts)), waiting=draw(st.one_of(st.none(), counts))
        )
        instance.recount()
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
            quality=draw(shares),
            cost_usd=draw(seconds),
            p_miss=draw(shares),
        )
        options.append(Option(candidate, instance, prediction))
    return options


requests = st.builds(
    Request,
    id=st.just("r"),
    arrived_at=st.just(0.0),
    policy=st.just("x"),
    models=st.just(tuple(MODELS)),
    prompt_tokens=st.integers(0, 100_000),
    slo=st.one_of(st.none(), st.just(Slo(ttft_s=1.0))),
    seed=st.one_of(st.none(), st.integers(-(2**63), 2**63)),
    prefix=st.sampled_from([(), (1, 2, 3)]),
    key=st.sampled_from([None, "team"]),
    features=st.one_of(
        st.none(), st.builds(PromptFeatures, st.tuples(st.integers(0, 9)), st.just(()), st.just((1,) * 8))
    ),
)


@st.composite
def case_lists(draw: st.DrawFn) -> list[Case]:
    """Requests that one policy decides on, each with an id of its own."""
    drawn = draw(st.lists(st.tuples(requests, option_sets(), st.integers(0, 1000)), min_size=1, max_size=4))
    return [Case(replace(request, id=f"r{at}"), *rest) for at, (request, *rest) in enumerate(drawn)]


def estimator(features: PromptFeatures, models: Sequence[str]) -> TextEstimates:
    """Knows nothing of the first model."""
    known = [
        None if model == MODELS[0] else (features.head[0] + MODELS.index(model)) / 12 for model in models
    ]
    return TextEstimates(known, [None if each is None else 100.0 * each for each in known])


def made(name: str) -> Policy:
    return POLICIES[name](
        PolicySettings(
            cached_tokens=lambda request, instance: 50.0, text=dict.fromkeys(ESTIMATORS, estimator)
        )
    )


@given(cases=case_lists(), seed=st.integers(0, 1000))
def test_policies_keep_their_contract(cases: list[Case], seed: int) -> None:
    seeded = [replace(case, request=replace(case.request, seed=seed)) for case in cases]
    for name in POLICIES:
        make = partial(made, name)
        check_choices(make, cases)
        check_dry_runs(make, cases)
        check_placed(make, cases)
        check_seed(make, seeded)
        check_one_option(make, cases[0])


@pytest.mark.parametrize("name", POLICIES)
def test_propensities_are_the_frequencies(name: str) -> None:
    options = []
    for at, running in enumerate((2, 0, 1, 1, 0)):
        candidate = Candidate(f"i{at}", "m", "m")
        instance = Instance(f"i{at}", "vllm", {"m": candidate}, in_flight=running)
        options.append(
            Option(candidate, instance, Prediction(e2e_s_mean=1.0 + at, cost_usd=1.0, p_miss=0.01 * at))
        )
    request = Request("r", 0.0, "x", ("m",), prompt_tokens=10)
    check_propensities(partial(made, name), Case(request, options, 11))


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_has_the_name_it_is_registered_by(name: str) -> None:
    assert made(name).name == name
