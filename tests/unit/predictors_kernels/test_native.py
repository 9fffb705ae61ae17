"""Each compiled kernel gives what its NumPy form gives, whatever comes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from math import inf, nan
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from backends.engine.profiles import names, profile
from predictors import kernels
from predictors.kernels import ResidualWindow
from predictors.kernels.length_bins import BINS, PRIOR_SHARES
from predictors.kernels.reference import calibration as calibration_in_python
from predictors.kernels.reference import estimates as estimates_in_python
from predictors.kernels.reference import histories as histories_in_python
from predictors.kernels.reference import (
    latency_networks,
    length_network,
    lengths,
    misses,
    prompt_encoder,
    quantiles,
    relevance_network,
)
from predictors.kernels.reference import model_outputs as outputs_in_python
from predictors.kernels.reference import words as words_in_python
from predictors.kernels.reference.estimates import AnalyticEstimate, Estimate
from predictors.kernels.reference.lengths import answer_length
from predictors.learned.artifact import SHIPPED, load, path_of
from predictors.learned.models import KINDS, UNTRAINED
from predictors.learned.text import COUNTS
from predictors.online.candidate_stats import CandidateStats
from predictors.online.fleet_stats import FleetStats
from router.core.state import Instance
from router.core.types import Candidate, LoadReport, Price, PromptFeatures, Slo
from tests.unit.predictors_learned.test_length_model import made_artifact

if kernels.WHY_NOT_NATIVE is not None:
    pytest.skip(kernels.description(), allow_module_level=True)

from predictors.kernels.native import calibration, distributions, estimates, histories, networks
from predictors.kernels.native import words as native_words
from tests.unit.predictors_kernels.test_native_learning import events, play

SUMMARY, ESTIMATE = 44, 13
HUGE = 1e30
numbers = st.floats(-50.0, 50.0) | st.sampled_from([0.0, -0.0, 1e-300, HUGE, -HUGE])
odd_numbers = numbers | st.sampled_from([nan, inf, -inf])
words = st.integers(0, 65535) | st.integers(0, 40)
features = st.builds(
    PromptFeatures,
    st.lists(words, max_size=140).map(tuple),
    st.lists(words, max_size=70).map(tuple),
    st.tuples(*[st.integers(0, 3000) | st.just(10**9)] * len(COUNTS)),
)


def close(found: Any, wanted: Any, within: float = 1e-6) -> None:
    np.testing.assert_allclose(found, wanted, rtol=within, atol=within, equal_nan=True)


def shipped(kind: str) -> dict[str, np.ndarray]:
    return dict(load(path_of(SHIPPED, kind), kind, KINDS[kind].model.features).arrays)


def drawn(data: st.DataObject, count: int, size: int, of: st.SearchStrategy[float] = numbers) -> np.ndarray:
    return data.draw(arrays(float, (count, size), elements=of))


# --- networks ------------------------------------------------------------------------------------------
LATENCY = shipped("latency")


@given(st.data())
def test_the_lstm_of_events(data: st.DataObject) -> None:
    found, wanted = networks.LatencyNetwork(LATENCY), latency_networks.LatencyNetwork(LATENCY)
    ours, theirs = found.start(), wanted.start()
    assert (ours == theirs).all()
    for row in drawn(data, data.draw(st.integers(0, 6)), len(LATENCY["event_mean"]), odd_numbers):
        found.step(tuple(row.tolist()), ours)
        wanted.step(tuple(row.tolist()), theirs)
    close(ours, theirs, 3e-6)


@given(st.data(), st.integers(0, 20))
def test_the_head_of_all_candidates(data: st.DataObject, count: int) -> None:
    found, wanted = networks.LatencyNetwork(LATENCY), latency_networks.LatencyNetwork(LATENCY)
    rng = np.random.default_rng(count)
    states = list(rng.normal(size=(count, len(wanted.start()))).astype(np.float32))
    rows = drawn(data, count, latency_networks.TARGETS, odd_numbers)
    with np.errstate(invalid="ignore"):
        close(found.quantiles(states, rows), wanted.quantiles(states, rows), 1e-5)


MEMORY = shipped("memory")


@given(st.data(), st.integers(0, 20))
def test_the_memory_network(data: st.DataObject, count: int) -> None:
    held = data.draw(st.lists(st.floats(-1.0, 2.0), min_size=count, max_size=count))
    usage = data.draw(st.lists(st.none() | st.floats(-1.0, 2.0), min_size=count, max_size=count))
    targets = drawn(data, count, latency_networks.TARGETS)
    rows = networks.memory_rows(held, usage, targets)
    close(rows, latency_networks.memory_rows(held, usage, targets))
    close(networks.MemoryNetwork(MEMORY).predict(rows), latency_networks.MemoryNetwork(MEMORY).predict(rows))


@st.composite
def known_estimates(draw: Callable[[Any], Any]) -> tuple[float, ...]:
    times = st.floats(1e-6, 1e5)
    return (
        draw(times), draw(times), draw(st.integers(0, 2)), draw(st.integers(0, 2)), draw(st.floats(-20.0, 20.0)),
        draw(st.floats(-20.0, 20.0)), draw(st.integers(0, 10**6)), draw(st.integers(0, 10**6)),
        *(draw(st.floats(0.0, 1e6)) for _ in range(4)), draw(times),
    )  # fmt: skip


@given(st.data(), st.integers(0, 12), st.floats(0.0, 1e6))
def test_the_rows_of_all_candidates(data: st.DataObject, count: int, now: float) -> None:
    known = data.draw(st.lists(known_estimates(), min_size=count, max_size=count))
    seen = [tuple(row) for row in drawn(data, count, SUMMARY, st.floats(0.0, 1e6)).tolist()]
    found, wanted = networks.target_rows(seen, known, now), latency_networks.target_rows(seen, known, now)
    # Coarse sizes are rounded, so that a tie may fall to either side.
    coarse = [10, 12]
    close(np.delete(found, coarse, axis=1), np.delete(wanted, coarse, axis=1))
    close(found[:, coarse], wanted[:, coarse], 0.25)


def small(familiar: float) -> dict[str, np.ndarray]:
    return dict(made_artifact(familiar).arrays)


@pytest.mark.parametrize(
    "weights", [shipped("length"), small(0.0), small(0.8)], ids=["shipped", "made", "strange"]
)
@given(prompt=features, models=st.integers(0, 5))
def test_the_length_network(weights: dict[str, np.ndarray], prompt: PromptFeatures, models: int) -> None:
    found, wanted = _length_networks(weights)
    rng = np.random.default_rng(models)
    table = rng.normal(size=(models, weights["model_table"].shape[1])).astype(np.float32)
    spread = rng.uniform(0.5, 2.0, models).astype(np.float32)
    ours, theirs = (
        found.shares(prompt, found.fleet(table, spread)),
        wanted.shares(prompt, wanted.fleet(table, spread)),
    )
    close(ours, theirs, 3e-6)  # sums of a thousand float32


_MADE: dict[int, tuple[Any, length_network.LengthNetwork]] = {}


def _length_networks(weights: dict[str, np.ndarray]) -> tuple[Any, length_network.LengthNetwork]:
    if id(weights) not in _MADE:
        _MADE[id(weights)] = networks.LengthNetwork(weights), length_network.LengthNetwork(weights)
    return _MADE[id(weights)]


@pytest.mark.parametrize("word", [-1, 65536, 2**31])
def test_a_word_beyond_the_vocabulary_is_an_error(word: int) -> None:
    network = _length_networks(LENGTH)[0]
    fleet = network.fleet(LENGTH["model_table"], LENGTH["model_spread"])
    with pytest.raises((IndexError, OverflowError)):
        network.shares(PromptFeatures((1, word), (), (1,) * len(COUNTS)), fleet)


LENGTH = shipped("length")
RELEVANCE = {
    name: array.astype(np.float32) if array.dtype.kind == "f" else array
    for name, array in shipped("relevance").items()
}
ENCODER = (
    RELEVANCE["gram_ids"].astype(np.int64), RELEVANCE["gram_idf"], RELEVANCE["gram_table"], RELEVANCE["gram_step"],
    RELEVANCE["lexicon"], RELEVANCE["lexicon_step"], float(RELEVANCE["unknown_idf"]),
)  # fmt: skip
ENCODERS = networks.Encoder(*ENCODER), prompt_encoder.Encoder(*ENCODER)
EXPERTS = networks.RelevanceNetwork(RELEVANCE), relevance_network.RelevanceNetwork(RELEVANCE)


@given(features, st.lists(st.integers(0, len(RELEVANCE["head_prior"]) - 1), max_size=6), st.integers(0, 2))
def test_the_relevance_model(prompt: PromptFeatures, heads: list[int], scales: int) -> None:
    vectors = [encoder.vector(prompt) for encoder in ENCODERS]
    close(*vectors)
    scales = min(scales, len(RELEVANCE["scale_shift"])) if heads else 0
    found, wanted = (
        network.quality(vectors[1], [network.heads(scale, np.array(heads)) for scale in range(scales)])
        for network in EXPERTS
    )
    close(found[0], wanted[0], 3e-6)
    close(found[1], wanted[1], 3e-6)
    assert found[2] == wanted[2]
    assert found[3] == pytest.approx(wanted[3], abs=1e-5)


# --- distributions -------------------------------------------------------------------------------------
#: Even, usual and lumpy distributions; the last have shares of 0.
all_shares = st.builds(
    lambda seed, evenness: np.random.default_rng(seed).dirichlet(np.full(BINS, evenness)),
    st.integers(0, 2**32 - 1),
    st.sampled_from([100.0, 1.0, 0.003]),
)
tokens = st.floats(-10.0, 1e6) | st.sampled_from([0.0, 0.5, 1.0, 8.5, 1e12, inf])


@given(all_shares, st.lists(tokens, max_size=5), st.lists(st.floats(-0.5, 1.5), max_size=5))
def test_length_tables(shares: np.ndarray, at: list[float], probabilities: list[float]) -> None:
    found, wanted = distributions.LengthTable(shares), lengths.LengthTable(shares)
    assert (found.mean, found.p50, found.p90, found.p95) == (wanted.mean, wanted.p50, wanted.p90, wanted.p95)
    assert (found.curve == wanted.curve).all()
    assert (found.shares == wanted.shares).all()
    assert [found.mean_below(each) for each in at] == [wanted.mean_below(each) for each in at]
    assert [found.quantile(each) for each in probabilities] == [
        wanted.quantile(each) for each in probabilities
    ]


answers = st.tuples(all_shares, st.integers(0, 300_000), st.booleans())


@given(st.lists(answers, max_size=12), all_shares, all_shares)
def test_the_correction_of_learned_lengths(
    seen: list[tuple[np.ndarray, int, bool]], predicted: np.ndarray, usual: np.ndarray
) -> None:
    ours, theirs = distributions.LearnedLengths(), lengths.LearnedLengths()
    for shares, count, censored in seen:
        ours.observe(shares, distributions.LengthTable(usual), count, censored)
        theirs.observe(shares, lengths.LengthTable(usual), count, censored)
    close(
        [ours.evidence, ours.log_scale, ours.weight], [theirs.evidence, theirs.log_scale, theirs.weight], 1e-9
    )
    close(ours.ratio, theirs.ratio)
    (found,) = distributions.served_tables([ours], predicted[None], [distributions.LengthTable(usual)])
    (wanted,) = lengths.served_tables([theirs], predicted[None], [lengths.LengthTable(usual)])
    close(found.curve, wanted.curve)
    close([found.p50, found.p90, found.mean], [wanted.p50, wanted.p90, wanted.mean])
    assert distributions.served_tables([], np.empty((0, BINS)), []) == []


def window(residuals: list[float]) -> ResidualWindow:
    found = ResidualWindow(0.35, 0.5)
    for residual in residuals:
        found.observe(residual)
    return found


log_errors = st.floats(-5.0, 5.0)
windows = st.lists(log_errors, max_size=40).map(window)
targets = st.none() | st.floats(1e-6, 1e4) | st.sampled_from([0.0, 5e-324, 1.7e308])
slos = st.builds(Slo, targets, targets, targets)
#: What was predicted of a log error by all predictions, and what it was.
learned = st.lists(st.tuples(st.lists(log_errors, min_size=15, max_size=15), log_errors), max_size=8)


@given(st.data(), st.integers(0, 8))
def test_served_quantiles(data: st.DataObject, count: int) -> None:
    raw = drawn(data, 2 * count, 5, st.floats(-30.0, 30.0)).reshape(count, 2, 5).astype(np.float32)
    offsets = [
        tuple(each.tolist()) for each in drawn(data, 2 * count, 5, st.floats(-9.0, 9.0)).reshape(-1, 2, 5)
    ]
    offsets = [([*map(float, ttft)], [*map(float, tpot)]) for ttft, tpot in offsets]
    errors = data.draw(st.lists(st.tuples(windows, windows), min_size=count + 2, max_size=count + 2))
    given_ = [made_estimate((1.0, 1.0), *both) for both in errors]
    places = data.draw(st.permutations(range(count + 2)))[:count]
    observed = data.draw(st.lists(st.tuples(learned, learned), min_size=count, max_size=count))

    def served(module: Any, kind: Any, weight: Any) -> Any:
        weights = [tuple(after(weight(), each) for each in both) for both in observed]
        return module.served_quantiles(raw, kind(given_), places, weights, offsets)

    found = served(distributions, estimates.Estimates, distributions.ModelWeight)
    wanted = served(quantiles, estimates_in_python.Estimates, quantiles.ModelWeight)
    close(found[0], wanted[0], 1e-9)
    close(found[1], wanted[1], 1e-9)


def after(weight: Any, observed: list[tuple[list[float], float]]) -> Any:
    for predicted, actual in observed:
        weight.learn(tuple(predicted), actual)
    return weight


modelled = st.tuples(
    windows, windows, learned, learned, arrays(float, (2, 5), elements=st.floats(-1.0, 1.0)), st.lists(events, max_size=6),
    st.none() | st.floats(0.0, 1.0), st.none() | st.just("a profile"),
)  # fmt: skip


@given(st.lists(modelled, max_size=10), st.sampled_from([1, 8]), st.booleans())
def test_the_outputs_of_both_models(drawn_: list[Any], times: int, with_memory: bool) -> None:
    def outputs(
        module: Any, network: Any, history: Any, weight: Any, memory: Any, kind: Any, calibrated: Any
    ) -> Any:
        stats, instances, head = [], [], network(LATENCY)
        for _, _, of_ttft, of_tpot, offsets, happened, usage, profile_ in drawn_:
            one = history(head)
            play(one, happened, asked=False)
            group = calibrated.GroupCalibration()
            for each, values in zip(group.offsets, offsets.tolist(), strict=True):
                each.values[:] = values
            weights = after(weight(), of_ttft), after(weight(), of_tpot)
            stats.append(SimpleNamespace(history=one, group=group, weights=weights, profile=profile_))
            instances.append(Instance("i", "vllm", {}, report=LoadReport(kv_usage=usage)))
        known = kind([made_estimate((1.0, 1.0), *each[:2]) for each in drawn_] * times)
        return module.model_outputs(
            head, memory(MEMORY) if with_memory else None, stats * times, known, instances * times, 20.0
        )

    found = outputs(
        distributions, networks.LatencyNetwork, histories.InstanceHistory, distributions.ModelWeight,
        networks.MemoryNetwork, estimates.Estimates, calibration,
    )  # fmt: skip
    wanted = outputs(
        outputs_in_python, latency_networks.LatencyNetwork, histories_in_python.InstanceHistory, quantiles.ModelWeight,
        latency_networks.MemoryNetwork, estimates_in_python.Estimates, calibration_in_python,
    )  # fmt: skip
    assert [found.rows, *found[5:]] == [wanted.rows, *wanted[5:]]
    for ours, theirs in zip(found[1:3], wanted[1:3], strict=True):
        close(np.frombuffer(ours).reshape(theirs.shape), theirs, 1e-4)
    if with_memory:
        close(
            *(
                [each.memory.predict_one(each.memory_rows, row) for row in range(len(wanted.quantiles))]
                for each in (found, wanted)
            ),
            1e-4,
        )
        with pytest.raises(IndexError, match="a row that is not there"):
            found.memory.predict_one(found.memory_rows, len(wanted.quantiles))
    else:
        assert found.memory is None
        assert wanted.memory is None


@st.composite
def candidates(draw: Callable[[Any], Any], choices: int) -> tuple[Any, ...]:
    times = st.floats(1e-5, 1e3)
    return (
        (draw(times), draw(times)), draw(all_shares), draw(st.none() | st.integers(1, 10_000)), choices,
        (draw(windows), draw(windows), draw(st.booleans()), draw(st.booleans())),
        sorted(draw(st.lists(log_errors, min_size=5, max_size=5))), sorted(draw(st.lists(log_errors, min_size=5, max_size=5))),
    )  # fmt: skip


@given(st.data(), slos, st.floats(0.0, 10.0), st.integers(0, 6), st.sampled_from([1, 1, 2, 5]))
def test_p_miss(data: st.DataObject, slo: Slo, waited_s: float, count: int, choices: int) -> None:
    drawn_ = data.draw(st.lists(candidates(choices), min_size=count, max_size=count))
    served = np.array([each[5:7] for each in drawn_], float).reshape(count, 2, 1, 5)
    modelled = np.concatenate((served, np.zeros((count, 2, 2, 5))), axis=2)
    given = [made_estimate(each[0], *each[4][:2]) for each in drawn_]
    serves = [[each[4][2 + time] for each in drawn_] for time in range(2)]

    def missed(module: Any, kind: Any, table: Any, quantiles: Any) -> list[float]:
        of = [kernels_answer(table(shares), cap, number) for _, shares, cap, number, *_ in drawn_]
        return module.p_miss(slo, waited_s, kind(given), of, *serves, quantiles, list(range(count)))

    close(
        missed(distributions, estimates.Estimates, distributions.LengthTable, modelled.tobytes()),
        missed(misses, estimates_in_python.Estimates, lengths.LengthTable, modelled),
    )


@given(st.data(), st.floats(0.0, 10.0), st.integers(0, 6), st.booleans())
def test_what_is_expected_of_all_candidates(
    data: st.DataObject, waited_s: float, count: int, decodes: bool
) -> None:
    drawn_ = data.draw(st.lists(candidates(1), min_size=count, max_size=count))
    prices = st.builds(Price, st.floats(0.0, 100.0), st.floats(0.0, 100.0))
    priced = [Candidate("i", "m", "m", data.draw(prices)) for _ in drawn_]
    given = [made_estimate(each[0], *each[4][:2]) for each in drawn_]
    serves = [[each[4][2 + time] for each in drawn_] for time in range(2)]
    rows = [count - 1 - at for at in range(count)]
    factors = np.exp(np.array([each[5:7] for each in drawn_], float).reshape(count, 2, 5)[:, :, :3])
    table = lengths.LengthTable(PRIOR_SHARES)
    of = [kernels_answer(table, each[2], 1) if decodes else None for each in drawn_]
    ours, theirs = (module.Estimates(given) for module in (estimates, estimates_in_python))
    assert len(ours) == len(theirs) == count
    assert list(ours) == list(theirs)
    first = data.draw(st.integers(0, count))
    places = first, data.draw(st.integers(first, count))
    both = (ours, factors.tobytes()), (theirs, factors)
    times = zip(*[each.times(of, waited_s, rows, by, *places) for each, by in both], strict=True)
    means = [each.means(of, waited_s, rows, by, *serves) for each, by in both]
    for found, wanted in (*times, means):
        assert [each is None for each in found] == [each is None for each in wanted]
        close([each or 0.0 for each in found], [each or 0.0 for each in wanted], 1e-12)
    close(*[each.costs(of, priced, *places) for each, _ in both], 1e-12)
    for at in range(count):
        for row in (-1, rows[at]):
            details = [each.details(at, of[at], waited_s, row, by) for each, by in both]
            assert details[0] == details[1]
        with pytest.raises(IndexError, match="a row that is not there"):
            ours.details(at, of[at], waited_s, count, factors.tobytes())
    with pytest.raises(IndexError):
        ours[count]
    with pytest.raises(IndexError):
        ours.details(count, None, waited_s, -1, b"")


@given(st.lists(st.integers(1, 4) | st.floats(0.1, 9.0), max_size=9), st.integers(1, 9))
def test_the_soonest_candidates(e2e_s: list[float], count: int) -> None:
    given = [made_estimate((1.0, 1.0), window([]), window([]))._replace(e2e_s=each) for each in e2e_s]
    ours, theirs = (module.Estimates(given).soonest(count) for module in (estimates, estimates_in_python))
    assert list(ours) == list(theirs)


def made_estimate(times_s: tuple[float, float], ttft_errors: Any, tpot_errors: Any) -> AnalyticEstimate:
    estimate = Estimate(*times_s, 0, 1, 0.1, 0.2, 3, 4, 100.0, 10.0, 200.0, 0.0, 0.02)
    return AnalyticEstimate(estimate, 0.03, 0.25, 1.5, ttft_errors, tpot_errors)


def kernels_answer(table: Any, cap: int | None, choices: int) -> Any:
    return answer_length(table, cap, choices, table)


# --- the analytic estimate -----------------------------------------------------------------------------
@st.composite
def loaded_instances(draw: Callable[[Any], Any]) -> tuple[CandidateStats, Candidate, Instance]:
    counts, unknown = st.integers(0, 60), st.none()
    instance = Instance(
        "i", "ollama", {}, speed=draw(st.sampled_from([1.0, 8.0])), fixed_slots=draw(st.booleans())
    )
    candidate = Candidate("i", "m", "m")
    instance.in_flight = draw(counts)
    instance.awaiting_first_token = draw(st.integers(0, instance.in_flight))
    instance.pending_prefill_tokens = draw(st.integers(0, 10**6)) if instance.awaiting_first_token else 0
    instance.context_tokens = draw(st.integers(-100, 10**6))
    instance.dispatched_since_report, instance.ended_since_report = draw(counts), draw(counts)
    instance.report = LoadReport(
        running=draw(unknown | counts),
        waiting=draw(unknown | counts),
        kv_usage=draw(unknown | st.floats(0.0, 1.0)),
        kv_capacity_tokens=draw(unknown | st.integers(0, 10**6)),
        loaded_models=draw(
            unknown | st.sampled_from([frozenset(), frozenset({"m"}), frozenset({"m:latest"})])
        ),
    )
    instance.recount()
    if draw(st.booleans()):
        instance.profiles["m"] = profile(draw(st.sampled_from(PROFILES)))
    stats = FleetStats(UNTRAINED).of(candidate, instance)
    stats.lengths.prompt_ratio = draw(st.floats(0.1, 10.0))
    stats.lengths.mean_prompt_tokens = draw(st.floats(1.0, 1e5))
    stats.prefills.add(draw(st.floats(0.0, 1e6)), draw(st.floats(0.0, 20.0)))
    for residuals in (stats.ttft, stats.tpot):
        for stratum, residual in draw(st.lists(st.tuples(st.integers(0, 2), log_errors), max_size=40)):
            residuals.observe(stratum, residual)
    for estimate_s, actual_s in draw(
        st.lists(st.tuples(st.floats(1e-3, 1.0), st.floats(1e-3, 1.0)), max_size=5)
    ):
        stats.shrinkage.observe(estimate_s, actual_s)
    return stats, candidate, instance


PROFILES = sorted(names())[:12]


@given(
    st.lists(loaded_instances(), max_size=4),
    st.integers(0, 300_000),
    st.floats(0.0, 1.0),
    st.integers(1, 5000) | st.none(),
)
def test_the_analytic_estimates(
    at: list[tuple[CandidateStats, Candidate, Instance]], tokens: int, cached: float, cap: int | None
) -> None:
    table = lengths.LengthTable(PRIOR_SHARES)
    answers = [answer_length(table, cap, 1, table)] * len(at)
    columns: list[list[Any]] = [[each[column] for each in at] for column in range(3)]
    stats, candidates_, instances = columns
    found, wanted = (
        module.analytic_estimates(
            module.Sources(stats, candidates_), candidates_, instances, tokens, [cached * tokens] * len(at), answers, 30.0
        )
        for module in (estimates, estimates_in_python)
    )  # fmt: skip
    assert len(found) == len(wanted)
    for ours, theirs in zip(found, wanted, strict=True):
        assert type(ours) is type(theirs)
        assert type(ours.estimate) is type(theirs.estimate)
        assert ours[4:] == theirs[4:]
        assert list(map(type, ours.estimate)) == list(map(type, theirs.estimate))
        close([*ours.estimate, *ours[1:4]], [*theirs.estimate, *theirs[1:4]], 1e-9)


def test_objects_without_slots_are_read_too() -> None:
    table = lengths.LengthTable(PRIOR_SHARES)
    instance, candidate = Instance("i", "vllm", {}), Candidate("i", "m", "m", Price(1.0, 2.0))
    instance.dispatched(300)
    other = SimpleNamespace(**{each.name: getattr(instance, each.name) for each in fields(instance)})
    stats = FleetStats(UNTRAINED).of(candidate, instance)
    instances: list[Any] = [instance, other, instance]
    answers = [answer_length(table, None, 1, table)] * 3
    sources = estimates.Sources([stats] * 3, [candidate] * 3)
    found = estimates.analytic_estimates(sources, [candidate] * 3, instances, 100.0, [0.0] * 3, answers, 1.0)
    assert found[0] == found[1] == found[2]
    assert found[0].estimate.pending_tokens == 300.0
    del instance.pending_prefill_tokens
    sources = estimates.Sources([stats], [candidate])
    with pytest.raises(AttributeError, match="pending_prefill_tokens"):
        estimates.analytic_estimates(sources, [candidate], [instance], 100.0, [0.0], answers[:1], 1.0)
    with pytest.raises(ValueError, match="different lengths"):
        estimates.analytic_estimates(sources, [candidate], [instance], 100.0, [], answers[:1], 1.0)
    for module in (estimates, estimates_in_python):
        with pytest.raises(ValueError, match="different lengths"):
            module.Sources([stats], [])


class _Slots:
    __slots__ = ("_at", "one", "two")


class _OfAnother:
    """Its fields are those of a class that it is not."""

    _at, one, two = _Slots._at, _Slots.one, _Slots.two  # type: ignore[attr-defined]


def test_objects_made_by_column() -> None:
    columns: list[list[Any]] = [[1, "a", None], [2.5, [], ()]]
    for kind in (_Slots, type("_Dict", (), {}), type("_Both", (_Slots,), {})):
        for each_with in (estimates.each_with, estimates_in_python.each_with):
            made: list[Any] = each_with(kind, ("one", "two"), columns, 4, 7)
            assert [type(each) for each in made] == [kind] * 3
            found = [(each._at, each.one, each.two) for each in made]
            assert found == [(4, 1, 2.5), (5, "a", []), (6, None, ())]
    with pytest.raises(TypeError):
        estimates.each_with(_OfAnother, ("one", "two"), columns, 0, 3)
    with pytest.raises(TypeError):
        estimates.each_with(int, ("one",), columns[:1], 0, 3)
    with pytest.raises(ValueError, match="different lengths"):
        estimates.each_with(_Slots, ("one",), columns[:1], 0, 2)


# --- what does not fit ---------------------------------------------------------------------------------
def test_columns_of_different_lengths_are_refused() -> None:
    network = networks.LatencyNetwork(LATENCY)
    table = distributions.LengthTable(PRIOR_SHARES)
    rows = np.zeros((2, latency_networks.TARGETS))
    weights = [(distributions.ModelWeight(),) * 2]

    def one() -> Any:
        return estimates.Estimates([made_estimate((1.0, 1.0), window([]), window([]))])

    served, factors = np.zeros((1, 2, 3, 5)).tobytes(), np.zeros((1, 2, 3)).tobytes()
    calls: list[Callable[[], object]] = [
        lambda: network.step((0.0,), network.start()),
        lambda: network.step((0.0,) * len(LATENCY["event_mean"]), np.zeros(3, np.float32)),
        lambda: network.quantiles([network.start()], rows),
        lambda: network.quantiles([np.zeros(5, np.float32)] * 2, rows),
        lambda: network.quantiles([network.start()] * 2, rows[:, 1:]),
        lambda: networks.memory_rows([0.1], [None, None], rows),
        lambda: networks.MemoryNetwork(MEMORY).predict(np.zeros((1, 3), np.float32)),
        lambda: networks.target_rows([], [(1.0,) * ESTIMATE], 0.0),
        lambda: networks.target_rows([(0.0,) * SUMMARY], [(1.0,)], 0.0),
        lambda: networks.target_rows([(0.0,)], [(1.0,) * ESTIMATE], 0.0),
        lambda: distributions.LengthTable([1.0]),
        lambda: distributions.LearnedLengths().observe(np.ones(3), table, 5, False),
        lambda: distributions.served_tables([distributions.LearnedLengths()], np.ones((1, 3)), [table]),
        lambda: distributions.served_tables([], np.ones((1, BINS)), [table]),
        lambda: distributions.served_quantiles(np.zeros((1, 2, 4), np.float32), one(), [0], weights, [([0.0] * 5,) * 2]),
        lambda: distributions.served_quantiles(np.zeros((1, 2, 5), np.float32), one(), [0], weights, [([0.0],) * 2]),
        lambda: distributions.served_quantiles(np.zeros((1, 2, 5), np.float32), one(), [1], weights, [([0.0] * 5,) * 2]),
        lambda: distributions.served_quantiles(np.zeros((1, 2, 5), np.float32), one(), [0], [], []),
        lambda: distributions.model_outputs(network, None, [], one(), [], 0.0),
        lambda: distributions.model_outputs(network, None, [None], one(), [], 0.0),
        lambda: distributions.ModelWeight().learn((0.0,) * 5, 0.0),
        lambda: distributions.p_miss(Slo(1.0), 0.0, one(), [], [], [], b"", []),
        lambda: distributions.p_miss(
            Slo(1.0), 0.0, one(), [(table, None, 1)], [True], [True], b"", [0]
        ),
        lambda: distributions.p_miss(
            Slo(1.0), 0.0, one(), [(table, None, 1)], [True], [True], served, [-1]
        ),
        lambda: one().times([], 0.0, [0], factors, 0, 1),
        lambda: one().times([None], 0.0, [1], factors, 0, 1),
        lambda: one().times([None], 0.0, [0], factors, 0, 2),
        lambda: one().means([None], 0.0, [1], factors, [True], [True]),
        lambda: one().means([None], 0.0, [0], factors, [True], []),
        lambda: one().costs([None], [], 0, 1),
        lambda: one().costs([None], [None], -1, 1),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises((ValueError, IndexError)):
            call()


def test_the_tanh_of_the_compiled_networks_is_tanh() -> None:
    """A network of one unit shows it: its memory ratio is a sigmoid."""
    weights = {name: np.zeros_like(array) for name, array in MEMORY.items()} | {
        "scale": np.ones_like(MEMORY["scale"])
    }
    network = networks.MemoryNetwork(weights)
    logits = np.linspace(-40.0, 40.0, 4001, dtype=np.float32)
    rows = np.zeros((len(logits), len(MEMORY["mean"])), np.float32)
    rows[:, 0] = logits
    close(network.predict(rows), 1.0 / (1.0 + np.exp(-logits.astype(float))), 4e-7)


@given(
    st.text(max_size=80)
    | st.text("aZ9 _\n\t.?Σİß²٣\x1c", max_size=200)
    | st.integers(20, 30).map("Σ".__mul__)
)
def test_words(text: str) -> None:
    assert native_words.read_words(text) == words_in_python.read_words(text)


@given(
    st.lists(st.integers(0, 65535), max_size=20).map(tuple),
    st.lists(st.integers(0, 65535), max_size=20).map(tuple),
)
def test_words_as_base64(head: tuple[int, ...], tail: tuple[int, ...]) -> None:
    assert native_words.ids_as_base64(head, tail) == words_in_python.ids_as_base64(head, tail)


def test_words_with_each_character() -> None:
    # From U+40000 on Unicode has only long runs of one kind.
    for some in (range(0x40000), range(0x40000, 0x110000, 61)):
        text = "".join(f"a{chr(each)}B" for each in some)
        assert native_words.read_words(text) == words_in_python.read_words(text)


# --- columns of candidates -----------------------------------------------------------------------------
@given(st.none() | st.integers(1, 5000), st.integers(1, 4))
def test_the_length_of_an_answer(cap: int | None, choices: int) -> None:
    shares = np.array(PRIOR_SHARES)
    found = distributions.answer_length(
        distributions.LengthTable(shares), cap, choices, distributions.LengthTable(shares[::-1])
    )
    wanted = answer_length(lengths.LengthTable(shares), cap, choices, lengths.LengthTable(shares[::-1]))
    close(found[3:], wanted[3:])
    assert found[1:3] == wanted[1:3]
    assert [type(each) for each in found[3:]] == [type(each) for each in wanted[3:]]
    one, none = (None, found), (None, wanted)
    close(estimates.Estimates.lengths(list(one)), estimates_in_python.Estimates.lengths(list(none)))


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.sampled_from([None, 100, 4096]), st.sampled_from([None, 0.5])),
        max_size=9,
    )
)
def test_what_candidates_of_a_model_share(kinds: list[tuple[str, int | None, float | None]]) -> None:
    candidates = [
        Candidate("i", model, model, context_tokens=tokens, quality=quality)
        for model, tokens, quality in kinds
    ]
    stats = [FleetStats(UNTRAINED).of(each, Instance("i", "vllm", {})) for each in candidates]
    made: Any = [], []

    def make_in(calls: list[Any]) -> Callable[[Candidate, Any], tuple[Candidate, Any]]:
        return lambda candidate, of: calls.append(of) or (candidate, of)  # type: ignore[func-returns-value]

    found, wanted = (
        module.by_model(candidates, module.Sources(stats, candidates), make_in(calls))
        for module, calls in zip((estimates, estimates_in_python), made, strict=True)
    )
    assert found == wanted
    assert made[0] == made[1]


def test_what_is_known_of_a_roster_is_kept_until_it_changes() -> None:
    candidates = tuple(Candidate(name, "m", "m") for name in "ab")
    instances = tuple(Instance(each.instance, "vllm", {"m": each}) for each in candidates)
    stats = FleetStats(UNTRAINED)
    served = stats.of_all(candidates, instances)
    assert stats.of_all(candidates, instances) is served
    known = served.stats
    assert list(known) == [stats.of(*each) for each in zip(candidates, instances, strict=True)]
    stats.forget(["b"])
    anew = stats.of_all(candidates, instances).stats
    assert (anew[0] is known[0], anew[1] is known[1]) == (True, False)
    assert stats.of_all(list(candidates), instances).stats is not anew


def test_what_is_known_of_candidates() -> None:
    """Not what is known of another profile or speed."""
    of = profile("llama-3.1-8b@a100-80g")
    candidates = [Candidate(name, "m", "m") for name in "abcd"]
    instances = [Instance(each.instance, "vllm", {"m": each}, profiles={"m": of}) for each in candidates]
    stats = FleetStats(UNTRAINED)
    known = list(stats.of_all(candidates, instances).stats)
    instances[1].speed = 2.0
    instances[2].profiles = {}
    del stats.candidates["d", "m"]
    wanted = [known[0], None, None, None], [1, 2, 3]
    for module in (estimates, estimates_in_python):
        assert module.stats_of(stats.candidates, candidates, instances) == wanted
