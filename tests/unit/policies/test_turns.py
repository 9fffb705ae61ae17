"""Turns that several replicas of the router take together."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from random import Random

import pytest

import policies
from policies.round_robin import RoundRobin
from policies.turns import Turns
from router.core.interfaces import Option, TakesTurns
from router.core.state import Instance
from router.core.types import Candidate, Request

REQUEST = Request("r", 0.0, "round_robin", ("m",), prompt_tokens=10)


def option(name: str, model: str = "m") -> Option:
    candidate = Candidate(name, model, model)
    return Option(candidate, Instance(name, "vllm", {model: candidate}))


FLEET = [option("a"), option("b"), option("c")]


def took(policy: RoundRobin, request: Request = REQUEST) -> str:
    choice = policy.choose(request, FLEET, Random(0))
    policy.placed(request, FLEET, choice)
    return FLEET[choice.index].candidate.instance


def test_replicas_that_hear_of_each_other_go_round_together() -> None:
    replicas = [RoundRobin(), RoundRobin(), RoundRobin()]
    names = ""
    for number in range(12):
        mine = replicas[number * 7 % 3]
        names += took(mine)
        news = mine.turns.news()
        for other in replicas:
            if other is not mine:
                other.turns.hear(news)
    assert names == "abcabcabcabc"


def test_between_two_exchanges_each_goes_on_by_itself_and_all_have_as_many() -> None:
    replicas = [RoundRobin(), RoundRobin()]
    taken = Counter[str]()
    rng = Random(3)
    for _ in range(400):
        for policy in replicas:
            taken.update(took(policy) for _ in range(rng.randint(0, 5)))
        told = [policy.turns.news() for policy in replicas]
        replicas[0].turns.hear(told[1])
        replicas[1].turns.hear(told[0])
    assert max(taken.values()) - min(taken.values()) < 0.1 * min(taken.values())


def test_news_are_told_once_and_only_own() -> None:
    one, other = RoundRobin(), RoundRobin()
    assert one.turns.news() == {}
    took(one)
    took(one, replace(REQUEST, models=("m", "n")))
    news = one.turns.news()
    assert news == {'["m"]': ("a", "m"), '["m", "n"]': ("a", "m")}
    assert one.turns.news() == {}
    other.turns.hear(news)
    assert other.turns.news() == {}  # no echo
    assert (took(other), took(other, replace(REQUEST, models=("m", "n")))) == ("b", "b")


@pytest.mark.parametrize("text", ["", "{", "1", "null", '["m", 1]', '{"m": 1}', "[" * 100_000])
def test_what_is_no_turn_is_ignored(text: str) -> None:
    policy = RoundRobin()
    policy.turns.hear({text: ("a", "m")})
    assert took(policy) == "a"


def test_turns_are_bounded_whoever_tells_them() -> None:
    turns = Turns()
    turns.hear({json.dumps(f"m{number}"): ("a", "m") for number in range(3000)})
    for number in range(3000):
        turns.passed(f"n{number}", FLEET[0])
    assert len(turns.news()) <= 1024


def test_every_policy_that_gives_turns_shares_them() -> None:
    made = policies.create_all(policies.PolicySettings())
    sharing = {name for name, policy in made.items() if isinstance(policy, TakesTurns)}
    holding = {
        name
        for name, policy in made.items()
        if any(isinstance(each, Turns) for each in vars(policy).values())
    }
    assert sharing == holding
    assert {"round_robin", "eccos_rr", "llm_router_rr", "budget_online", "best_single", "knn_rr"} <= sharing
