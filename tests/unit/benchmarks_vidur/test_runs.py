"""Runs, their figures, and the command, with a small program in Vidur's place."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.vidur import report
from benchmarks.vidur.command import main
from benchmarks.vidur.environment import REQUIREMENTS
from benchmarks.vidur.runs import Measured, Outcome, Run, RunError, one

#: Reads the case as Vidur's driver does, and says that each request took two seconds.
STANDS_IN = """#!{python}
import json, sys
case = json.load(open(sys.argv[-2]))
count = len(open(case["trace"]).readlines()) - 1
told = {{"simulation_s": 4.0, "setup_s": 1.0, "simulation_cpu_s": 3.0, "ttft_s": [1.0] * count, "e2e_s": [2.0] * count}}
json.dump(told, open(sys.argv[-1], "w"))
"""


def environment(folder: Path, program: str) -> Path:
    """A folder that counts as Vidur's environment, with `program` as its Python."""
    interpreter = folder / "environment" / "bin" / "python"
    interpreter.parent.mkdir(parents=True)
    interpreter.write_text(program.format(python=sys.executable))
    interpreter.chmod(0o755)
    (folder / "environment" / "installed.txt").write_text(REQUIREMENTS.read_text())
    return folder / "environment"


def measured() -> Measured:
    runs = [Run(simulation_s=each, setup_s=0.5, process_s=each + 2, cpu_s=each) for each in (8.0, 6.0, 7.0)]
    ours = [Run(simulation_s=0.5, setup_s=0.1, process_s=1.5, cpu_s=0.5)]
    outcome = Outcome([1.0, 2.0, 3.0], [4.0, 5.0, 6.0])
    return Measured(2, 700, {"vidur": runs, "headway": ours}, {"vidur": outcome, "headway": outcome})


def test_ratios_are_of_the_medians() -> None:
    assert measured().ratio("simulation_s") == 14.0
    assert measured().ratio("process_s") == 6.0


def test_the_text_tells_times_rates_and_what_was_simulated() -> None:
    head, columns, vidur, headway, ratio = report.text([measured()]).splitlines()
    assert head == "700 requests, 2 replicas"
    assert columns.split()[:2] == ["simulation", "s"]
    assert vidur.split() == [
        "vidur",
        "7.000",
        "6.000-8.000",
        "7.000",
        "9.00",
        "100",
        "2.000",
        "2.900",
        "5.00",
        "5.90",
    ]
    assert headway.split()[5] == "1,400"
    assert ratio.split() == ["ratio", "14.0", "14.0", "6.0"]


def test_json_keeps_every_run() -> None:
    told = report.as_json([measured()], {"seed": 1})
    (one_case,) = told["measured"]
    assert told["settings"] == {"seed": 1}
    assert [run["simulation_s"] for run in one_case["vidur"]["runs"]] == [8.0, 6.0, 7.0]
    assert one_case["vidur"]["requests_per_s"] == 100
    assert one_case["headway"]["ttft_s"]["p50"] == 2.0
    assert one_case["ratio"]["cpu_s"] == 14.0


def test_a_failed_run_says_why() -> None:
    program = "raise SystemExit('no such operator: attn_decode')"
    with pytest.raises(RunError, match="ended with 1: no such operator: attn_decode"):
        one([sys.executable, "-c", program, "outcome.json"])


def test_the_command_runs_both_and_writes_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = environment(tmp_path, STANDS_IN)
    file = tmp_path / "figures.json"
    arguments = ["--requests", "20", "--replicas", "2", "--passes", "1", "--environment", str(folder)]
    assert main([*arguments, "--json", str(file)]) == 0
    assert "20 requests, 2 replicas" in capsys.readouterr().out
    (told,) = json.loads(file.read_bytes())["measured"]
    assert told["vidur"]["requests_per_s"] == 5.0
    assert told["vidur"]["e2e_s"]["p95"] == 2.0
    assert told["headway"]["runs"][0]["process_s"] > told["headway"]["runs"][0]["simulation_s"] > 0
    assert 0 < told["headway"]["ttft_s"]["p50"] < told["headway"]["e2e_s"]["p50"]


def test_the_command_ends_with_one_line_when_vidur_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = environment(tmp_path, "#!{python}\nraise SystemExit('broken')\n")
    assert main(["--requests", "5", "--replicas", "1", "--passes", "1", "--environment", str(folder)]) == 1
    error = capsys.readouterr().err
    assert error == "python -m benchmarks.vidur: python ended with 1: broken\n"


@pytest.mark.parametrize("wrong", [["--requests", "0"], ["--replicas", "1,x"], ["--rate", "-1"]])
def test_bad_arguments_end_with_two(wrong: list[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(wrong)
    assert end.value.code == 2
