"""Round-robin positions that several replicas of the router share."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from random import Random

import pytest

import policies
from policies.round_robin import RoundRobin
from policies.round_robin_cursor import RoundRobinCursor
from router.core.interfaces import HasSharedCursor
from router.core.types import Request
from tests.unit.policies.made_options import option

REQUEST = Request("r", 0.0, "round_robin", ("m",), prompt_tokens=10)


FLEET = [option("a"), option("b"), option("c")]


def take(policy: RoundRobin, request: Request = REQUEST) -> str:
    choice = policy.choose(request, FLEET, Random(0))
    policy.placed(request, FLEET, choice)
    return FLEET[choice.index].candidate.instance


def test_replicas_that_exchange_positions_take_one_common_cycle() -> None:
    replicas = [RoundRobin(), RoundRobin(), RoundRobin()]
    names = ""
    for number in range(12):
        own = replicas[number * 7 % 3]
        names += take(own)
        outgoing = own.cursor.drain_outgoing()
        for other in replicas:
            if other is not own:
                other.cursor.receive(outgoing)
    assert names == "abcabcabcabc"


def test_replicas_that_exchange_rarely_still_share_evenly() -> None:
    replicas = [RoundRobin(), RoundRobin()]
    taken = Counter[str]()
    rng = Random(3)
    for _ in range(400):
        for policy in replicas:
            taken.update(take(policy) for _ in range(rng.randint(0, 5)))
        outgoing = [policy.cursor.drain_outgoing() for policy in replicas]
        replicas[0].cursor.receive(outgoing[1])
        replicas[1].cursor.receive(outgoing[0])
    assert max(taken.values()) - min(taken.values()) < 0.1 * min(taken.values())


def test_positions_are_sent_once_and_not_echoed() -> None:
    one, other = RoundRobin(), RoundRobin()
    assert one.cursor.drain_outgoing() == {}
    take(one)
    take(one, replace(REQUEST, models=("m", "n")))
    outgoing = one.cursor.drain_outgoing()
    assert outgoing == {'["m"]': ("a", "m"), '["m", "n"]': ("a", "m")}
    assert one.cursor.drain_outgoing() == {}
    other.cursor.receive(outgoing)
    assert other.cursor.drain_outgoing() == {}
    assert (take(other), take(other, replace(REQUEST, models=("m", "n")))) == ("b", "b")


@pytest.mark.parametrize("text", ["", "{", "1", "null", '["m", 1]', '{"m": 1}', "[" * 100_000])
def test_a_malformed_group_is_ignored(text: str) -> None:
    policy = RoundRobin()
    policy.cursor.receive({text: ("a", "m")})
    assert take(policy) == "a"


def test_the_number_of_groups_is_bounded() -> None:
    cursor = RoundRobinCursor()
    cursor.receive({json.dumps(f"m{number}"): ("a", "m") for number in range(3000)})
    for number in range(3000):
        cursor.advance(f"n{number}", FLEET[0])
    assert len(cursor.drain_outgoing()) <= 1024


def test_every_policy_with_a_cursor_shares_it() -> None:
    made = policies.create_all(policies.PolicySettings())
    sharing = {name for name, policy in made.items() if isinstance(policy, HasSharedCursor)}
    holding = {
        name
        for name, policy in made.items()
        if any(isinstance(each, RoundRobinCursor) for each in vars(policy).values())
    }
    assert sharing == holding
    assert {"round_robin", "eccos_rr", "llm_router_rr", "budget_online", "best_single", "knn_rr"} <= sharing
