"""The fits find constants again that made a table; the command says what it lacks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.fitting import fits
from benchmarks.fitting.__main__ import main
from benchmarks.fitting.report import Row
from benchmarks.fitting.tables import VIDUR_SHAPES, LayerTimes


def table(memory: float, compute: float, fixed_s: float) -> LayerTimes:
    tokens = np.array([1, 8, 32, 128, 512, 1024, 2048, 4096] * 2, dtype=np.float64)
    params = np.repeat([2e8, 8e8], 8)
    hidden, intermediate = np.repeat([4096.0, 8192.0], 8), np.repeat([11008.0, 28672.0], 8)
    matmul = fixed_s + np.maximum(2 * params / (1e12 * memory), 2 * params * tokens / (1e14 * compute))
    small = 1e-5 + 2 * tokens * (10 * hidden + 6 * intermediate) / 1e12
    return LayerTimes(params, tokens, hidden, intermediate, matmul, small)


def test_matmul_fit() -> None:
    fit = fits.matmul(table(0.8, 0.6, 2e-5), 1e12, 1e14)
    assert (fit.memory_share, fit.flops_share, fit.fixed_s) == pytest.approx((0.8, 0.6, 2e-5), rel=1e-6)
    assert fit.errors.rows == 16
    assert fit.errors.p90 < 1e-6


def test_elementwise_fit() -> None:
    fit = fits.elementwise(table(0.8, 0.6, 2e-5), 1e12)
    assert (fit.fixed_s, fit.hidden_factor, fit.intermediate_factor) == pytest.approx((1e-5, 10, 6), rel=1e-6)


def test_line_and_slope() -> None:
    x = np.array([1.0, 10.0, 1000.0, 1e6])
    fit = fits.line(x, 3 + 2 * x)
    assert (fit.fixed, fit.slope) == pytest.approx((3, 2))
    assert fits.slope(x, np.where(x > 500, 4 * x, 0), 1000, 1e6) == pytest.approx(4)
    assert fits.bus_bytes_per_s(1e-9, 4) == pytest.approx(1.5e9)


def test_errors_are_relative() -> None:
    errors = fits.Errors.of(np.array([110.0, 10.0, 9.0]), np.array([100.0, 10.0, 10.0]))
    assert (errors.rows, errors.median) == (3, pytest.approx(0.1))
    assert Row("x", 110.0, 100.0).difference == pytest.approx(0.1)


def test_a_layer_has_the_published_weights() -> None:
    shape = VIDUR_SHAPES["meta-llama/Llama-2-70b-hf"]
    assert 80 * shape.layer_params(1) == pytest.approx(68.45e9, rel=0.001)
    assert shape.layer_params(8) == pytest.approx(shape.layer_params(1) / 8)


def test_missing_data_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--data", str(tmp_path)]) == 2
    message = capsys.readouterr().err
    assert "mlp_ops_ms.csv.gz" in message
    assert message.count("\n") == 1
    monkeypatch.delenv("HEADWAY_DATA", raising=False)
    assert main([]) == 2
    assert "HEADWAY_DATA" in capsys.readouterr().err
