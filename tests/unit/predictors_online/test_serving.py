from __future__ import annotations

from dataclasses import fields, replace

import pytest

from predictors.online.predictor import OnlinePredictor
from predictors.online.prompt_caches import PromptCaches
from router.core.events import FleetChanged
from router.core.interfaces import SentAttempt
from router.core.scheduler import Scheduler
from router.core.settings import SchedulerSettings
from router.core.state import Instance
from router.core.types import Candidate, LoadReport, Prediction, Slo
from tests.pace import lines
from tests.unit.predictors_online.attempts import (
    PROFILE,
    REQUEST,
    an_instance,
    candidate,
    prediction_of,
    sent,
    value,
)


def taught(
    predictor: OnlinePredictor,
    instance: Instance,
    ttft_factor: float = 1.0,
    tpot_factor: float = 1.0,
    output_tokens: int = 150,
    count: int = 100,
    choices: int = 1,
) -> OnlinePredictor:
    """Ends `count` requests, one a minute up to 100 s, with times that are given multiples of the physical
    estimate's, +-10 %."""
    for number in range(count):
        at_s = 100.0 - 60.0 * (count - number)
        spread = 0.9 + 0.2 * (number * 7 % 10) / 9
        request = replace(REQUEST, id=str(number), arrived_at=at_s, choices=choices)
        of = sent(predictor, request, instance, at_s)
        ttft_s = PROFILE.prefill_s(500) * ttft_factor * spread
        predictor.observe_ttft(of, ttft_s, at_s + ttft_s)
        tpot_s = PROFILE.step_s(0, 1, 600) * tpot_factor * spread
        predictor.observe_end(of, output_tokens, None, REQUEST.prompt_tokens, tpot_s, at_s + 30.0)
    return predictor


def test_every_figure_of_a_fresh_prediction_is_there_and_in_order() -> None:
    prediction = prediction_of(OnlinePredictor())
    assert 0 < value(prediction.output_tokens_p50) <= value(prediction.output_tokens_p90) <= 300
    assert 0 < value(prediction.ttft_s_p50) < value(prediction.ttft_s_p95)
    assert value(prediction.ttft_s_p50) < value(prediction.e2e_s_p50) < value(prediction.e2e_s_p95)
    assert value(prediction.e2e_s_mean) > value(prediction.ttft_s_p50)
    assert prediction.quality == 0.5
    assert prediction.p_miss is None
    assert value(prediction.cost_usd) == pytest.approx(
        (500 * 1.0 + value(prediction.output_tokens_mean) * 4.0) * 1e-6
    )


def test_a_prediction_is_a_complete_value_of_its_base() -> None:
    prediction = prediction_of(OnlinePredictor())
    again = prediction_of(OnlinePredictor())
    assert prediction == again
    assert hash(prediction) == hash(again)
    unknown = {field.name for field in fields(Prediction) if getattr(prediction, field.name) is None}
    assert unknown == {"p_miss", "quality_sd"}


def test_an_instance_is_covered_once_it_was_observed() -> None:
    predictor = OnlinePredictor()
    prediction = prediction_of(predictor)
    assert predictor.coverage() == {}
    attempt = SentAttempt(REQUEST, candidate(), an_instance(), prediction)
    predictor.observe_end(attempt, 10, None, None, None, 101.0)
    assert list(predictor.coverage()) == ["i"]


def test_predicting_learns_nothing() -> None:
    predictor, instance = OnlinePredictor(), an_instance()
    fields = {"slo": Slo(0.1, 0.02, 3.0), "prefix": (1, 2)}
    first = prediction_of(predictor, instance, **fields)
    for _ in range(20):
        assert prediction_of(predictor, instance, **fields) == first


def test_time_already_waited_counts() -> None:
    predictor = taught(OnlinePredictor(), an_instance())
    request = replace(REQUEST, slo=Slo(ttft_s=1.0))
    at_once = predictor.predict(request, candidate(), an_instance(), 100.0)
    later = predictor.predict(request, candidate(), an_instance(), 100.5)
    too_late = predictor.predict(request, candidate(), an_instance(), 101.5)
    for figure in ("ttft_s_p50", "ttft_s_p95", "e2e_s_p50", "e2e_s_p95", "e2e_s_mean"):
        assert getattr(later, figure) - getattr(at_once, figure) == pytest.approx(0.5, rel=1e-4)
    assert later.engine_ttft_s == pytest.approx(at_once.engine_ttft_s)
    assert value(at_once.p_miss) < value(later.p_miss) < 0.1
    assert too_late.p_miss == 1.0


def test_learns_a_wrong_profile_and_an_absent_one() -> None:
    wrong = taught(OnlinePredictor(), an_instance(), ttft_factor=3.0, tpot_factor=0.5)
    prediction = prediction_of(wrong)
    assert prediction.ttft_s_p50 == pytest.approx(3 * PROFILE.prefill_s(500), rel=0.05)
    assert prediction.tpot_s == pytest.approx(PROFILE.step_s(0, 1, 600) / 2, rel=0.05)
    bare = an_instance(profile=None)
    absent = taught(OnlinePredictor(), bare, ttft_factor=20.0, tpot_factor=8.0)
    prediction = prediction_of(absent, bare)
    assert prediction.ttft_s_p50 == pytest.approx(20 * PROFILE.prefill_s(500), rel=0.05)
    assert prediction.tpot_s == pytest.approx(8 * PROFILE.step_s(0, 1, 600), rel=0.05)


@pytest.mark.parametrize(
    ("factor", "tokens", "choices", "learned"),
    [
        (1e-3, 3, 1, False),  # in one piece
        (0.25, 400, 4, False),  # four decode together
        (1e-3, 300, 1, True),  # a quick engine
    ],
)
def test_which_answers_teach_the_speed_of_decoding(
    factor: float, tokens: int, choices: int, learned: bool
) -> None:
    predictor, instance = OnlinePredictor(), an_instance()
    taught(predictor, instance)
    before = value(prediction_of(predictor, instance).tpot_s)
    taught(predictor, instance, tpot_factor=factor, output_tokens=tokens, choices=choices)
    after = value(prediction_of(predictor, instance).tpot_s)
    assert (after < 0.5 * before) is learned
    assert learned or after == pytest.approx(before, rel=0.05)


def test_instances_learn_apart_and_lengths_are_shared() -> None:
    predictor = taught(OnlinePredictor(), an_instance(), ttft_factor=5.0, output_tokens=40)
    prediction = prediction_of(predictor, an_instance("j"))
    assert prediction.ttft_s_p50 == pytest.approx(PROFILE.prefill_s(500), rel=0.1)
    assert prediction.output_tokens_p50 == pytest.approx(40, rel=0.15)


def test_p_miss_of_each_target_crosses_at_its_median() -> None:
    instance = an_instance()
    predictor = taught(OnlinePredictor(), instance)
    middle = prediction_of(predictor, instance)
    for name, median in (("ttft_s", middle.ttft_s_p50), ("tpot_s", middle.tpot_s)):
        targets = [Slo(**{name: value(median) * factor}) for factor in (0.5, 0.95, 1.0, 1.05, 2.0)]
        misses = [value(prediction_of(predictor, instance, slo=slo).p_miss) for slo in targets]
        assert misses == sorted(misses, reverse=True)
        assert misses[0] > 0.98
        assert misses[2] == pytest.approx(0.5, abs=0.1)
        assert misses[-1] < 0.02


def test_targets_are_judged_together() -> None:
    instance = an_instance()
    predictor = taught(OnlinePredictor(), instance)
    middle = prediction_of(predictor, instance)
    ttft_s, tpot_s = value(middle.ttft_s_p50), value(middle.tpot_s)

    def miss(slo: Slo) -> float:
        return value(prediction_of(predictor, instance, slo=slo).p_miss)

    assert miss(Slo(ttft_s, tpot_s)) == pytest.approx(0.75, abs=0.1)
    assert miss(Slo(ttft_s=0.0)) == 1.0
    assert miss(Slo(tpot_s=0.0)) == 1.0
    assert miss(Slo()) == pytest.approx(0.0)
    # An E2E target beyond reach of the cap costs nothing; one below the prefill is lost.
    assert miss(Slo(e2e_s=1000.0)) == pytest.approx(0.0)
    assert miss(Slo(e2e_s=ttft_s / 3)) > 0.99
    assert miss(Slo(ttft_s, tpot_s, 1000.0)) == pytest.approx(miss(Slo(ttft_s, tpot_s)))
    both = miss(Slo(ttft_s=ttft_s, e2e_s=value(middle.e2e_s_p50)))
    assert max(0.5, both) == both
    assert both < 1.0


def test_e2e_target_goes_by_the_length_distribution() -> None:
    """Times are known well here, so P(miss) is the share of answers that are too long."""
    instance = an_instance()
    predictor = OnlinePredictor()
    for number in range(400):
        at_s = 100.0 - 60.0 * (400 - number)
        of = sent(predictor, replace(REQUEST, max_tokens=2000, arrived_at=at_s), instance, at_s)
        ttft_s = PROFILE.prefill_s(500)
        predictor.observe_ttft(of, ttft_s, at_s + ttft_s)
        predictor.observe_end(of, 100 if number % 4 else 1000, None, 500, 0.0125, at_s + 30.0)
    slo = Slo(e2e_s=0.1 + 400 * 0.0125)
    one = prediction_of(predictor, instance, slo=slo, max_tokens=2000)
    assert one.p_miss == pytest.approx(0.25, abs=0.05)
    assert value(prediction_of(predictor, instance, slo=slo, max_tokens=350).p_miss) < 0.03
    two = prediction_of(predictor, instance, slo=slo, max_tokens=2000, choices=2)
    assert two.p_miss == pytest.approx(1 - 0.75**2, abs=0.06)


def test_output_is_cut_by_max_tokens_and_by_the_context() -> None:
    predictor = OnlinePredictor()
    short = prediction_of(predictor, max_tokens=10)
    assert short.output_tokens_p50 == short.output_tokens_p90 == 10
    assert 9 < value(short.output_tokens_mean) <= 10
    small = replace(candidate(), context_tokens=520)
    room = predictor.predict(replace(REQUEST, max_tokens=None), small, an_instance(), 100.0)
    assert room.output_tokens_p90 == 20
    one = prediction_of(predictor, max_tokens=1, slo=Slo(tpot_s=1e-9))
    assert one.p_miss == pytest.approx(0.0)
    assert one.e2e_s_p50 == one.ttft_s_p50


def test_choices_cost_each_and_the_longest_ends_last() -> None:
    predictor = OnlinePredictor()
    one = prediction_of(predictor)
    four = prediction_of(predictor, choices=4)
    assert four.output_tokens_mean == pytest.approx(4 * value(one.output_tokens_mean))
    assert value(four.cost_usd) - 5e-4 == pytest.approx(4 * (value(one.cost_usd) - 5e-4))
    assert value(four.e2e_s_p50) > value(one.e2e_s_p50)


def test_embeddings_end_with_their_first_answer() -> None:
    predictor = OnlinePredictor()
    request = replace(REQUEST, decodes=False, max_tokens=None, slo=Slo(ttft_s=10.0, e2e_s=0.04))
    prediction = predictor.predict(request, candidate(), an_instance(), 100.0)
    assert prediction.e2e_s_p50 == prediction.ttft_s_p50
    assert prediction.tpot_s is None
    assert prediction.output_tokens_mean == 0.0
    assert prediction.cost_usd == pytest.approx(500e-6)
    assert value(prediction.p_miss) > 0.5
    without = predictor.predict(replace(request, slo=Slo()), candidate(), an_instance(), 100.0)
    assert without.p_miss == 0.0
    lost = predictor.predict(request, candidate(), an_instance(), 101.0)
    assert lost.p_miss == 1.0
    # A share of its TTFT that rounds to 0.
    tiny = replace(request, slo=Slo(ttft_s=5e-324), prompt_tokens=100_000)
    assert predictor.predict(tiny, candidate(), an_instance(), 100.0).p_miss == 1.0
    attempt = SentAttempt(request, candidate(), an_instance(), prediction)
    predictor.observe_end(attempt, 0, None, 500, None, 101.0)
    assert predictor.stats.lengths.of("m", "f").output.observed == 0


def test_a_model_not_in_memory_has_to_be_loaded() -> None:
    predictor = OnlinePredictor()
    instance = an_instance(kind="ollama")
    warm = value(prediction_of(predictor, instance).ttft_s_p50)
    instance.report = LoadReport(loaded_models=frozenset({"other:latest"}))
    cold = value(prediction_of(predictor, instance).ttft_s_p50)
    assert cold - warm == pytest.approx(8.0)
    instance.report = LoadReport(loaded_models=frozenset({"up:latest"}))
    assert prediction_of(predictor, instance).ttft_s_p50 == pytest.approx(warm)


def test_a_known_prefix_shortens_the_prefill() -> None:
    predictor, instance = OnlinePredictor(), an_instance()
    request = replace(REQUEST, prompt_tokens=4000, prefix=tuple(range(10)))
    cold = predictor.predict(request, instance.candidates["m"], instance, 100.0)
    assert predictor.cached_tokens(request, "i") == 0.0
    predictor.learner(PromptCaches).prefixes.add("i", request.prefix[:9])
    assert predictor.cached_tokens(request, "i") == pytest.approx(3600)
    warm = sent(predictor, request, instance, 100.0)
    assert value(warm.prediction.ttft_s_p50) < 0.3 * value(cold.ttft_s_p50)
    predictor.observe_ttft(warm, 0.05, 100.05)
    assert predictor.cached_tokens(request, "i") == pytest.approx(4000)
    assert predictor.cached_tokens(REQUEST, "i") == 0.0


def test_prompt_estimates_are_corrected_by_the_engines_counts() -> None:
    predictor, instance = OnlinePredictor(), an_instance()
    before = prediction_of(predictor, instance)
    for _ in range(200):
        attempt = SentAttempt(REQUEST, instance.candidates["m"], instance, before)
        predictor.observe_end(attempt, 10, None, 750, None, 101.0)
    after = prediction_of(predictor, instance)
    assert value(after.cost_usd) == pytest.approx(
        (750 + 4 * value(after.output_tokens_mean)) * 1e-6, rel=0.02
    )


def test_ttft_floor_is_below_what_comes_and_follows_the_engine() -> None:
    predictor, instance = OnlinePredictor(), an_instance()
    idle_s = PROFILE.prefill_s(500)
    fresh = predictor.ttft_floor_s(REQUEST, instance.candidates["m"], instance)
    assert 0.1 * idle_s < fresh < 0.5 * idle_s
    taught(predictor, instance)
    assert (
        0.75 * idle_s < predictor.ttft_floor_s(REQUEST, instance.candidates["m"], instance) <= 0.95 * idle_s
    )
    instance.in_flight = instance.awaiting_first_token = 50
    instance.pending_prefill_tokens = 100_000
    assert predictor.ttft_floor_s(REQUEST, instance.candidates["m"], instance) <= idle_s


def test_a_changed_profile_or_speed_starts_afresh() -> None:
    instance = an_instance()
    predictor = taught(OnlinePredictor(), instance, ttft_factor=3.0)
    instance.speed = 10.0
    prediction = prediction_of(predictor, instance)
    assert prediction.ttft_s_p50 == pytest.approx(PROFILE.prefill_s(500) / 10)


def test_forgets_an_instance_but_not_its_models_lengths() -> None:
    instance = an_instance()
    predictor = taught(OnlinePredictor(), instance, ttft_factor=3.0, output_tokens=40)
    predictor.forget(["i"])
    prediction = prediction_of(predictor, instance)
    assert prediction.ttft_s_p50 == pytest.approx(PROFILE.prefill_s(500))
    assert prediction.output_tokens_p50 == pytest.approx(40, rel=0.15)
    assert predictor.coverage() == {}


def test_half_of_a_large_fleet_leaves_in_little_time() -> None:
    names = [f"i{number}" for number in range(2000)]
    candidates = [Candidate(name, "m", "up") for name in names]
    instances = [Instance(each.instance, "vllm", {"m": each}) for each in candidates]
    predictor = OnlinePredictor()
    scheduler = Scheduler(instances, {}, predictor)
    for each in zip(candidates, instances, strict=True):
        predictor.stats.of(*each)
    with lines() as counted:
        scheduler.handle(FleetChanged(tuple(instances[:1000]), SchedulerSettings()), 1.0)
    assert counted.run < 40 * len(names)
    assert [name for name, _ in predictor.stats.candidates] == names[:1000]


def test_observations_of_another_predictors_predictions_teach_lengths_only() -> None:
    predictor, instance = OnlinePredictor(), an_instance()
    mine = prediction_of(predictor, instance)
    theirs = SentAttempt(REQUEST, instance.candidates["m"], instance, Prediction(ttft_s_p50=1.0))
    predictor.observe_dispatch(theirs, 100.0)
    predictor.observe_ttft(theirs, 9.0, 109.0)
    predictor.observe_end(theirs, 77, None, None, 9.0, 120.0)
    stranger = SentAttempt(
        REQUEST, replace(instance.candidates["m"], instance="never predicted"), instance, mine
    )
    predictor.observe_dispatch(stranger, 120.0)
    predictor.observe_ttft(stranger, 9.0, 129.0)
    again = prediction_of(predictor, instance)
    assert again.ttft_s_p50 == mine.ttft_s_p50
    assert again.tpot_s == pytest.approx(value(mine.tpot_s), rel=0.01)
    assert predictor.stats.lengths.of("m", "f").output.observed == 1


def test_coverage_counts_what_held() -> None:
    instance = an_instance()
    predictor = taught(OnlinePredictor(), instance, count=300)
    coverage = predictor.coverage()["i"]
    assert 0.35 < value(coverage["ttft_within_p50"]) < 0.65
    assert value(coverage["ttft_within_p95"]) > 0.9
    assert value(coverage["ttft_abs_log_error"]) < 0.1
    assert value(coverage["tpot_abs_log_error"]) < 0.1
    assert 0.0 <= value(coverage["output_within_p90"]) <= 1.0
    assert coverage["observed"] == 300


def test_coverage_is_unknown_before_anything_was_seen() -> None:
    predictor, instance = OnlinePredictor(), an_instance()
    predictor.observe_ttft(sent(predictor, REQUEST, instance, 100.0), 0.1, 100.1)
    coverage = predictor.coverage()["i"]
    assert coverage["tpot_abs_log_error"] is None
    assert coverage["output_within_p90"] is None
    assert coverage["observed"] == 1
