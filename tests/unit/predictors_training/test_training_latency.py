"""Training of the latency model."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from predictors.kernels.levels import TAUS
from predictors.learned.artifact import to_bytes
from predictors.learned.latency import LATENCY_FEATURES, LatencyModel
from predictors.training.dataset import Dataset, DatasetError
from predictors.training.latency import train
from predictors.training.latency_fit import Rows, Settings, Stream, fit, pinball_loss, predict
from predictors.training.replay import MODEL, episodes
from tests.unit.predictors_training.latency_runs import served

SMALL = Settings(epochs=2, chunk=16, lanes=4, head_epochs=3, batch=32)
MEDIAN = TAUS.index(0.5)


def test_the_same_data_and_seed_give_the_same_bytes():
    data = served(levels=2, requests=35, given_up=True)
    one, other = (train(data, settings=SMALL) for _ in range(2))
    assert to_bytes(one) == to_bytes(other)
    assert to_bytes(train(data, seed=2, settings=SMALL)) != to_bytes(one)
    assert (one.kind, one.features) == ("latency", LATENCY_FEATURES)
    assert one.about["requests"] == {"made": 70}


def test_what_is_served_is_what_was_trained():
    data = served(levels=2)
    found = list(episodes(data))
    network, scales = fit(found, SMALL, 1, lambda _: None)
    artifact = train(data, settings=SMALL)
    widths = artifact.arrays["widths"]
    for plain, judged in zip(found, episodes(data, LatencyModel.load(artifact)), strict=True):
        wanted = predict(network, scales, plain)
        wanted = wanted[:, :, MEDIAN : MEDIAN + 1] + widths * (wanted - wanted[:, :, MEDIAN : MEDIAN + 1])
        assert judged.predicted[MODEL] == pytest.approx(plain.corrected[:, :, None] + wanted, abs=2e-3)


def test_it_learns():
    found = list(episodes(served(levels=6)))
    network, scales = fit(found[1::2], replace(SMALL, epochs=6, head_epochs=40), 1, lambda _: None)
    residual = np.concatenate([each.residual[:, 0] for each in found[::2]])
    predicted = np.concatenate([predict(network, scales, each) for each in found[::2]])
    assert np.mean(np.abs(residual - predicted[:, 0, MEDIAN])) < 0.7 * np.mean(np.abs(residual))
    assert (np.diff(predicted, axis=2) >= 0.0).all()


def test_every_decision_of_a_run_meets_its_own_state():
    """Whatever the chunks, the state that a request meets is that after the events before it."""
    found = list(episodes(served(levels=3, requests=30)))
    for chunk in (7, 1000):
        settings = replace(SMALL, chunk=chunk, epochs=1, head_epochs=0, rate=0.0, noise=0.0, dropout=0.0)
        seen: list[str] = []
        network, scales = fit(found, settings, 1, seen.append)
        streams = [Stream(each, scales, weight=1.0) for each in found]
        with torch.no_grad():
            losses = [
                pinball_loss(network(network.states(each)[each.seen], each.rows.target), each.rows)
                for each in streams
            ]
        # Without learning, the mean loss of the chunks is that of all requests, were all chunks of a size.
        if chunk == 1000:
            assert float(seen[0].rpartition(" ")[2]) == pytest.approx(float(np.mean(losses)), abs=1e-3)


def test_pinball_loss_of_known_unknown_and_censored():
    quantiles = torch.tensor([[[-1.0, 0.0, 1.0, 2.0, 3.0]] * 2])
    nan, inf = float("nan"), float("inf")

    def loss(residual: list[float], longer_than: float) -> float:
        rows = Rows(torch.zeros(1, 1), torch.tensor([residual]), torch.tensor([longer_than]), torch.ones(1))
        return float(pinball_loss(quantiles, rows))

    assert loss([nan, nan], -inf) == 0.0
    assert loss([0.5, nan], -inf) == pytest.approx((0.15 + 0.25 + 0.05 + 0.075 + 0.025) / 5)
    assert loss([nan, 0.5], -inf) == loss([0.5, nan], -inf)
    # Only quantiles below the time that it was waited for are wrong.
    assert loss([nan, nan], 1.5) == pytest.approx((0.1 * 2.5 + 0.5 * 1.5 + 0.9 * 0.5) / 5)
    assert loss([nan, nan], -2.0) == 0.0


def test_every_fourth_level_shows_how_wide_quantiles_must_be():
    artifact = train(served(levels=4, requests=100), settings=SMALL)
    widths = artifact.arrays["widths"]
    assert widths.shape == (2, len(TAUS))
    assert (widths >= 1.0).all()
    assert (widths[:, MEDIAN] == 1.0).all()


def without_first_tokens(data: Dataset) -> Dataset:
    return replace(data, attempts=tuple(replace(each, first_token_s=None) for each in data.attempts))


def always_after(data: Dataset, ttft_s: float) -> Dataset:
    return replace(
        data,
        attempts=tuple(
            replace(each, dispatched_s=float(at), first_token_s=at + ttft_s, ended_s=at + 0.75)
            for at, each in enumerate(data.attempts)
        ),
    )


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (Dataset(), "0 attempts"),
        (served(levels=1, requests=20), "20 attempts: latency needs at least 64"),
        (without_first_tokens(served()), "0 of 240 attempts have a first token"),
        (always_after(served(), 0.5), "every first token came after 0.5 s"),
    ],
)
def test_data_that_tell_nothing_are_refused(data: Dataset, message: str):
    with pytest.raises(DatasetError, match=message):
        train(data, settings=SMALL)
