"""Compare against a live server: two policies, two rates, a report; interrupted and resumed."""

from __future__ import annotations

import re
from pathlib import Path

import orjson
import pytest

from benchmarks.workloads.format import Header, WorkloadRequest, write
from router.cli import main
from tests.commands import Headway
from tests.unit.benchmarks.parsed import assert_stands_alone

from .conftest import SseServer

#: A busy machine meets it, where the server does not wait itself.
SLO_S = 2.0


def run(*words: str) -> int:
    return main(["compare", *words])


@pytest.fixture
def workload(tmp_path: Path) -> Path:
    path = tmp_path / "w.jsonl"
    requests = [
        WorkloadRequest(
            id=f"r{index}",
            arrival_s=index * 0.1,
            prompt_tokens=20,
            output_tokens=3,
            max_tokens=8,
            routing={"slo": {"ttft_ms": SLO_S * 1000}} if index % 2 == 0 else None,
        )
        for index in range(8)
    ]
    write(path, Header("test <set>", "CC0", 1, len(requests)), requests)
    return path


@pytest.fixture
def words(server: SseServer, workload: Path, tmp_path: Path) -> tuple[str, ...]:
    server.first_token_s = {"fast": 0.0, "slow": 0.1}
    return (
        *("--url", server.url, "--workload", str(workload), "--policies", "fast,slow"),
        *("--out", str(tmp_path / "out"), "--settle", "0", "--warmup", "1"),
    )


def test_two_policies_at_two_rates(
    server: SseServer, words: tuple[str, ...], tmp_path: Path, headway: Headway
) -> None:
    server.busy = 2
    server.first_token_s["slow"] = SLO_S + 0.1
    server.behaviours["r2"] = "429"
    table = headway.out("compare", *words, "--rates", "20,40")
    assert re.search(r"^slow +40 ", table, re.MULTILINE)
    report = orjson.loads((tmp_path / "out/report.json").read_bytes())
    assert report["complete"]
    runs = {one["name"]: one for one in report["runs"]}
    assert list(runs) == ["fast@20", "slow@20", "fast@40", "slow@40"]
    for name, one in runs.items():
        # Half of eight have an SLO; one of these is refused and counts as missed.
        assert one["offered_with_slo"] == 4
        assert one["met"] == (3 if name.startswith("fast") else 0)
        assert one["outcomes"]["rejected_slo"] == 1
        assert one["gateway_outcomes"] == {"ok": 7, "rejected_slo": 1}
        assert one["instances"] == {f"box-{one['policy']}": 8}
        assert one["cost_usd"] == pytest.approx(0.007)
        assert len(one["curves"]["ttft_s"]) == 201
    assert runs["fast@20"]["attainment"] == 0.75
    assert runs["slow@20"]["ttft_s"]["p50"] >= SLO_S + 0.1
    assert runs["fast@40"]["goodput_per_s"] == pytest.approx(15.0)  # three of eight at 40 a second
    assert server.looked_up == ["own-r2"] * 4
    sent = [seen.body for seen in server.seen if seen.id == "r3"]
    assert [body["routing"]["policy"] for body in sent] == ["fast", "slow", "fast", "slow"]
    # Prompts differ between runs, their lengths do not.
    texts = [body["messages"][0]["content"] for body in sent]
    assert len(set(texts)) == 4
    assert {len(text) for text in texts} == {80}
    assert {body["vllm_xargs"]["emulate_output_tokens"] for body in sent} == {3}
    check_page((tmp_path / "out/report.html").read_text())


@pytest.mark.usefixtures("undrawn")
def test_the_record_says_what_a_request_without_an_answer_cost_and_missed(
    server: SseServer, words: tuple[str, ...], tmp_path: Path
) -> None:
    """`r3` has no SLO of its own: that of its model holds."""
    server.behaviours["r3"] = "error"
    spent = {"cost_usd": 0.003, "output_tokens": 1, "attempts": [{}, {}], "instance": "box-lost"}
    server.records["own-r3"] = {"outcome": "backend_error", "slo_met": False} | spent
    assert run(*words) == 0
    for one in orjson.loads((tmp_path / "out/report.json").read_bytes())["runs"]:
        assert (one["offered_with_slo"], one["retried"], one["output_tokens"]) == (5, 1, 22)
        assert one["cost_usd"] == pytest.approx(0.010)
        assert one["cost_usd_per_request"] == pytest.approx(0.010 / 7)


@pytest.mark.usefixtures("undrawn")
def test_the_scores_of_a_gateway_s_judge_are_its_quality(
    server: SseServer,
    words: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    headway: Headway,
) -> None:
    monkeypatch.setattr("benchmarks.compare.gateway._JUDGE_PAUSE_S", 0.01)
    server.behaviours["r2"] = "429"
    server.ratings = {"own-r0": 0.25, "own-r1": 1.0}
    assert re.search(r"^fast .* 0\.625$", headway.out("compare", *words), re.MULTILINE)
    report = orjson.loads((tmp_path / "out/report.json").read_bytes())
    assert [(one["quality_mean"], one["ratings"]) for one in report["runs"]] == [(0.625, 2)] * 2
    assert "Quality is the mean score of the gateway's judge, of 4 answers in all runs." in report["notes"]
    assert len(server.looked_up) == 16


def check_page(page: str) -> None:
    """It stands alone, is readable on dark, and nothing of the workload's text gets in unescaped."""
    tags = assert_stands_alone(page).tags
    assert tags.count("svg") >= 5
    assert "table" in tags
    assert "currentColor" in page
    assert "test &lt;set&gt;" in page


@pytest.mark.usefixtures("undrawn")
def test_an_interrupted_comparison_goes_on_where_it_was(
    server: SseServer, words: tuple[str, ...], tmp_path: Path, headway: Headway
) -> None:
    assert headway.json("compare", *words)["complete"]
    first = orjson.loads((tmp_path / "out/report.json").read_bytes())
    (tmp_path / "out/runs/slow@own.json").unlink()
    server.seen.clear()
    assert run(*words) == 0
    again = orjson.loads((tmp_path / "out/report.json").read_bytes())
    assert {seen.body["routing"]["policy"] for seen in server.seen} == {"slow"}
    assert again["runs"][0] == first["runs"][0]
    assert again["complete"]
    server.seen.clear()
    assert run(*words) == 0
    assert server.seen == []  # all there: nothing is sent
    assert "made with another speed" in headway.refusal("compare", *words, "--speed", "2")


def test_a_refused_policy_is_told_before_the_run(
    server: SseServer, words: tuple[str, ...], tmp_path: Path, headway: Headway
) -> None:
    server.known_policies = frozenset({"fast"})
    assert "refuses policy 'slow': HTTP 400, unknown policy slow" in headway.refusal("compare", *words)
    report = orjson.loads((tmp_path / "out/report.json").read_bytes())
    assert [one["name"] for one in report["runs"]] == ["fast@own"]  # what was finished is kept
    assert not report["complete"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"--url": None}, "give --workload and --fleet, or --scenario, or --url"),
        ({"--policies": None}, "--policies is needed"),
        ({"--policies": "a,a"}, "different names"),
        ({"--rates": "1,x"}, "--rates 1,x"),
        ({"--rates": "0"}, "--rates 0"),
        ({"--rates": "1,1e-9"}, "--rates: the requests arrive over "),
        ({"--workload": "gone.jsonl"}, "cannot read"),
        ({"--url": "http://127.0.0.1:1"}, "no server at http://127.0.0.1:1"),
        ({"--warmup": "-1"}, "--warmup"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    workload: Path,
    tmp_path: Path,
    headway: Headway,
    change: dict[str, str | None],
    reason: str,
) -> None:
    options: dict[str, str | None] = {
        "--url": "http://127.0.0.1:1",
        "--policies": "a",
        "--workload": str(workload),
        "--out": str(tmp_path / "out"),
        **change,
    }
    assert reason in headway.refusal(
        "compare",
        *(word for name, value in options.items() if value is not None for word in (name, value)),
    )
