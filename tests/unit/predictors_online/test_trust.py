"""Whether the latency model is believed."""

from __future__ import annotations

from predictors.online.calibration import Trust


def test_an_alarm_when_the_models_quantiles_do_not_hold_and_its_end() -> None:
    trust = Trust()
    for _ in range(100):
        trust.observe(0.5, (0.0, 0.2), (0.4, 0.7))
    assert not trust.believed
    assert trust.alarms == 1
    for _ in range(600):
        trust.observe(0.0, (0.0, 0.2), (0.4, 0.7))
    assert trust.believed
    assert trust.alarms == 1


def test_an_alarm_when_the_physical_estimate_is_better() -> None:
    trust = Trust()
    for _ in range(100):
        trust.observe(0.0, (-0.5, 2.0), (0.0, 0.1))
    assert trust.learned.ttft_p95 == 1.0
    assert not trust.believed
    figures = trust.as_dict()
    assert figures["believed"] is False
    assert figures["ttft_loss"] > figures["physical_ttft_loss"]  # type: ignore[operator]


def test_few_observations_raise_no_alarm() -> None:
    trust = Trust()
    for _ in range(30):
        trust.observe(0.5, (0.0, 0.2), (0.4, 0.7))
    assert trust.believed
