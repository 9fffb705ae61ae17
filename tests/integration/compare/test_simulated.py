"""`headway compare` in simulation, from the command line to its files."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from benchmarks.workloads.format import Header, WorkloadRequest, write
from router.cli import main
from tests.commands import Headway

FLEET = """
models:
  - {name: llama-3.1-8b, context_tokens: 16384, price: {input_usd_per_mtok: 0.03, output_usd_per_mtok: 0.05}}
  - {name: unserved, context_tokens: 16384, price: {input_usd_per_mtok: 0.03, output_usd_per_mtok: 0.05}}
instances:
  - {name: fast, kind: emulated, speed: 4, profile: llama-3.1-8b@h100-80g, serves: {llama-3.1-8b: llama-3.1-8b}}
  - {name: slow, kind: emulated, speed: 4, profile: llama-3.1-8b@l4, serves: {llama-3.1-8b: llama-3.1-8b}}
"""


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.yaml"
    path.write_text(FLEET)
    return path


@pytest.fixture
def workload(tmp_path: Path) -> Path:
    path = tmp_path / "w.jsonl"
    write(
        path,
        Header("test"),
        (
            WorkloadRequest(
                f"r{at}",
                at * 0.3 + at % 4 * 0.1,
                500 + 37 * (at % 11),
                output_tokens=20 + 13 * (at % 7),
                routing={"slo": {"ttft_ms": 400.0, "tpot_ms": 20.0}} if at % 2 else None,
            )
            for at in range(80)
        ),
    )
    return path


@pytest.fixture
def words(workload: Path, fleet: Path, tmp_path: Path) -> tuple[str, ...]:
    return (
        *("compare", "--workload", str(workload), "--fleet", str(fleet), "--out", str(tmp_path / "out")),
        *("--oracle-seeds", "0", "--jobs", "1"),
    )


def told(out: Path) -> dict[str, Any]:
    return orjson.loads((out / "report.json").read_bytes())


def numbers(report: Mapping[str, Any]) -> dict[str, Any]:
    """Each run without what the machine's clock says of it."""
    return {
        run["name"]: {key: value for key, value in run.items() if key not in ("wall_s", "decision_s")}
        for run in report["runs"]
    }


def test_policies_rates_and_seeds_make_a_report_and_its_files(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main([*words, "--policies", "slo,random", "--rates", "2,6", "--seeds", "2"]) == 0
    shown = capsys.readouterr()
    assert "random" in shown.out
    assert shown.err == ""  # no bar where there is no terminal
    report = told(out)
    assert report["complete"]
    assert report["policies"] == ["slo", "random"]
    names = [f"{policy}@{rate}#{seed}" for rate in (2, 6) for policy in ("slo", "random") for seed in (0, 1)]
    assert [run["name"] for run in report["runs"]] == names
    assert {run["requests"] for run in report["runs"] if run["seed"] == 0} == {80}
    for run in report["runs"]:
        assert run["measured_rate_per_s"] == pytest.approx(run["rate_per_s"])
    assert sorted(file.stem for file in (out / "vllm").iterdir()) == sorted(names)
    with (out / "runs.csv").open() as file:
        assert [row["name"] for row in csv.DictReader(file)] == names
    assert "slo" in (out / "report.html").read_text()


@pytest.mark.usefixtures("undrawn")
def test_numbers_are_the_same_with_more_processes(words: tuple[str, ...], tmp_path: Path) -> None:
    some = ("--policies", "random,slo", "--seeds", "2")
    assert main([*words, *some]) == 0
    assert main([*words, *some, "--jobs", "2", "--out", str(tmp_path / "again")]) == 0
    assert numbers(told(tmp_path / "again")) == numbers(told(tmp_path / "out"))


@pytest.mark.usefixtures("undrawn")
def test_what_emulated_instances_share_is_taken_out_of_the_speed(
    words: tuple[str, ...], fleet: Path, tmp_path: Path
) -> None:
    def e2e_s(*more: str) -> float:
        out = tmp_path / f"speed{len(list(tmp_path.iterdir()))}"
        assert main([*words, "--policies", "round_robin", *more, "--out", str(out)]) == 0
        return told(out)["runs"][0]["e2e_s"]["mean"]

    real = e2e_s()
    assert e2e_s("--speed", "4") == pytest.approx(real)
    assert e2e_s("--speed", "1") < real / 3
    fleet.write_text(FLEET.replace("speed: 4", "speed: 1"))
    assert e2e_s() == pytest.approx(real)


def test_slo_limit_and_json(words: tuple[str, ...], headway: Headway) -> None:
    report = headway.json(*words, "--policies", "random", "--slo", "ttft_ms=1", "--limit", "20")
    (run,) = report["runs"]
    assert run["name"] == "random@own#0"
    assert run["rate_per_s"] == pytest.approx(run["measured_rate_per_s"])
    assert (run["requests"], run["offered_with_slo"]) == (20, 20)
    assert [one["offered"] for one in run["by_slo"]] == [10, 10]
    assert report["workload"]["described"]["requests"] == 20


@pytest.mark.usefixtures("undrawn")
def test_more_can_be_added_and_other_settings_are_refused(
    words: tuple[str, ...], fleet: Path, tmp_path: Path, headway: Headway
) -> None:
    out = tmp_path / "out"
    assert main([*words, "--policies", "random", "--rates", "3"]) == 0
    first = (out / "runs/random@3#0.json").stat().st_mtime_ns
    assert main([*words, "--policies", "random,slo", "--rates", "3,5", "--seeds", "2"]) == 0
    assert len(told(out)["runs"]) == 8
    assert (out / "runs/random@3#0.json").stat().st_mtime_ns == first
    for more, what in (
        (("--limit", "20"), "workload"),
        (("--slo", "ttft_ms=100"), "slo"),
        (("--speed", "2"), "speed"),
        (("--model", "llama-3.1-8b"), "model"),
    ):
        assert f"made with another {what}" in headway.refusal(*words, "--policies", "random", *more)
    fleet.write_text(FLEET.replace("l4", "a40"))
    assert "made with another fleet" in headway.refusal(*words, "--policies", "random")


@pytest.mark.usefixtures("undrawn")
def test_a_small_scenario_in_json(tmp_path: Path, headway: Headway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADWAY_DATA", raising=False)
    words = ("compare", "--scenario", "instance-loss", "--small", "--out", str(tmp_path / "out"))
    some = ("--policies", "least_load", "--rates", "15", "--oracle-seeds", "0", "--jobs", "1")
    report = headway.json(*words, *some)
    assert report["scenario"] == "instance-loss (small)"
    assert report["runs"][0]["retried"] > 0
    # The instance that is lost does nothing for a while.
    load = report["runs"][0]["timeline"]
    span_s = report["runs"][0]["requests"] / 15
    gone = [
        running
        for at_s, running in zip(load["at_s"], load["instances"]["h100-0"]["running"], strict=True)
        if 0.3 * span_s + 0.5 < at_s < 0.4 * span_s - 0.5
    ]
    assert gone
    assert not any(gone)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (("--policies", "nope"), "unknown policy 'nope' (known: random"),
        (("--policies", "slo,slo"), "different names"),
        (("--rates", "1,x"), "--rates 1,x"),
        (("--rates", "1e400"), "--rates"),
        (("--rates", "2,1e-9"), "--rates: the requests arrive over 914,352 days; at most 366 are possible"),
        (("--seeds", "0"), "--seeds: must be at least 1"),
        (("--jobs", "0"), "--jobs: must be at least 1"),
        (("--jobs", "1001"), "--jobs: must be at most 1000"),
        (("--seeds", "2147483647"), "--seeds: must be at most 10000"),
        (("--rates", "1e308"), "--rates 1e308: must be at most 1000000000000"),
        (("--limit", "-1"), "--limit: must be at least 1"),
        (("--oracle-seeds", "-1"), "--oracle-seeds: must be at least 0"),
        (("--oracle-effort", "nope"), "--oracle-effort: one of brief"),
        (("--speed", "nan"), "--speed"),
        (("--slo", "ttft=1"), "unknown target 'ttft'"),
        (("--model", "nope"), "w.jsonl, line 2: request r0: The model 'nope' does not exist"),
        (("--model", "unserved"), "asks for unserved, which no instance of the fleet serves"),
        (("--workload", "gone.jsonl"), "cannot read gone.jsonl"),
        (("--fleet", "gone.yaml"), "gone.yaml: cannot be read"),
        (("--profiles", "gone.yaml"), "cannot read gone.yaml"),
        (("--small",), "--small needs --scenario"),
        (("--warmup", "3"), "--warmup is for a live gateway"),
        (("--timeout", "3"), "--timeout is for a live gateway"),
        (("--scenario", "overload"), "leave out --workload"),
        (("--out", "/dev/null"), "cannot write /dev/null"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    words: tuple[str, ...], headway: Headway, more: tuple[str, ...], reason: str
) -> None:
    assert reason in headway.refusal(*words, *more)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--scenario", "nope"), "unknown scenario 'nope' (known: bursty-code"),
        (("--scenario", "overload", "--url", "http://127.0.0.1:1"), "--scenario is for the simulator"),
        (("--fleet", "f.yaml"), "give --workload and --fleet, or --scenario, or --url"),
    ],
)
def test_what_does_not_go_together_is_one_line(
    tmp_path: Path, headway: Headway, words: tuple[str, ...], reason: str
) -> None:
    assert reason in headway.refusal("compare", *words, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("requests", "reason"),
    [
        (1, "the workload needs at least two different arrival times"),
        (30, "the requests arrive over 335,648"),
    ],
)
def test_the_rates_of_a_scenario_are_not_called_an_option(
    fleet: Path, tmp_path: Path, headway: Headway, requests: int, reason: str
) -> None:
    scenario = {"workload": f"poisson --limit {requests}", "rates": [1e-9], "seeds": 1}
    file = tmp_path / "slow.yaml"
    file.write_text(yaml.safe_dump({"about": "Slow.", "fleet": fleet.name, **scenario}))
    assert f"scenario slow: rates: {reason}" in headway.refusal(
        "compare", "--scenario", file, "--out", tmp_path / "out"
    )


def test_without_out_nothing_is_done(headway: Headway) -> None:
    assert headway.refusal("compare", "--scenario", "overload") == "headway compare: --out is needed\n"


@pytest.mark.usefixtures("undrawn")
def test_a_fitted_profile_must_be_one_that_the_fleet_uses(
    words: tuple[str, ...], tmp_path: Path, headway: Headway
) -> None:
    constants = dict.fromkeys(("overhead_s", "floor_s", "per_token_s"), 1e-5)
    constants |= {"per_kv_token_s": 1e-9, "per_pair_s": 1e-12}
    file = tmp_path / "profile.yaml"

    def fitted(name: str) -> None:
        profile = {"name": name, "kv_capacity_tokens": 100_000, **constants}
        file.write_text(yaml.safe_dump({"engine": {"profile": profile}}))

    fitted("engine")
    some = ("--policies", "round_robin", "--profiles", str(file))
    assert "no instance of the fleet has a profile 'engine'" in headway.refusal(*words, *some)
    assert main([*words, "--policies", "round_robin"]) == 0
    fitted("llama-3.1-8b@l4")
    assert main([*words, *some, "--out", str(tmp_path / "fitted")]) == 0
    before, after = (told(tmp_path / name)["runs"][0]["e2e_s"]["p95"] for name in ("out", "fitted"))
    assert after < before / 2


POOLS = """
models:
  - {name: llama-3.1-8b, context_tokens: 16384, slo: {ttft_ms: 3000, tpot_ms: 200}}
scaling:
  interval_s: 5
  pools:
    - name: l4
      max_instances: 3
      cooldown_s: 5
      instance: {kind: vllm, hardware: l4, usd_per_hour: 0.72, serves: {llama-3.1-8b: llama-3.1-8b}}
"""


def test_scalers_side_by_side(words: tuple[str, ...], fleet: Path, tmp_path: Path) -> None:
    fleet.write_text(POOLS)
    scalers = ("none", "kpa:stable_window_s=5", "headway")
    assert main([*words, "--policies", "slo,random", "--scaler", ",".join(scalers)]) == 0
    report = told(tmp_path / "out")
    assert report["policies"] == [f"{policy}+{scaler}" for policy in ("slo", "random") for scaler in scalers]
    hours = {run["policy"]: run["gpu_hours"] for run in report["runs"]}
    (static,) = [run for run in report["runs"] if run["policy"] == "slo+none"]
    # From the first probe until the last answer.
    assert static["gpu_hours"] == pytest.approx(3 * static["duration_s"] / 3600, rel=0.05)
    assert static["instances_usd"] == pytest.approx(0.72 * static["gpu_hours"])
    assert hours["slo+kpa:stable_window_s=5"] < hours["slo+none"]
    assert "GPU-hours" in (tmp_path / "out" / "report.html").read_text()
    # Without a scaler every pool has all its instances.
    assert main([*words, "--policies", "random", "--out", str(tmp_path / "static")]) == 0
    (whole,) = told(tmp_path / "static")["runs"]
    assert sum(name.startswith("l4-") for name in whole["instances"]) == 3
    assert whole["gpu_hours"] is None


@pytest.mark.parametrize(
    ("scaler", "message"),
    [
        ("cpu", "unknown scaler 'cpu'"),
        ("kpa:speed=2", "scaler kpa: "),
        ("kpa:utilization=half", "expected kpa:SETTING=NUMBER"),
        ("kpa,kpa", "expected different scalers"),
        ("kpa:utilization=0.5:utilization=0.7", "a setting is given twice"),
    ],
)
def test_wrong_scalers(
    words: tuple[str, ...], fleet: Path, headway: Headway, scaler: str, message: str
) -> None:
    fleet.write_text(POOLS)
    assert message in headway.refusal(*words, "--policies", "random", "--scaler", scaler)


def test_a_scaler_needs_pools(words: tuple[str, ...], headway: Headway) -> None:
    assert "needs a fleet with pools" in headway.refusal(*words, "--policies", "random", "--scaler", "kpa")
