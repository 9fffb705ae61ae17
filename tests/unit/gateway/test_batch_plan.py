"""The plan of a batch: where prompts go, what counts as load, and what is refused."""

from __future__ import annotations

import pytest

from router.core.errors import Refusal
from router.core.profile import EngineProfile
from router.core.state import Instance
from router.core.types import Candidate, LoadReport
from router.gateway.fleet.batch_plan import MAX_PAIRS, Prompt, batch_plan
from tests.pace import lines

LONG: Prompt = (10_000, None)
SHORT: Prompt = (1000, None)


def instance(
    name: str, per_token_s: float | None, model: str = "m", context_tokens: int | None = None
) -> Instance:
    made = Instance(name, "vllm", {model: Candidate(name, model, model, context_tokens=context_tokens)})
    if per_token_s is not None:
        made.profiles[model] = EngineProfile("p", 0.0, 0.0, per_token_s, 0.0, 0.0, 1_000_000)
    return made


def test_the_long_prompt_gets_the_wide_instance() -> None:
    plan = batch_plan([SHORT, LONG, SHORT], [instance("narrow", 1e-3), instance("wide", 2e-4)])()
    assert [each["instance"] for each in plan["prompts"]] == ["narrow", "wide", "narrow"]
    assert [each["prefill_s"] for each in plan["prompts"]] == pytest.approx([1.0, 2.0, 1.0])
    assert plan["makespan_s"] == pytest.approx(2.0)
    assert plan["bound_s"] == pytest.approx(2.0)
    assert plan["instances"][0] == {
        "instance": "narrow",
        "ready_s": 0.0,
        "ends_s": plan["makespan_s"],
        "prompts": 2,
        "tokens": 2000,
    }


def test_prompts_that_wait_and_the_speed_of_an_instance_count() -> None:
    narrow, wide = instance("narrow", 1e-3), instance("wide", 2e-4)
    wide.dispatched(20_000)
    wide.dispatched(10_000)
    plan = batch_plan([SHORT], [narrow, wide])()
    assert plan["prompts"][0]["instance"] == "narrow"
    assert [each["ready_s"] for each in plan["instances"]] == pytest.approx([0.0, 6.0])
    narrow.speed = 0.1
    plan = batch_plan([SHORT], [narrow, wide])()
    assert plan["prompts"][0]["instance"] == "wide"
    assert plan["makespan_s"] == pytest.approx(6.2)


def test_only_instances_that_can_take_a_prompt_do() -> None:
    away = [instance(name, 1e-6) for name in ("down", "draining", "starting")]
    away[0].healthy, away[1].draining, away[2].starting = False, True, True
    known = [
        instance("other", 1e-5, "n"),
        instance("short", 1e-5, context_tokens=10_000),
        instance("slow", 1e-2),
    ]
    prompts = [(10_000, "m"), (9_999, "m"), (10_000, None)]
    plan = batch_plan(prompts, [*away, *known, instance("unknown", None)])()
    found = [(each["instance"], each["model"]) for each in plan["prompts"]]
    assert found == [("slow", "m"), ("short", "m"), ("other", "n")]
    assert [each["instance"] for each in plan["instances"]] == ["other", "short", "slow"]


def test_without_a_declared_context_the_kv_memory_limits_a_prompt() -> None:
    """By the profiles of `instance` one million tokens."""
    engine, declared = instance("a", 1e-6), instance("b", 1e-3, context_tokens=2_000_000)

    def chosen(tokens: int) -> str:
        return batch_plan([(tokens, None)], [engine, declared])()["prompts"][0]["instance"]

    assert [chosen(999_999), chosen(1_000_000)] == ["a", "b"]
    engine.report = LoadReport(kv_capacity_tokens=50_000)
    assert [chosen(49_999), chosen(50_000)] == ["a", "b"]


@pytest.mark.parametrize(
    ("prompts", "param", "message"),
    [
        (
            [SHORT, (9, "n")],
            "prompts.1",
            "No healthy instance with an engine profile takes 9 tokens for n.",
        ),
        ([(500_000, None)], "prompts.0", "No healthy instance with an engine profile takes 500000 tokens."),
        ([SHORT] * (MAX_PAIRS // 2 + 1), "prompts", "At most 12800 prompts can be planned for 2 instances."),
    ],
)
def test_what_cannot_be_planned_is_refused(prompts: list[Prompt], param: str, message: str) -> None:
    with pytest.raises(Refusal, match=message) as refused:
        batch_plan(prompts, [instance(name, 1e-3, context_tokens=500_000) for name in "ab"])()
    assert (refused.value.status, refused.value.param) == (400, param)


def test_a_fleet_without_instances_refuses_the_first_prompt() -> None:
    with pytest.raises(Refusal, match="takes 1000 tokens"):
        batch_plan([SHORT], [])()


def test_what_the_event_loop_does_for_a_large_batch_is_short() -> None:
    """The plan is made in a thread."""
    prompts = [(1000 + number, None) for number in range(1000)]
    instances = [instance(f"i{number}", 1e-3) for number in range(MAX_PAIRS // 1000)]
    with lines() as counted:
        problem = batch_plan(prompts, instances)
    assert counted.run < 2 * len(prompts)
    assert len(problem()["prompts"]) == 1000
