"""The compiled loops over options give what their Python form gives."""

from __future__ import annotations

from runpy import run_path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.engine.profiles import profile
from router.compiled import VARIABLE
from router.core import option_columns as compiled
from router.core.interfaces import Option
from router.core.state import Instance
from router.core.types import Candidate, LoadReport, Prediction

if compiled.WHY_NOT_NATIVE is not None:
    pytest.skip(compiled.WHY_NOT_NATIVE, allow_module_level=True)


@pytest.fixture(scope="module")
def python() -> Any:
    """The functions in Python, by name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, "numpy")
        return run_path(str(compiled.__file__))


PROFILES = [profile(name) for name in ("llama-3.1-8b@a100-80g", "llama-3.1-8b@l4")]
counts = st.integers(0, 300)


@st.composite
def members(draw: Any) -> tuple[Candidate, Instance]:
    model = draw(st.sampled_from(["small", "large"]))
    name, profiles = (
        draw(st.sampled_from("abc")),
        draw(st.sampled_from([{}, {model: PROFILES[0]}, {model: PROFILES[1]}])),
    )
    candidate = Candidate(name, model, model, family=draw(st.sampled_from([None, "llama"])))
    instance = Instance(
        name, "vllm", {model: candidate}, draw(st.none() | st.integers(1, 500)), speed=draw(st.sampled_from([1.0, 0.7])), profiles=profiles,
        usd_per_hour=draw(st.sampled_from([None, 2.0, 2.0])),
    )  # fmt: skip
    instance.in_flight, instance.pending_prefill_tokens, instance.context_tokens = (
        draw(counts),
        draw(counts),
        draw(counts),
    )
    instance.takes_report(
        LoadReport(running=draw(st.none() | counts), waiting=draw(st.sampled_from([None, 0, 0, 3]))), 2.0
    )
    instance.healthy = draw(st.integers(0, 9)) > 0
    instance.draining, instance.returned_at = (
        draw(st.integers(0, 9)) == 0,
        draw(st.sampled_from([None, None, None, 1.0])),
    )
    instance.ejected_for = draw(st.sampled_from([{}, {}, {"key": 1}]))
    instance.promised_tpot_s = draw(st.sampled_from([[], [], [0.05]]))
    return candidate, instance


@given(st.lists(members(), max_size=12), st.data())
def test_each_loop(python: Any, found: list[tuple[Candidate, Instance]], data: st.DataObject) -> None:
    def both(name: str, *arguments: Any) -> Any:
        theirs = python[name](*arguments)
        assert getattr(compiled, name)(*arguments) == theirs
        return theirs

    options = [Option(*each) for each in found]
    candidates, _ = both("parts_of", options)
    both("models_of", candidates)
    both("loads_of", options)
    both("any_promised", options)
    both("all_free", tuple(found))
    tokens = st.none() | st.floats(0.0, 5000.0)
    lengths = data.draw(st.lists(tokens, min_size=len(options), max_size=len(options)))
    prompt_tokens = data.draw(st.integers(0, 9000))
    cached = st.lists(st.floats(0.0, 9000.0), min_size=len(options), max_size=len(options))
    prefills_s = both("prefills_s", options, prompt_tokens, data.draw(st.none() | cached))
    both("delays_s", options, lengths, prompt_tokens, prefills_s)
    among = [at for at in range(len(options)) if data.draw(st.booleans())]
    both("hourly_usd", options, among)
    prices = data.draw(st.lists(st.sampled_from([None, 1.0, 2.0]), min_size=len(among), max_size=len(among)))
    calls: list[Any] = []

    def kind_of(option: Option, profile: Any, cost_usd: float | None) -> tuple[Any, ...]:
        calls.append((option, profile, cost_usd))
        return profile, option.instance.speed, cost_usd

    both("each_kind", options, among, prices, kind_of)
    assert calls[: len(calls) // 2] == calls[len(calls) // 2 :]


def test_predictions_are_set_in_order(python: Any) -> None:
    candidate = Candidate("a", "small", "small")
    instance = Instance("a", "vllm", {"small": candidate})
    for loops in (python, vars(compiled)):
        options, predictions = (
            [Option(candidate, instance) for _ in range(3)],
            [Prediction(p_miss=0.1 * at) for at in range(3)],
        )
        loops["set_predictions"](options, predictions)
        assert all(
            option.prediction is prediction for option, prediction in zip(options, predictions, strict=True)
        )
        with pytest.raises(ValueError):
            loops["set_predictions"](options, predictions[:2])
        with pytest.raises(ValueError):
            loops["delays_s"](options, [1.0], 100, [0.0, 0.0])
        with pytest.raises(ValueError):
            loops["delays_s"](options, [1.0, 1.0, 1.0], 100, [0.0])
