"""What a fit finds in data whose constants are known, and on which rows its errors are told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.calibrate.errors import level_errors, pairs, residuals
from benchmarks.calibrate.fit import combinations, fit, guess
from benchmarks.calibrate.measured import Level, Measured, Split, Study
from benchmarks.calibrate.report import result_of, text
from benchmarks.workloads.format import WorkloadError
from tests.unit.benchmarks_calibrate.made import LIMITS, TRUTH, level


def study(split: Split, *levels: Level) -> Study:
    return Study("made", {each.name: each for each in levels}, split, LIMITS)


def test_the_truth_has_no_error() -> None:
    one = study(Split(("5",), ()), level(5))
    errors, raw = level_errors(one, one.levels["5"], TRUTH)
    assert max(map(abs, residuals(one, one.part(("5",)), TRUTH))) == pytest.approx(0, abs=1e-12)
    assert {metric: error.median for metric, error in errors.errors.items()} == pytest.approx(
        {"ttft": 0, "e2e": 0, "tpot": 0}, abs=1e-9
    )
    assert len(raw["tpot"]) == 80
    assert errors.queue_peak[0] == errors.queue_peak[1] > 0


def test_a_fit_finds_known_constants_and_an_overload_that_it_has_not_seen() -> None:
    """The level held out has more load than any that was fitted: its queue grows, and is foretold."""
    one = study(Split(("1", "4", "8"), ("16",)), *(level(rate, noise=0.05) for rate in (1, 4, 8, 16)))
    fitted = fit(one, guess(one), LIMITS, evaluations=250)
    result = result_of(one, fitted)
    assert fitted.loss < fitted.first_loss / 2
    seen = {metric: error.median < 0.08 for metric, error in result.held_out.items()}
    assert seen == {"ttft": True, "e2e": True, "tpot": True}
    found, true = fitted.constants.profile, TRUTH.profile
    for batch in ((0, 1, 500.0), (0, 16, 6000.0), (500, 8, 3000.0)):
        assert found.step_s(*batch) == pytest.approx(true.step_s(*batch), rel=0.12)
    held = result.levels[-1]
    assert held.queue_peak[0] > 20
    assert held.queue_peak[1] == pytest.approx(held.queue_peak[0], rel=0.15)
    assert result.missed == []
    assert "all met" in text([result])


def test_of_several_limits_the_fit_takes_the_true_one() -> None:
    one = study(Split(("12",), ()), level(12))
    fitted = fit(one, TRUTH, {**LIMITS, "max_seqs": (4, 16, 64)}, evaluations=1)
    assert fitted.constants.profile.max_seqs == 16


def test_the_fit_tells_whether_prompts_are_cut() -> None:
    whole = replace(TRUTH, profile=replace(TRUTH.profile, chunked_prefill=False, max_batched_tokens=2048))
    one = study(Split(("8",), ()), level(8, truth=whole))
    choice = {**LIMITS, "chunked_prefill": (True, False)}
    fitted = fit(one, TRUTH, choice, evaluations=1)
    assert fitted.constants.profile.chunked_prefill is False
    assert [each["chunked_prefill"] for each, _ in fitted.losses] == [False, True]
    assert fitted.losses[0][1] == fitted.loss < fitted.losses[1][1] / 10
    told = text([result_of(one, fitted)])
    assert "chunked_prefill off" in told
    assert "with chunked_prefill on, max_batched_tokens 512" in told
    back = fit(study(Split(("8",), ()), level(8)), TRUTH, choice, evaluations=1)
    assert back.constants.profile.chunked_prefill is True


def test_an_engine_that_does_not_cut_prompts_takes_the_longest_request_whole() -> None:
    levels = level(4), Level("long", (Measured(0.0, 3000, 90, 1.0, 2.0),))
    one = study(Split(("4",), ("long",)), *levels)
    limits = {"max_batched_tokens": (512, 1024, 4096), "chunked_prefill": (False, True)}
    found = [
        (each["chunked_prefill"], each["max_batched_tokens"]) for each in combinations(one, TRUTH, limits)
    ]
    assert found == [(False, 3090), (False, 4096), (True, 512), (True, 1024), (True, 4096)]


def test_levels_that_are_held_out_change_nothing_in_the_fit() -> None:
    """Their times may be anything; only their errors tell of it."""
    fitted_level, held = level(2), level(6)
    spoilt = replace(held, requests=tuple(replace(each, ttft_s=1.0, e2e_s=1000.0) for each in held.requests))
    split = Split(("2",), ("6",))
    results = []
    for other in (held, spoilt):
        one = study(split, fitted_level, other)
        results.append(result_of(one, fit(one, guess(one), LIMITS, evaluations=40)))
    assert results[0].fitted.constants == results[1].fitted.constants
    assert results[0].levels[0] == results[1].levels[0]
    assert results[0].held_out["e2e"].count == len(held.requests)
    assert results[0].held_out["e2e"].median < 0.5 < results[1].held_out["e2e"].median


def test_requests_that_were_not_measured_load_the_engine_and_are_not_compared() -> None:
    whole = level(8)
    half = replace(
        whole,
        requests=tuple(
            replace(each, ttft_s=None, e2e_s=None) if index % 2 else each
            for index, each in enumerate(whole.requests)
        ),
    )
    one = study(Split(("8",), ()), half)
    errors, raw = level_errors(one, half, TRUTH)
    assert errors.requests == len(raw["e2e"]) == 40
    assert errors.errors["e2e"].median == pytest.approx(0, abs=1e-9)


def test_distributions_are_compared_where_requests_cannot_be() -> None:
    """Who was served by whom does not matter: the same times in another order are no error."""
    one = replace(study(Split(("4",), ()), level(4)), paired=False)
    found = pairs(one, one.levels["4"], TRUTH)
    times = [(each.simulated.ttft_s, each.simulated.e2e_s) for each in found]
    turned = tuple(
        replace(each, ttft_s=ttft_s, e2e_s=e2e_s)
        for each, (ttft_s, e2e_s) in zip(one.levels["4"].requests, times[7:] + times[:7], strict=True)
    )
    errors, raw = level_errors(one, Level("4", turned), TRUTH)
    assert len(raw["e2e"]) == 5
    assert errors.errors["ttft"].median == pytest.approx(0, abs=1e-9)
    assert errors.errors["e2e"].median == pytest.approx(0, abs=1e-9)


def test_limits_that_no_engine_can_have_are_refused() -> None:
    one = study(Split(("4",), ()), level(4))
    with pytest.raises(WorkloadError, match="max_batched_tokens must be at least max_seqs"):
        fit(one, TRUTH, {"max_batched_tokens": (8,), "max_seqs": (16,)}, evaluations=1)
    with pytest.raises(WorkloadError, match="limit is 96"):
        fit(one, TRUTH, {"kv_capacity_tokens": (96,)}, evaluations=1)


def test_a_guess_needs_requests_that_tell_a_speed() -> None:
    silent = replace(level(4), requests=tuple(replace(each, output_tokens=1) for each in level(4).requests))
    with pytest.raises(WorkloadError, match="5 output tokens or more"):
        guess(study(Split(("4",), ()), silent))
