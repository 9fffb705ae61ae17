"""The predictor with trained models: what they say is used, corrected by what comes, and not believed when it
does not hold. The latency model here says what the test wants: all weights are nothing but the last bias."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import exp, log
from typing import Any

import numpy as np
import pytest

from predictors.kernels.length_bins import BINS, bin_of
from predictors.kernels.reference.quantiles import FIRST_WEIGHT
from predictors.learned.latency import LatencyModel
from predictors.learned.models import Models
from predictors.learned.text import prompt_features
from predictors.online.predictor import OnlinePredictor
from router.core.interfaces import Option, SentAttempt
from router.core.state import Instance
from router.core.types import LoadReport, PromptFeatures, Slo
from tests.artifacts import latency_artifact
from tests.unit.predictors_online.attempts import (
    PROFILE,
    REQUEST,
    an_instance,
    candidate,
    prediction_of,
    sent,
    value,
)


def latency_model(ttft: float = 0.0, tpot: float = 0.0) -> LatencyModel:
    """Says medians of these log residuals, with about 0.1 to either side."""
    return LatencyModel(dict(latency_artifact(ttft, tpot).arrays))


class Words:
    """A length model that says 20 tokens for a prompt of one line, 200 for more."""

    def shares(self, features: PromptFeatures, models: Any) -> np.ndarray:
        shares = np.full((len(models), BINS), 1e-6)
        shares[:, bin_of(20 if features.counts[1] == 1 else 200)] = 1.0
        return shares / shares.sum(axis=1, keepdims=True)


class Judge:
    """A relevance model that knows only "m", and is as sure that it knows such prompts as it is made."""

    def __init__(self, trust: float = 1.0) -> None:
        self.trust = trust

    def knows(self, model: str) -> bool:
        return model == "m"

    def quality(self, features: PromptFeatures, models: Any) -> tuple[np.ndarray, np.ndarray, int, float]:
        return np.full(len(models), 0.8), np.full(len(models), 0.1), 3, self.trust


def predictor_with(**models: Any) -> OnlinePredictor:
    return OnlinePredictor(Models(**models))


def serve(
    predictor: OnlinePredictor, instance: Instance, at_s: float, ttft_factor: float, number: int = 0
) -> None:
    """One request through the instance, its TTFT a multiple of the idle prefill."""
    request = replace(REQUEST, id=f"{instance.name}-{number}-{at_s}", arrived_at=at_s)
    of = sent(predictor, request, instance, at_s)
    instance.dispatched(500)
    ttft_s = PROFILE.prefill_s(500) * ttft_factor * (0.9 + 0.2 * (number * 7 % 10) / 9)
    instance.first_token(500, 100)
    predictor.observe_ttft(of, ttft_s, at_s + ttft_s)
    instance.released(500, 100, decoding=True)
    predictor.observe_end(of, 100, None, 500, 0.012, at_s + 2.0)


def known(predictor: OnlinePredictor, instance: Instance) -> Instance:
    """The instance, after enough requests for the latency model to serve."""
    for number in range(10):
        serve(predictor, instance, 5.0 * number, 1.0, number)
    return instance


def test_what_the_latency_model_says_is_served() -> None:
    plain, predicted = (
        prediction_of(each) for each in (OnlinePredictor(), predictor_with(latency=latency_model(0.5, -0.2)))
    )
    ttft_s, tpot_s = value(plain.ttft_s_p50), value(plain.tpot_s)
    assert value(predicted.ttft_s_p50) == pytest.approx(ttft_s * exp(FIRST_WEIGHT * 0.5), rel=1e-3)
    assert value(predicted.tpot_s) == pytest.approx(tpot_s * exp(FIRST_WEIGHT * -0.2), rel=1e-3)
    assert value(predicted.ttft_s_p50) < value(predicted.ttft_s_p95) < 2 * value(predicted.ttft_s_p50)


def test_the_physical_estimate_decides_until_something_was_observed() -> None:
    """A wide distribution would refuse a hard SLO that an idle engine meets."""
    request = replace(REQUEST, slo=Slo(0.5, 0.02, 5.0))
    plain, predicted = (
        each.predict(request, candidate(), an_instance(), 100.0)
        for each in (OnlinePredictor(), predictor_with(latency=latency_model(3.0, 3.0)))
    )
    assert (predicted.p_miss, predicted.e2e_s_mean) == (plain.p_miss, plain.e2e_s_mean)


@pytest.mark.parametrize("profiled", [True, False])
def test_tpot_decides_without_a_profile_alone(profiled: bool) -> None:
    """A profile says what this request alone adds to each step."""
    request, predicted = replace(REQUEST, slo=Slo(tpot_s=0.014)), []
    for each in (OnlinePredictor(), predictor_with(latency=latency_model(0.0, 0.3))):
        instance = an_instance(profile=PROFILE if profiled else None)
        predicted.append(each.predict(request, candidate(), known(each, instance), 100.0))
    plain, learned = predicted
    assert value(learned.tpot_s) > 1.1 * value(plain.tpot_s)
    assert (value(learned.p_miss) == value(plain.p_miss)) == profiled
    assert (value(learned.e2e_s_mean) < 1.02 * value(plain.e2e_s_mean)) == profiled


def test_a_constant_error_of_the_model_is_learned() -> None:
    predictor = predictor_with(latency=latency_model(0.7))
    instance = an_instance()
    for number in range(200):
        serve(predictor, instance, 10.0 * number, 1.0, number)
    predicted = prediction_of(predictor, instance, 3000.0)
    assert value(predicted.ttft_s_p50) == pytest.approx(PROFILE.prefill_s(500), rel=0.1)


def test_instances_of_one_kind_share_their_spread_but_not_their_bias() -> None:
    predictor = predictor_with(latency=latency_model())
    slow, fast = an_instance("slow"), an_instance("fast")
    for number in range(100):
        serve(predictor, slow, 10.0 * number, 2.0, number)
        serve(predictor, fast, 10.0 * number, 1.0, number)
    (group,) = predictor.groups()
    assert group == ("m", "gpu")
    assert predictor.groups()[group].learned.ttfts == 200
    at = 2000.0
    predicted = [
        value(predictor.predict(replace(REQUEST, arrived_at=at), i.candidates["m"], i, at).ttft_s_p50)
        for i in (slow, fast)
    ]
    assert predicted[0] / predicted[1] == pytest.approx(2.0, rel=0.15)


def test_a_model_that_does_not_hold_gives_way_to_the_physical_estimate() -> None:
    """Its median jumps to and fro by a factor of seven, which no correction can follow."""
    predictor = predictor_with(latency=latency_model())
    instance = an_instance()
    wild = [latency_model(2.0), latency_model(-2.0)]
    for number in range(200):
        predictor.stats.models = Models(latency=wild[number % 2])
        serve(predictor, instance, 10.0 * number, 1.0, number)
    assert predictor.latency_weights()["m", "gpu"]["ttft"] < 0.1
    predicted = prediction_of(predictor, instance, 3000.0)
    assert value(predicted.ttft_s_p50) == pytest.approx(PROFILE.prefill_s(500), rel=0.15)


def test_attempts_that_are_overdue_count_before_they_end() -> None:
    """The quick ones must not be all that is seen: half of the requests hang, and are known to be late."""
    for models in (Models(), Models(latency=latency_model())):
        predictor = OnlinePredictor(models)
        instance = an_instance()
        for number in range(100):
            at_s = 10.0 * number
            of = sent(predictor, replace(REQUEST, id=str(number), arrived_at=at_s), instance, at_s)
            if number % 2:
                ttft_s = PROFILE.prefill_s(500)
                predictor.observe_ttft(of, ttft_s, at_s + ttft_s)
        predictor.observe_report(instance, 9000.0)
        covered = predictor.coverage()["i"]
        assert value(covered["observed"]) == 100
        assert value(covered["ttft_within_p50"]) < 0.65
        late = prediction_of(predictor, instance, 9000.0)
        assert value(late.ttft_s_p95) > 3 * PROFILE.prefill_s(500)


def test_an_answer_in_one_piece_is_never_overdue() -> None:
    """Its first token is not seen, so nothing tells whether that was late."""
    for lost in (False, True):
        predictor = predictor_with(latency=latency_model())
        instance = an_instance()
        expected = value(prediction_of(predictor, instance).ttft_s_p50)
        for number in range(20):
            at_s = 100.0 + 10.0 * number
            request = replace(REQUEST, id=str(number), arrived_at=at_s, engine_streams=False)
            attempt = sent(predictor, request, instance, at_s)
            predictor.observe_report(instance, at_s + 8.0)
            if lost:
                predictor.observe_loss(attempt, 8.0, False, 0, None, at_s + 8.0)
            else:
                predictor.observe_end(attempt, 30, None, 500, None, at_s + 8.0)
        assert predictor.coverage().get("i", {}).get("observed", 0) == 0
        after = prediction_of(predictor, instance, 1000.0)
        assert value(after.ttft_s_p50) == pytest.approx(expected, rel=0.01)


def test_what_was_taken_for_overdue_is_corrected_when_it_comes() -> None:
    predictor = predictor_with(latency=latency_model())
    instance = an_instance()
    for number in range(40):
        serve(predictor, instance, 10.0 * number, 1.0, number)
    late = sent(predictor, replace(REQUEST, id="late", arrived_at=1000.0), instance, 1000.0)
    predictor.observe_report(instance, 1001.0)
    assert predictor.coverage()["i"]["observed"] == 41
    predictor.observe_ttft(late, 1.5, 1001.5)
    assert predictor.coverage()["i"]["observed"] == 41
    after = prediction_of(predictor, instance, 2000.0)
    assert value(after.ttft_s_p50) == pytest.approx(PROFILE.prefill_s(500), rel=0.3)


def test_a_request_given_up_at_once_teaches_nothing_and_one_given_up_late_does() -> None:
    for waited_s, learned in ((0.001, 0), (30.0, 1)):
        predictor = predictor_with(latency=latency_model())
        instance = an_instance()
        predictor.observe_loss(
            sent(predictor, REQUEST, instance, 100.0), waited_s, False, 0, None, 100.0 + waited_s
        )
        predicted = predictor.coverage().get("i")
        assert (0 if predicted is None else predicted["observed"]) == learned


def test_reports_and_losses_reach_the_track() -> None:
    predictor = predictor_with(latency=latency_model())
    instance = an_instance()
    instance.takes_report(LoadReport(running=3, waiting=1, kv_usage=0.4), 5.0)
    predictor.observe_report(instance, 5.0)
    first = prediction_of(predictor, instance)
    assert first.memory_ratio is not None
    predictor.forget(["i"])
    assert predictor.groups() == {}  # nobody else is of this kind


def test_an_instance_on_other_hardware_is_of_its_new_kind_alone() -> None:
    predictor = predictor_with(latency=latency_model())
    for hardware in ("gpu", "other"):
        instance = replace(an_instance(), hardware=hardware, profiles={"m": replace(PROFILE)})
        prediction_of(predictor, instance)
    assert predictor.groups().keys() == predictor.latency_weights().keys() == {("m", "other")}


def test_a_prompt_gives_the_length_and_fleet_answers_correct_it() -> None:
    predictor = predictor_with(length=Words())
    instance, of = an_instance(), candidate()
    short = replace(REQUEST, features=prompt_features("a line"))
    long = replace(REQUEST, features=prompt_features("two\nlines"))
    assert value(predictor.predict(short, of, instance, 100.0).output_tokens_p50) == pytest.approx(20, abs=5)
    assert value(predictor.predict(long, of, instance, 100.0).output_tokens_p50) == pytest.approx(
        200, rel=0.2
    )
    unknown = prediction_of(predictor, instance)
    assert value(unknown.output_tokens_p50) > 100  # the prior
    for number in range(100):
        request = replace(short, id=str(number), forecast=None)
        prediction = predictor.predict(request, of, instance, 100.0)
        attempt = SentAttempt(request, of, instance, prediction)
        predictor.observe_end(attempt, 60, None, 500, None, 101.0)
    again = replace(short, forecast=None)
    assert value(predictor.predict(again, of, instance, 100.0).output_tokens_p50) == pytest.approx(
        60, rel=0.2
    )
    assert 0 < predictor.length_weights()["m"] <= 1


def test_the_prompt_is_looked_at_once_a_request() -> None:
    models_of = []

    class Counting(Words):
        def shares(self, features: PromptFeatures, models: Any) -> np.ndarray:
            models_of.append([model for model, _ in models])
            return super().shares(features, models)

    predictor = predictor_with(length=Counting())
    request = replace(REQUEST, features=prompt_features("x"))
    instance = an_instance()
    other = candidate(model="n")
    for _ in range(3):
        predictor.predict(request, candidate(), instance, 100.0)
    predictor.predict_all(request, [Option(candidate(), instance), Option(other, instance)], 100.0)
    assert models_of == [["m"], ["n"]]


def test_quality_is_the_models_with_its_uncertainty_and_moves_with_feedback() -> None:
    predictor = predictor_with(relevance=Judge())
    instance = an_instance()
    features = prompt_features("How much is 2 + 2?")
    request = replace(REQUEST, features=features)
    predicted = predictor.predict(request, candidate(), instance, 100.0)
    assert (predicted.quality, predicted.quality_sd) == (pytest.approx(0.8), pytest.approx(0.1))
    unknown = predictor.predict(request, candidate(model="n"), instance, 100.0)
    assert (unknown.quality, unknown.quality_sd) == (0.5, None)
    for _ in range(50):
        predictor.observe_quality("m", features, 0.2)
        predictor.observe_quality("n", features, 0.2)
    again = predictor.predict(replace(request, forecast=None), candidate(), instance, 100.0)
    assert value(again.quality) == pytest.approx(0.2, abs=0.1)
    predicted = predictor.predict(replace(request, forecast=None), candidate(model="n"), instance, 100.0)
    # The fleet file's quality is corrected too.
    assert value(predicted.quality) == pytest.approx(0.3, abs=0.1)
    assert predicted.quality_sd is None
    assert predictor.feedback_counts() == {"m": 50, "n": 50}


def test_the_fleet_files_quality_gives_way_as_far_as_the_prompt_is_like_those_learned_from() -> None:
    request = replace(REQUEST, features=prompt_features("x"))
    served = []
    for trust in (0.0, 0.25, 0.5, 1.0):
        predictor = predictor_with(relevance=Judge(trust))
        predicted = predictor.predict(replace(request, forecast=None), candidate(), an_instance(), 100.0)
        served.append((value(predicted.quality), predicted.quality_sd))
        bare = replace(candidate(), quality=None)
        alone = predictor.predict(replace(request, forecast=None), bare, an_instance(), 100.0)
        assert (alone.quality, alone.quality_sd) == (0.8, 0.1)
    qualities = [quality for quality, _ in served]
    assert qualities[0] == 0.5
    assert qualities[2] == pytest.approx(1 / (1 + exp(-0.5 * log(0.8 / 0.2))))
    assert qualities[-1] == pytest.approx(0.8)
    assert qualities == sorted(qualities)
    assert served[0][1] is None
    assert 0.0 < value(served[1][1]) < value(served[2][1]) < value(served[3][1]) + 0.02
    assert served[3][1] == pytest.approx(0.1)


def test_instances_of_one_model_may_state_qualities_of_their_own() -> None:
    predictor = predictor_with(relevance=Judge(0.5))
    request = replace(REQUEST, features=prompt_features("x"))
    full, quantised = candidate(), replace(candidate("j"), quality=0.3)
    options = [Option(full, an_instance("i")), Option(quantised, an_instance("j"))]
    predictor.predict_all(request, options, 100.0)
    predicted = [value(each.prediction.quality) for each in options if each.prediction is not None]
    assert predicted[1] < predicted[0] - 0.05
    assert list(predictor.qualities(replace(request, forecast=None), [full, quantised])) == predicted


def test_feedback_from_the_records_is_learned_once_the_fleet_is_known() -> None:
    """At a start it comes before any candidate, whose quality it corrects."""
    predictor, features = predictor_with(relevance=Judge(0.5)), prompt_features("x")
    late = predictor_with(relevance=Judge(0.5))
    request = replace(REQUEST, features=features)
    late.predict(replace(request), candidate(), an_instance(), 100.0)
    for _ in range(30):
        predictor.observe_quality("m", features, 0.1)
        late.observe_quality("m", features, 0.1)
        predictor.observe_quality("nobody", features, 0.1)
    assert predictor.feedback_counts() == {"m": 30, "nobody": 30}
    predicted = [
        each.predict(replace(request, forecast=None), candidate(), an_instance(), 100.0).quality
        for each in (predictor, late)
    ]
    assert predicted[0] == predicted[1]
    assert value(predicted[0]) < 0.5


def test_feedback_corrects_a_prior_where_nothing_was_trained() -> None:
    predictor, features = OnlinePredictor(), prompt_features("x")
    prediction_of(predictor)
    for _ in range(50):
        predictor.observe_quality("m", features, 1.0)
    assert value(prediction_of(predictor).quality) > 0.7
    bare = replace(candidate(), quality=None)
    assert predictor.predict(REQUEST, bare, an_instance(), 100.0).quality is None


def test_embeddings_ask_no_model() -> None:
    predictor = predictor_with(latency=latency_model(1.0), length=Words(), relevance=Judge())
    request = replace(REQUEST, decodes=False, features=prompt_features("x"))
    predicted = predictor.predict(request, candidate(), an_instance(), 100.0)
    plain = OnlinePredictor().predict(request, candidate(), an_instance(), 100.0)
    assert predicted.ttft_s_p50 == plain.ttft_s_p50
    assert predicted.quality == 0.5


def test_of_many_candidates_the_model_predicts_those_that_physics_ranks_first() -> None:
    predictor = predictor_with(latency=latency_model())
    instances = [an_instance(f"i{number:03}") for number in range(100)]
    plain = OnlinePredictor()
    for number, instance in enumerate(instances):
        known(predictor, instance)
        known(plain, instance)
        instance.dispatched(200 * number)
    options = [Option(each.candidates["m"], each) for each in instances]
    predictor.stats.models = Models(latency=latency_model(1.0))
    predictor.predict_all(REQUEST, options, 100.0)
    for at, each in enumerate(options):
        assert each.prediction is not None
        physical = plain.predict(REQUEST, each.candidate, each.instance, 100.0)
        ratio = value(each.prediction.ttft_s_p50) / value(physical.ttft_s_p50)
        assert ratio == pytest.approx(exp(1.0) if at < 64 else 1.0, rel=0.05)


@pytest.mark.parametrize("targets_s", list(product((None, 1e-6, 1e6), repeat=3)), ids=str)
def test_any_target_has_a_probability(targets_s: tuple[float | None, ...]) -> None:
    request = replace(REQUEST, slo=Slo(*targets_s))
    for models in (Models(), Models(latency=latency_model())):
        predicted = OnlinePredictor(models).predict(request, candidate(), an_instance(), 100.0)
        assert 0.0 <= value(predicted.p_miss) <= 1.0


def test_answers_without_a_first_token_teach_no_times_and_leave_nothing() -> None:
    """Embeddings, and what an engine can only answer whole."""
    for models in (Models(), Models(latency=latency_model())):
        predictor = OnlinePredictor(models)
        instance = an_instance()
        of = instance.candidates["m"]
        before = prediction_of(predictor, instance)
        for number in range(60):
            at_s = 30.0 * number
            request = replace(REQUEST, id=str(number), arrived_at=at_s, decodes=number % 2 == 0)
            attempt = sent(predictor, request, instance, at_s)
            instance.dispatched(500)
            instance.released(500, 0, decoding=False)
            predictor.observe_end(attempt, 0, None, 500, None, at_s + 0.06)
        later = replace(REQUEST, arrived_at=5000.0)
        after = predictor.predict(later, of, instance, 5000.0)
        assert value(after.ttft_s_p95) == pytest.approx(value(before.ttft_s_p95), rel=0.05)
        assert not predictor.stats.attempts
        assert not predictor.stats.candidates["i", "m"].pending
        if models.latency is not None:
            assert predictor.stats.histories["i"]._waiting == []


def test_what_was_given_up_is_late_by_as_long_as_it_was_waited_for() -> None:
    predictor = predictor_with(latency=latency_model())
    instance = an_instance()
    for name, at_s in (("slow", 100.0), ("lost", 100.01)):
        attempt = sent(predictor, replace(REQUEST, id=name, arrived_at=at_s), instance, at_s)
        if name == "lost":
            predictor.observe_loss(attempt, 0.1, False, 0, None, at_s + 0.1)
    predictor.observe_report(instance, 4000.0)
    window = predictor.stats.candidates["i", "m"].ttft.pooled
    assert window.count == 2
    assert window.bias < log(4000.0 / PROFILE.prefill_s(500)) / 1.5


@pytest.mark.parametrize("trained", [False, True])
def test_an_answer_that_ended_in_the_middle_teaches_the_speed_and_the_least_length(trained: bool) -> None:
    predictor = predictor_with(latency=latency_model()) if trained else predictor_with()
    instance = an_instance()
    before = prediction_of(predictor, instance)
    step_s = value(before.tpot_s)
    for number in range(200):
        at_s = 100.0 + 10.0 * number
        attempt = sent(predictor, replace(REQUEST, id=str(number), arrived_at=at_s), instance, at_s)
        predictor.observe_ttft(attempt, 0.1, at_s + 0.1)
        predictor.observe_loss(attempt, 8.0, True, 250, 5.0 * step_s, at_s + 8.0)
    after = prediction_of(predictor, instance, 1e4)
    assert value(after.tpot_s) == pytest.approx(5.0 * step_s, rel=0.2)
    assert value(after.output_tokens_p50) > 250
    assert predictor.stats.candidates["i", "m"].coverage.tpots == 200


def test_what_shows_no_speed_or_length_when_it_ends_in_the_middle() -> None:
    predictor = predictor_with()
    instance = an_instance()
    stats = predictor.stats
    for number, (fields, decoding, tokens, tpot_s) in enumerate(
        (({"choices": 3}, True, 90, 0.5), ({}, True, 90, 1e-9), ({}, True, 0, None), ({}, False, 0, None))
    ):
        at_s = 100.0 + 10.0 * number
        attempt = sent(predictor, replace(REQUEST, id=str(number), arrived_at=at_s, **fields), instance, at_s)
        predictor.observe_loss(attempt, 8.0, decoding, tokens, tpot_s, at_s + 8.0)
        assert stats.candidates["i", "m"].tpot.pooled.count == 0
        assert stats.lengths.of("m").output.observed == (number >= 1)
