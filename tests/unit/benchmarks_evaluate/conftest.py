"""Intervals from few resamples: tests look at the figures, and `test_figures_of_evaluation` at the bootstrap itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.evaluate import relevance, times


@pytest.fixture(autouse=True, scope="package")
def few_resamples() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module in (relevance, times):
            patch.setattr(module, "_RESAMPLES", 30)
        yield
