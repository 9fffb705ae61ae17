"""The measurement of a real vLLM on an H100, and what docs/calibration.md says of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from backends.engine import profile
from benchmarks.calibrate.command import study_of_files
from benchmarks.calibrate.errors import pairs, ratios
from benchmarks.calibrate.fit import fit, guess
from benchmarks.calibrate.measured import Study, splitter
from benchmarks.calibrate.profile import Constants
from benchmarks.calibrate.report import result_of

MEASURED = Path(__file__).parents[3] / "benchmarks" / "calibrate" / "data" / "vllm-h100.jsonl"
LIMITS = {
    "max_batched_tokens": (8192,),
    "max_seqs": (256,),
    "kv_capacity_tokens": (385_104,),
    "chunked_prefill": (True,),
}
#: What the server's front end takes of a TTFT.
FRONT_END_S = 0.012


@pytest.fixture(scope="module")
def study() -> Study:
    return study_of_files([MEASURED], splitter(None, None))


def test_a_fit_describes_rates_that_it_has_not_seen(study: Study) -> None:
    result = result_of(study, fit(study, guess(study), LIMITS, evaluations=120)).as_dict()
    held_out = result["held_out"]
    assert result["held_out_levels"] == ("6", "26")
    assert held_out["e2e"]["median"] < 0.05
    assert held_out["tpot"]["median"] < 0.05
    assert held_out["ttft"]["median"] < 0.25


def test_the_registered_profile_was_near_before_anything_was_measured(study: Study) -> None:
    known = replace(profile("llama-3.1-8b@h100-80g"), kv_capacity_tokens=385_104, max_seqs=256)
    constants = Constants(known, FRONT_END_S, 0.0)
    found = [pair for level in study.levels.values() for pair in pairs(study, level, constants)]
    errors = {
        metric: np.array(ratios(found, metric, paired=True)) - 1.0 for metric in ("ttft", "e2e", "tpot")
    }
    assert np.median(np.abs(errors["ttft"])) < 0.15
    assert 0.1 < np.median(errors["e2e"]) < 0.2
    assert 0.15 < np.median(errors["tpot"]) < 0.25
