"""The command as users call it, with a real gateway, at a tiny scale."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import orjson
import pytest

from benchmarks.overhead import __main__ as command
from benchmarks.overhead import micro, processes
from benchmarks.overhead.plan import Plan
from benchmarks.overhead.processes import Cores, StartError


def test_through_the_gateway_counts_agree(tmp_path: Path) -> None:
    """What was asked, what was answered and what the gateway recorded are the same."""
    asked = 0
    with processes.upstream(Cores()) as engine:
        with processes.gateway(processes.fleet_of(engine, tmp_path), tmp_path, Cores()) as gateway:
            for stream in (False, True):
                plan = Plan(
                    mode="closed",
                    ports=gateway.ports,
                    connections=4,
                    duration_s=1.0,
                    warmup_s=0.0,
                    stream=stream,
                    chunks=6,
                    pace_us=5000 if stream else 0,
                    target_pids=gateway.pids,
                    bench_pids=engine.pids,
                )
                result = processes.generate(plan, Cores())
                assert result.failed == 0
                assert result.completed == result.started > 0
                assert result.target_cpu_s > 0
                assert result.rss_mib > 10
                asked += result.started
        with closing(sqlite3.connect(tmp_path / processes.DATABASE_FILE)) as database:
            rows = database.execute(
                "SELECT outcome, policy, output_tokens, count(*) FROM requests GROUP BY 1, 2, 3"
            ).fetchall()
    assert rows == [("ok", "least_load", 6, asked)]


def test_a_whole_measurement_where_nginx_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("shutil.which", lambda name, path=None: None)
    out = tmp_path / "out.json"
    arguments = ["--passes", "1", "--duration", "0.3", "--scenarios", "idle,json-max"]
    assert command.main([*arguments, "--json", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "without nginx: nginx is not installed" in printed
    assert "in units of" not in printed
    assert "json-max: JSON, 32 connections" in printed
    assert "answers failed" not in printed
    written = orjson.loads(out.read_bytes())
    figures = written["scenarios"]["json-max"]["figures"]
    assert set(figures["requests/s"]) == {"direct", "headway", "when_needed", "slo"}
    assert figures["requests/s"]["headway"]["median"] > 0
    assert written["scenarios"]["idle"]["figures"]["RSS MiB"]["headway"]["median"] > 10
    assert "direct" not in written["scenarios"]["idle"]["passes"]


def test_a_gateway_that_does_not_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = processes.Target((1, 2))
    monkeypatch.setattr("benchmarks.overhead.wire.MODEL", "")  # a fleet file that is refused
    with (
        pytest.raises(StartError, match=r"the gateway did not start: .+"),
        processes.gateway(processes.fleet_of(engine, tmp_path), tmp_path, Cores()),
    ):
        pass


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--scenarios", "json,speed"], "'speed' is none of idle, hold, json"),
        (["--targets", "haproxy"], "is none of direct, nginx, vllm-router, headway"),
        (["--passes", "0"], "must be a whole number of at least 1"),
        (["--passes", "two"], "--passes"),
        (["--duration", "-1"], "must be above 0"),
        (["--rate", "nan"], "must be above 0"),
        (["--fast"], "unrecognized arguments"),
    ],
)
def test_bad_arguments_are_refused(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(arguments)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_an_output_file_that_cannot_be_written_is_refused_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["--json", str(tmp_path / "none" / "out.json")]) == 2
    assert "No such file or directory" in capsys.readouterr().err


def test_single_steps_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(micro, "_FLEETS", (16,))
    costs = micro.measure(least_s=0.0005, records=20)
    assert len({cost.step for cost in costs}) == len(costs) >= 12
    assert all(0 < cost.least_us <= cost.median_us for cost in costs)
    lines = micro.text(costs).splitlines()
    assert len(lines) == len(costs) + 1
    assert lines[1].startswith("schedule a request to its end: least_load, 8 candidates")
