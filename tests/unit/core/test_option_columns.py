"""The compiled loops over options give what their Python form gives."""

from __future__ import annotations

from collections.abc import Sequence
from runpy import run_path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.engine.profiles import profile
from router.compiled import VARIABLE
from router.core import option_columns as compiled
from router.core import options as options_module
from router.core.options import Option, Options, Roster
from router.core.state import Instance
from router.core.types import Candidate, LoadReport, Prediction

if compiled.WHY_NOT_NATIVE is not None:
    pytest.skip(compiled.WHY_NOT_NATIVE, allow_module_level=True)


@pytest.fixture(scope="module")
def python() -> Any:
    """The functions in Python, by name, and `Options`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, "numpy")
        found = run_path(str(compiled.__file__))
        return found | {"Options": run_path(str(options_module.__file__))["Options"]}


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

    given = [Option(*each) for each in found]
    options = data.draw(st.sampled_from([given, Options(given), Options(roster=Roster.of(found))]))
    candidates, instances = both("parts_of", options)
    both("models_of", candidates)
    assert list(compiled.loads_of(options)) == python["loads_of"](options)
    both("any_promised", options)
    both("doubtful", instances)
    tokens = st.none() | st.floats(0.0, 5000.0)
    lengths = data.draw(st.lists(tokens, min_size=len(options), max_size=len(options)))
    prompt_tokens = data.draw(st.integers(0, 9000))
    cached = st.lists(st.floats(0.0, 9000.0), min_size=len(options), max_size=len(options))
    prefills_s = both("prefills_s", options, prompt_tokens, data.draw(st.none() | cached))
    both("delays_s", options, lengths, prompt_tokens, prefills_s)
    ttfts_s = data.draw(st.lists(st.floats(0.0, 10.0), min_size=len(options), max_size=len(options)))
    sent = data.draw(
        st.dictionaries(st.sampled_from("abc"), st.tuples(st.floats(0.0, 99.0), st.floats(0.0, 99.0)))
    )
    both("later_s", options, prefills_s, ttfts_s, sent, 1 / 60)
    among = [at for at in range(len(options)) if data.draw(st.booleans())]
    both("hourly_usd", options, among)
    prices = data.draw(st.lists(st.sampled_from([None, 1.0, 2.0]), min_size=len(among), max_size=len(among)))
    calls: list[Any] = []

    def kind_of(option: Option, profile: Any, cost_usd: float | None) -> tuple[Any, ...]:
        calls.append((option, profile, cost_usd))
        return profile, option.instance.speed, cost_usd

    both("each_kind", options, among, prices, kind_of)
    assert calls[: len(calls) // 2] == calls[len(calls) // 2 :]


class Columns:
    """Predictions that tell their places."""

    def __init__(self, size: int) -> None:
        self.size = size

    def each(self, first: int, end: int) -> list[Prediction]:
        assert 0 <= first <= end <= self.size
        return [Prediction(p_miss=0.1 * at) for at in range(first, end)]


def an_option(name: str) -> Option:
    candidate = Candidate(name, "small", "small")
    return Option(candidate, Instance(name, "vllm", {"small": candidate}))


def test_predictions_are_set_in_order(python: Any) -> None:
    for loops in (python, vars(compiled)):
        options = [an_option("a") for _ in range(3)]
        for these in (options, Options(options)):
            loops["set_predictions"](these, Columns(3))
            assert [each.prediction for each in options] == Columns(3).each(0, 3)
            assert loops["predicted"](these)
        with pytest.raises(ValueError):
            loops["delays_s"](options, [1.0], 100, [0.0, 0.0])
        with pytest.raises(ValueError):
            loops["delays_s"](options, [1.0, 1.0, 1.0], 100, [0.0])


@given(st.data())
def test_options_are_made_when_they_are_read(python: Any, data: st.DataObject) -> None:
    """In any order: each is made once, and has its prediction."""
    size = data.draw(st.integers(1, 40))
    members = [(each.candidate, each.instance) for each in map(an_option, map(str, range(size)))]
    steps = data.draw(
        st.lists(st.sampled_from(["all", "predict", "slice"]) | st.integers(0, size - 1), max_size=20)
    )
    for kind in (python["Options"], Options):
        options = kind(roster=Roster.of(members))
        read: dict[int, Any] = {}
        predictions: list[Any] = [None] * size
        for step in steps:
            if step == "predict":
                predictions = Columns(size).each(0, size)
                options.predicted(Columns(size))
            elif isinstance(step, int):
                assert read.setdefault(step, options[step]) is options[step] is options[step - size]
            else:
                found = options if step == "all" else options[:3]
                assert all(read.setdefault(at, each) is each for at, each in enumerate(found))
            for at, each in read.items():
                assert (each.candidate, each.instance, each.prediction) == (*members[at], predictions[at])
        assert [(each.candidate, each.instance) for each in options] == members
        assert len(options) == size
        assert isinstance(options, Sequence)
        with pytest.raises(IndexError):
            options[size]
