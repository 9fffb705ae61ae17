"""What no placement exceeds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.planning.bound import GpuSeconds, GpuTime
from benchmarks.planning.estimate import asked
from benchmarks.simulator import Arrival
from router.core.types import Request, Slo
from tests.unit.benchmarks_planning.made import estimate


def busy(total: float, prompt: float = 0.0) -> GpuSeconds:
    return GpuSeconds(prompt, total)


#: Two kinds of request, 100 of each; the second runs on the second kind of GPU only. One GPU of the first kind and two of
#: the second, for 9 s and one more until the last answer is due.
TIME = GpuTime(
    [100, 100],
    [[busy(0.1), busy(0.2)], [None, busy(0.4)]],
    [1, 2],
    [1.0, 3.0],
    9.0,
    GpuSeconds(0.5, 1.0),
)


def test_bounds_of_a_cluster_by_hand() -> None:
    # The first GPU serves the first kind (10 s), the others 50 of the second (20 s).
    assert TIME.attainment() == pytest.approx(150 / 200)
    # 100 requests, all of the first kind: 50 take 5 s of the first GPU, 50 more 10 s of the two others. So they may come in
    # 4 s instead of 9, and end one second later.
    assert TIME.multiple(0.5) == pytest.approx(9 / 4)
    # Without that second 5 s are needed.
    assert TIME.lasting_multiple(0.5) == pytest.approx(9 / 5)
    # 90 of the first kind, at 0.1 s: 9 s of 10 of the cheaper GPU.
    assert TIME.usd(0.45) == pytest.approx(0.9)
    assert TIME.usd(0.9) is None


def test_prompts_are_due_before_answers() -> None:
    early = replace(TIME, busy=[[busy(0.1, 0.19), busy(0.2, 0.38)], [None, busy(0.4)]])
    # 9.5 s of the first GPU take 50 prompts, 19 s of the others 50 more; then 1 s is left for 2 of the second kind.
    assert early.attainment() < TIME.attainment()


def test_no_work_bounds_no_load() -> None:
    assert replace(TIME, requests=[0, 0]).multiple(0.95) is None
    assert replace(TIME, requests=[0, 0]).attainment() == 1.0


def test_a_group_that_breaks_every_tpot_serves_nothing() -> None:
    usual = estimate("4xl4", "llama-3.2-1b", [2.0])
    strict = replace(usual, requests=[replace(each, tpot_s=0.001) for each in usual.requests])
    brief = replace(strict, requests=[replace(each, output_tokens={0: 1}) for each in strict.requests])
    assert [each.bound().attainment() for each in (usual, strict, brief)] == [1.0, 0.0, 1.0]
    assert strict.bound().multiple(0.95) == 0.0
    assert strict.bound().usd(0.95) is None


@pytest.mark.parametrize("targets", [{"ttft_s": 0.01}, {"e2e_s": 0.5}])
def test_what_an_idle_group_cannot_keep_bounds_all(targets: dict[str, float]) -> None:
    usual = estimate("4xl4", "llama-3.2-1b", [2.0])
    strict = replace(usual, requests=[replace(each, **targets) for each in usual.requests])
    assert [each.bound().attainment() for each in (usual, strict)] == [1.0, 0.0]


def test_a_request_takes_the_model_of_the_shorter_answer() -> None:
    usual = estimate("1xl4", "llama-3.2-1b llama-3.2-3b", [1.0, 0.0])
    either = replace(
        usual, requests=[replace(each, output_tokens={0: 8, 1: 3000}) for each in usual.requests]
    )
    short = replace(usual, requests=[replace(each, output_tokens={0: 8}) for each in usual.requests])
    assert either.bound().lasting_multiple(0.95) == pytest.approx(short.bound().lasting_multiple(0.95))


def test_requests_without_a_target_may_wait() -> None:
    usual = estimate("1xl4", "llama-3.2-1b", [200.0])
    free = {"ttft_s": None, "tpot_s": None}
    many = [replace(each, **(free if place % 20 else {})) for place, each in enumerate(usual.requests)]
    assert usual.bound().attainment() < 0.9
    assert replace(usual, requests=many).bound().attainment() == 1.0


def test_an_answer_without_a_target_is_due_when_the_gateway_gives_it_up() -> None:
    prompt = Request("r", 5.0, "latency", ("m",), prompt_tokens=10, expires_at=605.0)

    def due_s(**slo: float) -> float:
        arrival = Arrival(replace(prompt, slo=Slo(**slo)), {"m": 100}, {}, ())
        (found,) = asked([arrival], {"m": None})
        return found.due_s

    assert due_s(ttft_s=1.0, tpot_s=0.1) == 11.0
    assert due_s(ttft_s=1.0) == due_s(tpot_s=0.1) == 600.0
    assert due_s(e2e_s=3.0) == due_s(ttft_s=9.0, tpot_s=0.1, e2e_s=3.0) == 3.0


def test_a_context_refuses_longer_prompts_and_ends_answers() -> None:
    request = Request("r", 0.0, "latency", ("short", "long", "any"), prompt_tokens=1000)
    (found,) = asked(
        [Arrival(request, dict.fromkeys(request.models, 500), {}, ())],
        {"short": 1000, "long": 1200, "any": None},
    )
    assert found.output_tokens == {1: 200, 2: 500}
    assert (
        asked([Arrival(replace(request, models=("short",)), {"short": 500}, {}, ())], {"short": 1000}) == []
    )


def test_a_prompt_beyond_the_contexts_goes_to_the_first_fallback_that_holds_it() -> None:
    request = Request("r", 0.0, "latency", ("tiny",), ("short", "long", "any"), prompt_tokens=1000)
    lengths = dict.fromkeys((*request.models, *request.fallbacks), 500)

    def output_tokens(tiny: int) -> list[dict[int, int]]:
        contexts = {"tiny": tiny, "short": 1000, "long": 1200, "any": None}
        return [dict(each.output_tokens) for each in asked([Arrival(request, lengths, {}, ())], contexts)]

    assert output_tokens(tiny=500) == [{2: 200}]
    assert output_tokens(tiny=2000) == [{0: 500}]
