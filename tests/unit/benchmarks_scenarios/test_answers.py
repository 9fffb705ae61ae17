"""Made-up answers: rates by model, how they go together, lengths."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest

from benchmarks.scenarios.answers import LENGTH_SIGMA, SHARED_DIFFICULTY, Answers, with_answers
from benchmarks.workloads.format import WorkloadError, WorkloadRequest

COUNT = 20_000
MODELS = {"small": Answers(1.0, 0.3), "large": Answers(1.5, 0.7)}


def requests(count: int = COUNT, **fields: object) -> list[WorkloadRequest]:
    values = {"prompt_tokens": 10, "output_tokens": 200, **fields}
    return [WorkloadRequest(f"r{at}", float(at), **values) for at in range(count)]  # type: ignore[arg-type]


def tokens_of(request: WorkloadRequest) -> Mapping[str, int]:
    assert isinstance(request.output_tokens, dict)
    return request.output_tokens


@pytest.fixture(scope="module")
def answered() -> list[WorkloadRequest]:
    return list(with_answers(requests(), MODELS, seed=5))


@pytest.mark.parametrize("model", MODELS)
def test_each_model_keeps_its_rate(answered: list[WorkloadRequest], model: str) -> None:
    wanted = MODELS[model].quality
    rate = sum((each.quality or {})[model] for each in answered) / COUNT
    assert abs(rate - wanted) < 4 * math.sqrt(wanted * (1 - wanted) / COUNT)


def test_right_answers_go_together_as_the_copula_says(answered: list[WorkloadRequest]) -> None:
    both = sum((each.quality or {})["small"] * (each.quality or {})["large"] for each in answered) / COUNT
    # Integrate P(both | difficulty) over a standard normal difficulty.
    rest = math.sqrt(1 - SHARED_DIFFICULTY**2)
    step = 0.01
    expected = 0.0
    for at in range(-600, 601):
        difficulty = at * step
        density = math.exp(-(difficulty**2) / 2) / math.sqrt(2 * math.pi)
        joint = 1.0
        for quantile in (-0.524400512708041, 0.524400512708041):  # of 0.3 and of 0.7
            joint *= (1 + math.erf((quantile - SHARED_DIFFICULTY * difficulty) / rest / math.sqrt(2))) / 2
        expected += joint * density * step
    assert expected > 0.3 * 0.7 + 0.03  # far from independence
    assert abs(both - expected) < 4 * math.sqrt(expected * (1 - expected) / COUNT)


def test_lengths_are_the_requests_own_times_the_factor(answered: list[WorkloadRequest]) -> None:
    for model, answers in MODELS.items():
        logs = [math.log(tokens_of(each)[model] / 200) for each in answered]
        mean = sum(logs) / COUNT
        sigma = math.sqrt(sum((each - mean) ** 2 for each in logs) / COUNT)
        assert mean == pytest.approx(math.log(answers.length), abs=0.01)
        assert sigma == pytest.approx(LENGTH_SIGMA, rel=0.03)


def test_lengths_stay_within_max_tokens_and_above_0() -> None:
    for each in with_answers(requests(500, output_tokens=1, max_tokens=2), MODELS, seed=1):
        assert all(1 <= tokens <= 2 for tokens in tokens_of(each).values())


def test_an_answer_depends_on_seed_id_and_model_alone() -> None:
    every = list(with_answers(requests(50), MODELS, seed=1))
    alone = list(with_answers(requests(50)[7:8], {"large": MODELS["large"]}, seed=1))
    assert (alone[0].quality or {})["large"] == (every[7].quality or {})["large"]
    assert tokens_of(alone[0])["large"] == tokens_of(every[7])["large"]
    assert every != list(with_answers(requests(50), MODELS, seed=2))


def test_a_request_without_a_length_of_its_own_is_told() -> None:
    with pytest.raises(WorkloadError, match="request r0: made-up answers need"):
        list(with_answers(requests(1, output_tokens=None), MODELS, seed=1))
