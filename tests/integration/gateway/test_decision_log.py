"""The decision log of a live gateway, replayed."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from random import Random

import pytest

from predictors.learned.artifact import ArtifactError
from router.cli import main
from router.replay_decisions import replay
from tests.integration.gateway.live import bearer, key, live, vllm

SECRET = "the prompt is secret"


async def traffic(gw) -> None:
    """Some of everything that makes an event."""
    rng = Random(1)

    async def ask(number: int) -> str | None:
        routing = {"policy": rng.choice(["slo", "cost", "latency", "round_robin", "random", "least_load"])}
        if number % 3 == 0:
            routing["slo"] = {"ttft_ms": 300, "e2e_ms": 4000}
        if number % 6 == 0:
            routing["on_miss"] = "reject"
        if number % 5 == 0:
            routing["max_cost_usd"] = 1e-5
        _, headers, _ = await gw.chat(
            messages=[{"role": "user", "content": f"{SECRET} {number}" * (1 + number % 9)}],
            max_tokens=1 + number % 40,
            routing=routing,
            headers=bearer(f"key-{number % 2}"),
        )
        return headers.get("x-request-id")

    ids = [each for each in await asyncio.gather(*map(ask, range(40))) if each]
    async with gw.stream(headers=bearer("key-0")) as response:  # a client that leaves
        await response.content.readany()
    await asyncio.sleep(0.3)  # records are written
    for request_id in ids[:5]:
        await gw.post(
            "/v1/feedback",
            {"request_id": request_id, "quality": 0.5},
            headers=bearer(f"key-{ids.index(request_id) % 2}"),
        )
    root = bearer("root")
    assert (await gw.patch("/admin/targets", {"attainment": 0.9}, headers=root))[0] == 200
    assert (await gw.delete("/admin/instances/b?drain=true", headers=root))[0] == 200
    async with gw.stream(max_tokens=400, ignore_eos=True, headers=bearer("key-0")) as response:
        path = f"/admin/instances/{response.headers['x-headway-instance']}"
        assert (await gw.delete(path, headers=root))[0] == 200
        assert (await gw.post("/admin/reload", {}, headers=root))[0] == 200  # it is back, with its stream
        await ask(41)
    await asyncio.gather(*map(ask, range(40, 60)))
    await gw.until(lambda: not gw.gateway.runner.scheduler.live)


async def test_a_live_run_replays_to_the_same_instructions(tmp_path, headway):
    log = tmp_path / "decisions.jsonl"
    sections = {
        "auth": {"keys": [key("key-0", budget_usd=1.0), key("key-1", min_quality=0.4)]},
        "observability": {"decision_log": str(log)},
        "scheduling": {"hedge": {"enabled": True, "max_share": 0.5}, "explore": 0.2},
    }
    engines = (vllm("a", speed=40.0), vllm("b", speed=20.0))
    async with live(tmp_path, *engines, environment={"HEADWAY_ADMIN_KEY": "root"}, **sections) as gw:
        await traffic(gw)
    events, differences = replay(log)
    assert differences == []
    text = log.read_text()
    names = {json.loads(line)[0] for line in text.splitlines()[1:]}
    assert events == len(text.splitlines()) - 1
    assert {
        "Arrived", "FirstToken", "Ended", "Left", "Probed", "LoadReported", "FleetChanged", "DrainChanged",
        "TargetsChanged", "QualityReported",
    } <= names  # fmt: skip
    assert SECRET not in text
    assert log.stat().st_mode & 0o777 == 0o600

    log.write_text(f'{text}["Tick"')  # the process was killed while it wrote
    assert headway.out("replay-decisions", log) == f"{events} events replayed: the same instructions\n"
    lines = text.splitlines(keepends=True)
    at = next(number for number, line in enumerate(lines) if '"Dispatch"' in line)
    lines[at] = lines[at].replace('"Dispatch"', '"Cancel"', 1)
    log.write_text("".join(lines))
    assert f"line {at + 1}, character" in headway.out("replay-decisions", log, code=1)
    found = headway.json("replay-decisions", log, code=1)
    assert (found["events"], found["differences"][0]["line"]) == (events, at + 1)
    event = json.loads(lines[at])
    for damaged, reason in (
        (["FleetChanged", 1, [[]]], "a value is missing or of another kind"),
        ([event[0], "now", *event[2:]], "a value is missing or of another kind"),
        (["annotations", 1, []], "is not an event"),
        (["PredictorsChanged", 1, ["\x1b[2J"]], r"were loaded here (\x1b[2J)"),
    ):
        log.write_text("".join([*lines[:at], json.dumps(damaged) + "\n"]))
        assert reason in headway.refusal("replay-decisions", log)


async def test_a_full_disk_ends_the_log_and_no_request(tmp_path, caplog):
    sections = {"observability": {"decision_log": str(tmp_path / "decisions.jsonl")}}
    async with live(tmp_path, vllm("a"), **sections) as gw:
        log = gw.gateway.runner.on_event.__self__
        log.close()
        log._file = Path("/dev/full").open("w")  # noqa: SIM115 (the log closes it)
        assert (await gw.chat())[0] == 200
        assert gw.instances["a"].in_flight == 0
    assert caplog.text.count("cannot be written: it ends here") == 1


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "is not JSON"),
        (b"\xff\x00\n", "is not JSON"),
        (b'{"headway_decisions": "\xff"}\n', "is not JSON"),
        (b"[" * 100_000 + b"\n", "is not JSON"),
        (b"{}\n", "is not a decision log"),
        (b'{"headway_decisions": 1}\n', "Field required"),
        (b'{"headway_decisions": 1, "targets": 5}\n', "valid list"),
        (b'{"headway_decisions": 1, "targets": [[null]]}\n', "Field required"),
    ],
)
def test_what_is_no_log_is_refused(tmp_path, headway, text, reason):
    log = tmp_path / "log"
    log.write_bytes(text)
    assert reason in headway.refusal("replay-decisions", log)
    assert main(["replay-decisions", str(tmp_path / "none")]) == 2


def test_predictors_that_cannot_be_loaded_are_told_as_such(tmp_path, headway, monkeypatch):
    def damaged(directory):
        raise ArtifactError(f"{directory}: damaged")

    monkeypatch.setattr("router.replay_decisions.load_models", damaged)
    header = {"headway_decisions": 1, "version": "0", "seed": 1, "predictors": "p", "directory": None}
    log = tmp_path / "log"
    log.write_text(json.dumps(header | {"confidence": 0.9, "ttft_weight": 1.0, "targets": []}) + "\n")
    assert headway.refusal("replay-decisions", log).endswith("None: damaged\n")


async def test_a_log_ends_at_its_size(tmp_path, caplog):
    log = tmp_path / "decisions.jsonl"
    observability = {"decision_log": str(log), "decision_log_mb": 0.01}
    async with live(tmp_path, vllm("a"), observability=observability) as gw:
        for _ in range(5):
            assert (await gw.chat())[0] == 200
    assert log.stat().st_size < 30_000
    assert "has reached its maximum size" in caplog.text
    assert replay(log)[1] == []
