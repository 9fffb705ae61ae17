"""Trained artifacts in a running gateway: loaded, used, recorded, shown, corrected by feedback, refused."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from math import exp

import pytest

from predictors.learned import artifact
from predictors.learned.models import KINDS
from router.config import ConfigError
from router.store.database import StoreError
from tests.artifacts import latency_artifact, relevance_artifact, write
from tests.integration.gateway.live import live, vllm


async def test_an_artifact_is_used_recorded_and_shown(tmp_path):
    folder = write(tmp_path / "artifacts", latency_artifact(ttft=2.0))
    name = artifact.load(artifact.path_of(folder, "latency")).name
    async with live(tmp_path, vllm("a"), predictors={"directory": str(folder)}) as gw:
        for _ in range(12):
            status, headers, _ = await gw.chat(model="llama-3.1-8b")
            assert status == 200
        row = await gw.row(headers["x-request-id"])
        assert name in row["artifact"].split()
        status, told = await gw.get("/admin/predictors")
        assert status == 200
        assert name in told["name"].split()
        shown = told["artifacts"]["latency"]
        assert shown["artifact"] == name
        assert shown["data"] == [{"name": "made by a test", "rows": 0}]
        assert shown["features"]
        (group,) = [each for each in told["latency"] if each["observed"]]
        labels = f'hardware="{group["hardware"]}",model="llama-3.1-8b"'
        assert group["model"] == "llama-3.1-8b"
        assert 0.0 < group["weights"]["ttft"] < 1.0
        text = await gw.metrics()
        assert f'headway_predictor_info{{artifact="{name}",kind="latency"}} 1.0' in text
        assert f'headway_latency_model_weight{{{labels},of="tpot"}} 0.' in text
        assert f'headway_predictor_coverage{{{labels},of="learned"' in text


async def test_what_the_artifact_says_changes_the_prediction(tmp_path):
    async def ttft_s(median: float, where: str) -> float:
        folder = write(tmp_path / where, latency_artifact(ttft=median))
        async with live(tmp_path / where, vllm("a"), predictors={"directory": str(folder)}) as gw:
            for _ in range(12):
                await gw.chat(model="llama-3.1-8b")
            _, told = await gw.post(
                "/v1/routing/predict",
                {"model": "llama-3.1-8b", "messages": [{"role": "user", "content": "x"}]},
            )
            return float(told["candidates"][0]["predicted"]["ttft_s_p50"])

    # Real engines and real times: no two runs are alike.
    assert await ttft_s(3.0, "three") > exp(1.5) * await ttft_s(0.0, "zero")


async def test_feedback_moves_the_predicted_quality_and_outlives_the_process(tmp_path):
    folder = write(tmp_path / "artifacts", relevance_artifact("llama-3.1-8b", 0.8))
    ask = {"model": "llama-3.1-8b", "messages": [{"role": "user", "content": "How much is 2 + 2?"}]}

    async def quality(gw) -> float:
        _, told = await gw.post("/v1/routing/predict", ask)
        return float(told["candidates"][0]["predicted"]["quality"])

    async with live(tmp_path, vllm("a"), predictors={"directory": str(folder)}) as gw:
        assert await quality(gw) == pytest.approx(0.8, abs=0.01)
        for _ in range(20):
            _, headers, _ = await gw.chat(**ask)
            row = await gw.row(headers["x-request-id"])
            assert 0 <= row["predicted_quality"] <= 0.81
            status, _ = await gw.post("/v1/feedback", {"request_id": headers["x-request-id"], "quality": 0.0})
            assert status == 200
        moved = await quality(gw)
        assert moved < 0.6
        for _ in range(30):  # kept, but one answer is judged once
            await gw.post("/v1/feedback", {"request_id": headers["x-request-id"], "quality": 0.0})
        assert await quality(gw) == moved
        _, told = await gw.get("/admin/predictors")
        assert told["feedback"] == {"llama-3.1-8b": 20}
    async with live(tmp_path, vllm("a"), predictors={"directory": str(folder)}) as gw:
        assert await quality(gw) == pytest.approx(moved, abs=0.01)


async def test_feedback_on_a_model_that_no_artifact_knows_is_kept_all_the_same(tmp_path):
    folder = write(tmp_path / "artifacts", relevance_artifact("some-other-model", 0.8))
    async with live(tmp_path, vllm("a"), predictors={"directory": str(folder)}) as gw:
        _, headers, _ = await gw.chat(model="llama-3.1-8b")
        await gw.row(headers["x-request-id"])
        status, _ = await gw.post("/v1/feedback", {"request_id": headers["x-request-id"], "quality": 1})
        assert status == 200
        _, told = await gw.get(f"/v1/routing/{headers['x-request-id']}")
        assert [each["quality"] for each in told["feedback"]] == [1.0]


async def test_a_kept_rating_is_no_error_if_it_cannot_be_learned(tmp_path, monkeypatch):
    async def leaves(*_, **__):
        raise StoreError("the store does not answer")

    async with live(tmp_path, vllm("a")) as gw:
        _, headers, _ = await gw.chat(model="llama-3.1-8b")
        await gw.row(headers["x-request-id"])
        monkeypatch.setattr(gw.gateway.store, "feedback_to_learn", leaves)
        status, _ = await gw.post("/v1/feedback", {"request_id": headers["x-request-id"], "quality": 1})
        assert status == 200
        assert len(await gw.gateway.store.feedback(headers["x-request-id"])) == 1


async def test_an_artifact_of_other_features_is_refused_by_name(tmp_path):
    strange = replace(latency_artifact(), features=("event.colour",))
    folder = write(tmp_path / "artifacts", strange)
    with pytest.raises(ConfigError, match=r"latency\.headway\.npz.*train it anew"):
        async with live(tmp_path, vllm("a"), predictors={"directory": str(folder)}):
            pass


async def test_a_damaged_artifact_stops_the_start(tmp_path):
    folder = write(tmp_path / "artifacts", latency_artifact())
    path = artifact.path_of(folder, "latency")
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(ConfigError, match="not an artifact of Headway, or damaged"):
        async with live(tmp_path, vllm("a"), predictors={"directory": str(folder)}):
            pass


async def test_an_empty_directory_is_told_and_one_that_is_not_there_leaves_the_shipped_ones(tmp_path, caplog):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="holds no artifact"):
        async with live(tmp_path, vllm("a"), predictors={"directory": str(tmp_path / "empty")}):
            pass
    async with live(tmp_path, vllm("a"), predictors={"directory": str(tmp_path / "nowhere")}) as gw:
        assert "the shipped predictors serve" in caplog.text
        _, told = await gw.get("/admin/predictors")
        shipped = {kind for kind in KINDS if artifact.path_of(artifact.SHIPPED, kind).is_file()}
        assert told["artifacts"].keys() == shipped


@pytest.mark.parametrize(
    "prompt", ["x" * 1_000_000, "\U0001f600" * 50_000, "", "\x00\x01", "7 " * 100_000, "\n" * 50_000]
)
async def test_odd_prompts_are_predicted_and_answered(tmp_path, prompt):
    models = [{"name": "llama-3.1-8b", "family": "llama", "context_tokens": 2_000_000}]
    async with live(tmp_path, vllm("a"), models=models) as gw:
        body = {"model": "llama-3.1-8b", "messages": [{"role": "user", "content": prompt}]}
        status, told = await gw.post("/v1/routing/predict", body)
        assert status == 200
        predicted = told["candidates"][0]["predicted"]
        assert 1 <= predicted["output_tokens_p50"] <= predicted["output_tokens_p90"]
        assert 0 < predicted["ttft_s_p50"] <= predicted["ttft_s_p95"]
    await asyncio.sleep(0)


async def test_a_reload_takes_a_new_artifact_and_refuses_a_bad_one(tmp_path):
    folder = write(tmp_path / "artifacts", latency_artifact(ttft=0.0))
    async with live(tmp_path, vllm("a"), predictors={"directory": str(folder)}) as gw:
        _, headers, _ = await gw.chat(model="llama-3.1-8b")
        first = (await gw.row(headers["x-request-id"]))["artifact"]
        write(folder, latency_artifact(ttft=1.0))
        assert (await gw.post("/admin/reload", None))[0] == 200
        _, headers, _ = await gw.chat(model="llama-3.1-8b")
        second = (await gw.row(headers["x-request-id"]))["artifact"]
        assert second != first
        artifact.path_of(folder, "latency").write_bytes(b"no zip")
        status, told = await gw.post("/admin/reload", None)
        assert status == 422
        assert "not an artifact of Headway, or damaged" in told["error"]["message"]
        _, headers, _ = await gw.chat(model="llama-3.1-8b")
        assert (await gw.row(headers["x-request-id"]))["artifact"] == second
