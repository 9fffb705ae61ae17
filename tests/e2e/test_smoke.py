"""The shortest way from a fleet to its own predictor: collect, train, serve. `test_train_phase.py` goes all of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.evaluate import latency_baselines
from predictors.learned import artifact
from router.cli import main
from tests.e2e.world import MODELS, SEED, write_prompts
from tests.integration.gateway.live import live, vllm


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The artifacts of a latency predictor, trained on one load level of an emulated fleet."""
    monkeypatch.setattr(latency_baselines, "ROUNDS", 10)  # what the predictor is compared with
    (tmp_path / "fleet.yaml").write_text(MODELS, encoding="utf-8")
    write_prompts(tmp_path / "prompts.jsonl")
    words = ["--config", str(tmp_path / "fleet.yaml"), "--prompts", str(tmp_path / "prompts.jsonl")]
    words += ["--rates", "80", "--requests", "56", "--max-tokens", "64", "--report-s", "0.1"]
    words += ["--emulate-lengths", "--seed", str(SEED), "--out", str(tmp_path / "data")]
    assert main(["collect", *words]) == 0
    out = tmp_path / "artifacts"
    assert main(["train", "latency", "--data", str(tmp_path / "data"), "--out", str(out)]) == 0
    return out


async def test_what_was_trained_serves(trained: Path, tmp_path: Path) -> None:
    name = artifact.load(artifact.path_of(trained, "latency")).name
    async with live(tmp_path, vllm("a"), predictors={"directory": str(trained)}) as gw:
        status, headers, _ = await gw.chat(model="small")
        assert status == 200
        row = await gw.row(headers["x-request-id"])
        assert name in row["artifact"].split()
        assert 0 < row["predicted_ttft_s_p50"] <= row["predicted_ttft_s_p95"]
