"""One engine process with several models."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.engine import Engine, Sequence, engine_of, profile, profiles
from router.core.profile import EngineProfile
from tests.unit.backends_engine.loads import PROFILE, WHOLE_PROMPTS, Arrival, check_same, loads, play


def of_three(one: EngineProfile, every_token: bool) -> Engine:
    """Two models with the same weights, and one with slower ones."""
    slower = replace(one, name="slower", per_kv_token_s=3e-6, overhead_s=0.004)
    return engine_of({"a": one, "b": one, "c": slower}, every_token=every_token)


@given(load=loads(600), one=st.sampled_from([PROFILE, WHOLE_PROMPTS]))
def test_jumps_are_the_same_as_single_steps(load: list[Arrival], one: EngineProfile) -> None:
    check_same(lambda every_token: of_three(one, every_token), load)


@given(load=loads(600))
def test_models_of_the_same_weights_are_batched_like_one(load: list[Arrival]) -> None:
    apart = [replace(each, group=each.group + 3 * "abc".index(each.model)) for each in load]
    together, _ = play(Engine(PROFILE, every_token=False), apart, 16)
    shared, _ = play(engine_of(dict.fromkeys("abc", PROFILE), every_token=False), load, 16)
    assert shared == together


def seconds(engine: Engine, *models: str) -> float:
    """The time until prompts of 10 tokens for these models, all at once, have an answer of one token."""
    for number, model in enumerate(models):
        engine.submit(Sequence(str(number), 10, 1, model=model), 0.0)
    at_s = engine.next_at()
    assert at_s is not None
    assert len(engine.advance(at_s)) == len(models)
    return at_s


def test_a_step_is_one_pass_for_each_set_of_weights() -> None:
    one = seconds(of_three(PROFILE, True), "a")
    slower = seconds(of_three(PROFILE, True), "c")
    assert one == PROFILE.step_s(10, 0, 0.0, 55.0) < slower
    assert seconds(of_three(PROFILE, True), "a", "c") == pytest.approx(one + slower)
    assert seconds(of_three(PROFILE, True), "a", "b") < 1.2 * one


def test_each_model_has_a_prefix_cache_of_its_own() -> None:
    engine = of_three(PROFILE, True)
    for number, (model, cached) in enumerate([("a", 0), ("b", 0), ("a", 32)]):
        sequence = Sequence(str(number), 40, 1, (7, 8), model)
        engine.submit(sequence, float(number))
        engine.advance(number + 0.9)
        assert sequence.cached_tokens == cached


def test_unlike_weights_leave_less_memory() -> None:
    llama, qwen = "llama-3.1-8b@a100-80g", "qwen2.5-7b@a100-80g"
    alone = profile(llama)
    adapters = engine_of({"base": alone, "adapter": alone})
    assert adapters.profile.kv_capacity_tokens == alone.kv_capacity_tokens
    both = engine_of({"l": alone, "q": profile(qwen)})
    kv_bytes = profiles.model_of(llama).kv_bytes_per_token()
    less = alone.kv_capacity_tokens - both.profile.kv_capacity_tokens
    assert less == pytest.approx(profiles.weights_bytes(qwen) / kv_bytes, rel=0.001)
    with pytest.raises(ValueError, match=r"do not fit together .*llama-3\.1-8b@a30, qwen2\.5-7b@a30"):
        engine_of({"l": profile("llama-3.1-8b@a30"), "q": profile("qwen2.5-7b@a30")})


def test_an_unknown_model() -> None:
    with pytest.raises(KeyError):
        of_three(PROFILE, True).submit(Sequence("1", 10, 1, model="d"), 0.0)
