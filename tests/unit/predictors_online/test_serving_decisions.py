"""A decision over many candidates says of each what a decision over it alone says, whatever the state."""

from __future__ import annotations

from dataclasses import fields, replace
from random import Random

import pytest

from predictors.learned.models import Models
from predictors.learned.text import prompt_features
from predictors.online.predictor import OnlinePredictor
from predictors.online.prompt_caches import PromptCaches
from router.core.interfaces import Option, SentAttempt
from router.core.profile import EngineProfile
from router.core.state import Instance
from router.core.types import Candidate, LoadReport, Prediction, Price, Request, Slo
from tests.unit.predictors_online.attempts import PROFILE, sent, value
from tests.unit.predictors_online.test_serving_learned import Judge, Words, latency_model

OTHER = EngineProfile("o", 4e-3, 25e-3, 3e-4, 2e-7, 4e-9, 30_000, load_s=3.0, slots=2, max_seqs=4)


def a_fleet(rng: Random, size: int) -> list[Instance]:
    """Instances of two models, busy in any way, some without a profile, some that tell their load."""
    fleet = []
    for number in range(size):
        name = f"i{number}"
        models = rng.choice((("m",), ("n",), ("m", "n")))
        prior = rng.choice((None, 0.3, 0.7))
        instance = Instance(
            name,
            rng.choice(("vllm", "ollama")),
            {each: Candidate(name, each, each, Price(1.0, 4.0), 8192, prior, None, "f") for each in models},
            hardware=rng.choice(("gpu", None)),
            speed=rng.choice((1.0, 10.0)),
            profiles=rng.choice(({}, dict.fromkeys(models, PROFILE), dict.fromkeys(models, OTHER))),
        )
        for _ in range(rng.randrange(8)):
            tokens = rng.randrange(1, 4000)
            instance.dispatched(tokens)
            if rng.random() < 0.5:
                instance.first_token(tokens, 200)
        if rng.random() < 0.5:
            loaded = rng.choice((None, frozenset({"m"})))
            report = LoadReport(
                rng.randrange(12), rng.randrange(3), rng.choice((None, 0.6)), loaded_models=loaded
            )
            instance.takes_report(report, 0.0)
        fleet.append(instance)
    return fleet


def a_request(rng: Random, number: int, now: float) -> Request:
    targets = (None, 1e-4, 0.05, 0.5, 20.0)
    return Request(
        f"r{number}",
        now - rng.choice((0.0, 0.01, 5.0)),
        "slo",
        ("m", "n"),
        prompt_tokens=rng.randrange(1, 9000),
        max_tokens=rng.choice((None, 1, 300)),
        slo=rng.choice((None, Slo(*(rng.choice(targets) for _ in range(3))))),
        session=rng.choice((None, "s")),
        decodes=rng.random() < 0.9,
        choices=rng.choice((1, 1, 3)),
        prefix=rng.choice(((), tuple(range(12)))),
        features=rng.choice((None, prompt_features("one line"), prompt_features("two\nlines"))),
    )


def lived(
    predictor: OnlinePredictor, rng: Random, request: Request, options: list[Option], now: float
) -> float:
    """The request goes to one of them, and is late, lost, or answered; the moment after that."""
    option = rng.choice(options)
    assert option.prediction is not None
    of = SentAttempt(request, option.candidate, option.instance, option.prediction)
    predictor.observe_dispatch(of, now)
    late_s = 0.05 * rng.lognormvariate(0.0, 1.0)
    end = rng.random()
    if end < 0.2:
        predictor.observe_loss(of, late_s, False, 0, None, now + late_s)
    elif end < 0.9:
        predictor.observe_ttft(of, late_s, now + late_s)
        tpot_s = 0.02 * rng.lognormvariate(0.0, 0.3)
        predictor.observe_end(
            of, rng.randrange(1, 600), None, request.prompt_tokens, tpot_s, now + late_s + 1.0
        )
    return now + late_s + 1.0


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    "models",
    [
        Models(),
        Models(length=Words(), relevance=Judge(0.4)),  # type: ignore[arg-type]
        Models(latency=latency_model(0.4, -0.3), length=Words(), relevance=Judge(1.0)),  # type: ignore[arg-type]
    ],
    ids=["physical", "prompts", "all"],
)
def test_all_at_once_is_as_one_by_one(models: Models, seed: int) -> None:
    rng = Random(seed)
    predictor = OnlinePredictor(models)
    fleet = a_fleet(rng, rng.choice((1, 2, 5, 9)))
    now, compared = 10.0, 0
    for number in range(60):
        now += rng.choice((0.0, 0.1, 3.0))
        request = a_request(rng, number, now)
        options = [Option(each, instance) for instance in fleet for each in instance.candidates.values()]
        predictor.predict_all(request, options, now)
        again = replace(request, forecast=None)
        assert [value_of(each, "quality") for each in options] == predictor.qualities(
            again, [each.candidate for each in options]
        )
        for option in options:
            alone = predictor.predict(replace(request, forecast=None), option.candidate, option.instance, now)
            for each in fields(Prediction):
                here, there = value_of(option, each.name), getattr(alone, each.name)
                assert (here is None) == (there is None), each.name
                if here is not None:
                    assert here == pytest.approx(there, rel=1e-9, abs=1e-12), each.name
                    compared += 1
        now = lived(predictor, rng, request, options, now)
    assert compared > 500


def value_of(option: Option, name: str) -> float | None:
    return getattr(option.prediction, name)


# --- sessions ------------------------------------------------------------------------------------------
SESSION = Request("r", 100.0, "latency", ("m",), prompt_tokens=30_000, session="talk")
HERE = Instance("i", "vllm", {"m": Candidate("i", "m", "m")}, profiles={"m": PROFILE})


def served(predictor: OnlinePredictor, request: Request, output_tokens: int, *, ended: bool = True) -> None:
    of = sent(predictor, request, HERE, 100.0)
    predictor.observe_ttft(of, 1.0, 101.0)
    if ended:
        predictor.observe_end(of, output_tokens, None, None, 0.01, 105.0)


def test_a_session_reaches_beyond_the_hashes() -> None:
    predictor = OnlinePredictor()
    first = replace(SESSION, prefix=tuple(range(100)))
    assert predictor.cached_tokens(first, "i") == 0.0
    served(predictor, first, 500)
    longer = replace(first, id="2", prompt_tokens=31_000)
    assert predictor.cached_tokens(longer, "i") == pytest.approx(30_500)
    # Some are always new.
    assert predictor.cached_tokens(replace(longer, prompt_tokens=30_200), "i") == 30_199
    assert predictor.cached_tokens(replace(longer, session="other"), "i") == pytest.approx(16_384)
    assert predictor.cached_tokens(replace(longer, session=None), "i") == pytest.approx(16_384)
    # Another beginning is another conversation, whatever it calls itself.
    changed = replace(longer, prefix=(*range(50), *range(500, 550)))
    assert predictor.cached_tokens(changed, "i") == pytest.approx(16_384 / 2)
    assert predictor.cached_tokens(longer, "elsewhere") == 0.0
    predictor.forget(["i"])
    assert predictor.cached_tokens(longer, "i") == 0.0


def test_a_session_without_hashes_is_known_from_its_first_token_on_and_shortens_the_prefill() -> None:
    predictor = OnlinePredictor()
    next_one = replace(SESSION, id="2", prompt_tokens=32_000, arrived_at=200.0)
    of = HERE.candidates["m"]
    cold = value(predictor.predict(next_one, of, HERE, 200.0).engine_ttft_s)
    floor_s = predictor.ttft_floor_s(next_one, of, HERE)
    served(predictor, SESSION, 900, ended=False)
    assert predictor.cached_tokens(next_one, "i") == pytest.approx(30_000)
    warm = OnlinePredictor()
    warm.learner(PromptCaches).sessions.add("i", "talk", 30_000)
    assert value(warm.predict(next_one, of, HERE, 200.0).engine_ttft_s) < 0.3 * cold
    assert warm.ttft_floor_s(next_one, of, HERE) < 0.3 * floor_s


def test_of_several_choices_one_goes_on() -> None:
    predictor = OnlinePredictor()
    served(predictor, replace(SESSION, choices=4), 400)
    assert predictor.cached_tokens(replace(SESSION, prompt_tokens=40_000), "i") == pytest.approx(30_100)


# --- hedges --------------------------------------------------------------------------------------------
def test_a_request_may_have_two_attempts_at_once() -> None:
    predictor = OnlinePredictor(Models(latency=latency_model()))
    request = Request("r", 100.0, "latency", ("m",), prompt_tokens=500)
    names = ("slow", "quick")
    fleet = {
        name: Instance(name, "vllm", {"m": Candidate(name, "m", "m")}, profiles={"m": PROFILE})
        for name in names
    }
    attempts = {}
    for name, instance in fleet.items():
        attempts[name] = sent(predictor, request, instance, 100.0)
        instance.dispatched(500)
    fleet["quick"].first_token(500, 100)
    predictor.observe_ttft(attempts["quick"], 0.05, 100.05)
    fleet["slow"].released(500, 0, decoding=False)
    predictor.observe_loss(attempts["slow"], 0.05, False, 0, None, 100.05)
    predictor.observe_end(attempts["quick"], 50, None, 500, 0.01, 100.6)
    assert not predictor.stats.attempts
    assert all(not each.pending for each in predictor.stats.candidates.values())
    assert all(not each._waiting for each in predictor.stats.histories.values())
    coverage = predictor.coverage()
    assert coverage["quick"]["observed"] == 1
