"""`latency`: where a prompt goes on an idle, a busy and a lost fleet of one narrow and one wide instance."""

from __future__ import annotations

from dataclasses import replace
from math import exp
from random import Random
from typing import Any

import pytest

from policies import create_all
from policies.expected import ExpectedTime
from policies.latency import LeastLatency
from policies.settings import PolicySettings
from router.core.interfaces import Option
from router.core.profile import EngineProfile
from router.core.types import Prediction, Request, Slo
from tests.unit.policies import made_options

REQUEST = Request("r", 0.0, "latency", ("m",), prompt_tokens=1000)
#: Seconds a prompt token.
NARROW, WIDE = 1e-3, 2e-4


def option(name: str, per_token_s: float | None = None, **given: Any) -> Option:
    profile = None if per_token_s is None else EngineProfile("p", 0.0, 0.0, per_token_s, 0.0, 0.0, 100_000)
    return made_options.option(name, profile=profile, **{"e2e": 1.0, "tokens": 100.0} | given)


def sent(policy: LeastLatency, to: Option, prompts: int, tokens: int = 1000) -> None:
    """So many prompts to one instance at one moment."""
    request = replace(REQUEST, prompt_tokens=tokens)
    for _ in range(prompts):
        policy.placed(request, [to], policy.choose(request, [to], Random(0)))


@pytest.mark.parametrize(
    ("options", "index"),
    [
        ([option("a", e2e=2.0), option("b", e2e=1.0)], 1),
        ([option("b"), option("a")], 1),  # the name
        ([option("a", e2e=None), option("b", e2e=9.0)], 1),  # an unknown time comes last
        # two sequences wait 1 s each for the prefill on the narrow one, or 0.2 s each on the wide one
        ([option("a", NARROW, running=2), option("b", WIDE, running=2, e2e=2.5)], 1),
        ([option("a", NARROW, running=2), option("b", WIDE, running=2, e2e=2.7)], 0),
    ],
)
def test_nothing_is_known_of_arrivals_and_there_is_no_slo(options: list[Option], index: int) -> None:
    choice = LeastLatency(0.1, ExpectedTime()).choose(REQUEST, options, Random(0))
    assert (choice.index, choice.defer) == (index, False)


def test_later_prompts_keep_a_long_one_off_a_narrow_instance_and_a_short_one_off_the_wide_one() -> None:
    policy = LeastLatency(0.1, ExpectedTime())
    narrow, wide = option("a", NARROW, e2e=30.0), option("b", WIDE, e2e=38.0)
    long = replace(REQUEST, prompt_tokens=20_000)  # 20 s on the narrow one, 4 s on the wide one
    assert policy.choose(long, [narrow, wide], Random(0)).index == 0
    sent(policy, narrow, 6, 100)
    sent(policy, wide, 6, 100)
    assert policy.choose(long, [narrow, wide], Random(0)).index == 1

    short = replace(REQUEST, prompt_tokens=100)
    narrow.prediction, wide.prediction = Prediction(e2e_s_mean=1.002), Prediction(e2e_s_mean=1.0)
    assert policy.choose(short, [narrow, wide], Random(0)).index == 1
    sent(policy, wide, 600, 400)
    assert policy.choose(short, [narrow, wide], Random(0)).index == 0


def test_the_delay_to_later_prompts_is_the_rise_of_the_value_of_a_queue() -> None:
    policy = LeastLatency(0.1, ExpectedTime())
    to = option("a", NARROW, e2e=0.0, ttft=3.0)
    sent(policy, to, 30)  # in an average over 60 s: 0.5 a second, of 1 s each
    (score,) = policy.choose(REQUEST, [to], Random(0)).scores
    assert score == pytest.approx(3 * 0.5 / (1 - 0.5) * (3.0**2 - 2.0**2) / 2)  # a backlog of 2 s becomes 3 s
    (score,) = policy.choose(replace(REQUEST, arrived_at=1e6), [to], Random(0)).scores
    assert score == pytest.approx(0.0)


def test_cached_tokens_need_no_prefill() -> None:
    policy = LeastLatency(0.1, ExpectedTime(cached_tokens=lambda request, name: 900.0))
    to = option("a", NARROW, e2e=0.0, running=1)
    sent(policy, to, 30)
    cold, warm = (
        policy.choose(replace(REQUEST, prefix=prefix), [to], Random(0)).scores[0] for prefix in ((), (1,))
    )
    later_s = 3 * 0.5 / (1 - 0.5) / 2
    assert (cold, warm) == pytest.approx((1.0 + later_s, 0.1 + later_s / 100))


@pytest.mark.parametrize(
    ("slo", "allowed_s"),
    [
        (Slo(ttft_s=2.0, tpot_s=0.05), 7.0),  # 100 tokens are expected
        (Slo(e2e_s=3.0), 3.0),
        (Slo(ttft_s=2.0), 2.0),
        (Slo(tpot_s=0.05), 5.0),
    ],
)
def test_a_miss_costs_the_time_that_the_slo_allows(slo: Slo, allowed_s: float) -> None:
    request = replace(REQUEST, slo=slo)
    options = [option("a", miss=0.5), option("b", e2e=1.0 + 0.4 * allowed_s, miss=0.1)]
    choice = LeastLatency(0.1, ExpectedTime()).choose(request, options, Random(0))
    assert choice.scores == pytest.approx([1.0 + 0.5 * allowed_s, 1.0 + 0.5 * allowed_s])
    risky = option("a", e2e=1.01, miss=0.5)
    assert LeastLatency(0.1, ExpectedTime()).choose(request, [risky, options[1]], Random(0)).index == 1


@pytest.mark.parametrize(
    ("misses", "first_token", "deferred"),
    [((0.95, 0.99), 1, True), ((0.95, 0.99), 0, False), ((0.85, 0.99), 1, False)],
)
def test_a_lost_request_waits_while_others_have_no_first_token(
    misses: tuple[float, float], first_token: int, deferred: bool
) -> None:
    options = [
        option(name, miss=miss, running=1, first_token=first_token)
        for name, miss in zip("ab", misses, strict=True)
    ]
    request = replace(REQUEST, slo=Slo(ttft_s=1.0))
    assert LeastLatency(0.1, ExpectedTime()).choose(request, options, Random(0)).defer is deferred


def test_what_was_sent_long_ago_is_forgotten() -> None:
    policy, later = LeastLatency(0.1, ExpectedTime()), option("later", NARROW, e2e=0.0, ttft=3.0)
    for number in range(5000):
        sent(policy, option(f"pod-{number}", NARROW), 1)
    for at_s in (300.0, 601.0, 601.0):
        request = replace(REQUEST, arrived_at=at_s)
        policy.placed(request, [later], policy.choose(request, [later], Random(0)))
    assert list(policy.time._sent) == ["later"]
    (score,) = policy.choose(replace(REQUEST, arrived_at=601.0), [later], Random(0)).scores
    assert score == pytest.approx(3 * (weight := 2 + exp(-301 / 60)) / 60 / (1 - weight / 60) * 2.5)


def test_length_groups_is_the_same_without_the_weight_of_the_first_token() -> None:
    options = [option("a", e2e=3.0, ttft=0.1), option("b", e2e=2.0, ttft=1.5)]
    policies = create_all(PolicySettings(ttft_weight=0.9))
    taken = [
        policies[name].choose(REQUEST, options, Random(0)).index for name in ("latency", "length_groups")
    ]
    assert taken == [0, 1]
