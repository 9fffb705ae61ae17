"""`headway workload build` and `show`, as they are typed."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import orjson
import pytest

from benchmarks.measures import mean_rate
from benchmarks.workloads.build import build, plan
from benchmarks.workloads.format import WorkloadError, WorkloadRequest, read, read_header, write
from benchmarks.workloads.options import BuildOptions
from benchmarks.workloads.restrict import Bounds
from router.cli import main
from tests.commands import Headway


def run(*words: str) -> int:
    return main(["workload", *words])


def built(folder: Path, *words: str) -> list[WorkloadRequest]:
    """What `headway workload build` writes to `w.jsonl`."""
    assert run("build", *words, "--out", str(folder / "w.jsonl")) == 0
    return list(read(folder / "w.jsonl"))


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        + "".join(
            f"2023-11-16 18:{index // 60:02}:{index % 60:02}.0000000,{100 + index},20\n"
            for index in range(120)
        )
    )
    return path


def test_build_and_show(tmp_path: Path, headway: Headway) -> None:
    out = tmp_path / "w.jsonl"
    words = ("--rate", "5", "--limit", "300", "--cv", "2", "--slo", "ttft_ms=900", "--seed", "4")
    assert "requests   300" in headway.out("workload", "build", "gamma", "--out", out, *words)
    first = out.read_bytes()
    assert run("build", "gamma", "--out", str(out), *words) == 0
    assert out.read_bytes() == first  # the seed decides everything
    assert run("build", "gamma", "--out", str(tmp_path / "other.jsonl"), *words[:-1], "5") == 0
    assert list(read(tmp_path / "other.jsonl")) != list(read(out))
    told = headway.json("workload", "show", out, "--out", tmp_path / "plot.svg")
    assert told["requests"] == told["with_slo"] == 300
    assert told["gap_cv"] == pytest.approx(2.0, rel=0.3)
    assert "<svg" in (tmp_path / "plot.svg").read_text()


def test_slices_and_rates(tmp_path: Path, trace: Path) -> None:
    words = ("--file", str(trace), "--start", "30", "--duration", "60", "--limit", "50", "--rate", "2")
    requests = built(tmp_path, "azure_conv", *words)
    assert [request.prompt_tokens for request in requests] == list(range(130, 180))
    assert requests[0].arrival_s == 0.0
    assert mean_rate([request.arrival_s for request in requests]) == pytest.approx(2.0)
    requests = built(tmp_path, "azure_conv", "--file", str(trace), "--rate-scale", "4")
    assert mean_rate([request.arrival_s for request in requests]) == pytest.approx(4.0)
    header = read_header(tmp_path / "w.jsonl")
    assert header.details["files"]["azure_conv"]["route"] == "file"
    assert len(header.details["files"]["azure_conv"]["sha256"]["trace.csv"]) == 64


def test_a_trace_out_of_order_is_sorted(tmp_path: Path) -> None:
    rows = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    rows += [
        f"2023-11-16 18:15:{at},{tokens},10" for at, tokens in ((40, 100), (50, 200), (45, 300), (39, 400))
    ]
    (tmp_path / "trace.csv").write_text("\n".join(rows) + "\n")
    requests = built(tmp_path, "azure_conv", "--file", str(tmp_path / "trace.csv"))
    found = [(request.arrival_s, request.prompt_tokens) for request in requests]
    assert found == [(0.0, 400), (1.0, 100), (6.0, 300), (11.0, 200)]


def test_the_longest_drawn_lengths_can_be_written(tmp_path: Path) -> None:
    words = ("--limit", "50", "--prompt-median", "2e9", "--prompt-sigma", "10", "--output-sigma", "10")
    requests = built(tmp_path, "poisson", *words)
    assert max(request.prompt_tokens for request in requests) == 2**31 - 1


def test_max_tokens_tells_nothing_of_the_answer_unless_asked(trace: Path) -> None:
    files = {"azure_conv": [trace]}
    _, auto = build("azure_conv", BuildOptions(files=files), {})
    assert {request.max_tokens for request in auto} == {32}
    _, exact = build("azure_conv", BuildOptions(files=files, max_tokens="exact"), {})
    assert {request.max_tokens for request in exact} == {20}
    _, bounded = build("azure_conv", BuildOptions(files=files, bounds=Bounds(max_output_tokens=10)), {})
    assert {(request.max_tokens, request.output_tokens) for request in bounded} == {(10, 10)}


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("nothing",), "unknown workload 'nothing'"),
        (("poisson", "--rate", "0"), "--rate: must be above 0"),
        (("poisson", "--rate", "1", "--rate-scale", "2"), "cannot both"),
        (("poisson", "--arrivals", "gamma"), "leave out --arrivals"),
        (("poisson", "--file", "x"), "reads no file"),
        (("poisson", "--max-tokens", "many"), "--max-tokens: expected"),
        (("poisson", "--max-tokens", "2147483648"), "--max-tokens: must be at most 2147483647"),
        (("poisson", "--max-output-tokens", "2147483648"), "--max-output-tokens: must be at most 2147483647"),
        (("poisson", "--max-prompt-tokens", "0"), "--max-prompt-tokens: must be at least 1"),
        (("poisson", "--slo-mix", "tight=2"), "add up to 2"),
        (("poisson", "--length-wins", "prompts"), "needs --prompts"),
        (("poisson", "--mix", "gamma"), "--mix: expected NAME=NUMBER"),
        (("poisson", "--mix", "gamma=-1"), "--mix: gamma=-1 is below 0"),
        (("poisson", "--mix", "gamma=2"), "must add up to 1"),
        (("poisson", "--mix", "nothing=0.5"), "unknown workload 'nothing'"),
        (("poisson", "--budget-mix", "tight=1"), "needs --budget-tariff"),
        (("poisson", "--prompts", "nothing"), "unknown set 'nothing'"),
        (("poisson", "--limit", "5", "--min-prompt-tokens", "900000"), "no request is left"),
        (("poisson", "--rate", "1", "--duration", "0.0001"), "no arrival in that window"),
        (("gamma", "--cv", "0"), "--cv: must be above 0 (given: 0)"),
        (("gamma", "--cv", "inf"), "--cv: must be a finite number"),
        (("poisson", "--cv", "2"), "--cv: needs gamma arrivals"),
        (("gamma", "--period", "60"), "--period: needs daycycle arrivals"),
        (("poisson", "--depth", "0.1"), "--depth: needs daycycle arrivals"),
        (("azure_conv", "--file", "{trace}", "--turns", "2"), "--turns: needs a generator"),
        (
            ("poisson", "--quality"),
            "--quality: needs a set with answers of models (alpaca_eval, zeroeval",
        ),
        (("poisson", "--models", "a=b"), "--models: needs a set with answers of models"),
        (("poisson", "--complete", "--mix", "gamma=0.5"), "--complete: needs a set"),
        (("poisson", "--native-lengths"), "--native-lengths: needs a set"),
        (
            ("azure_conv", "--file", "{one}", "--mix", "poisson=0.5"),
            "--mix needs at least two different arrival",
        ),
        (("daycycle", "--depth", "1.5"), "--depth: must be at most 1"),
        (("poisson", "--turns", "0"), "--turns: must be at least 1"),
        (("poisson", "--start", "-1"), "--start: must be at least 0"),
        (("gamma", "--start", "1e12", "--limit", "9"), "--start: about 1,000,000,000,000 requests of gamma"),
        (("poisson", "--duration", "1e12"), "--duration: about 1,000,000,000,000 requests of poisson"),
        (("poisson", "--prompt-sigma", "20"), "--prompt-sigma: must be at most 10"),
        (("poisson", "--prompt-median", "1e300"), "--prompt-median: must be at most 2147483647"),
        (("poisson", "--on-miss", "reject"), "--on-miss: needs --slo or --slo-mix"),
        (("poisson", "--slo-class", "x=2"), "--slo-class: needs --slo-mix"),
        (("poisson", "--budget-tariff", "1,2"), "--budget-tariff: needs --budget-mix"),
        (("poisson", "--prompt-median", "0.5"), "--prompt-median: must be at least 1"),
        (("azure_conv", "--file", "{trace}", "--start", "900"), "the trace ends at 119 s"),
        (
            ("azure_conv", "--file", "{trace}", "--prompts", "sharegpt", "--file", "sharegpt={trace}"),
            "column",
        ),
        (("azure_conv", "--file", "zeroeval={trace}"), "not part of this workload"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    tmp_path: Path, trace: Path, headway: Headway, words: tuple[str, ...], reason: str
) -> None:
    (tmp_path / "one.csv").write_text("".join(trace.read_text().splitlines(keepends=True)[:2]))
    words = tuple(
        word.replace("{trace}", str(trace)).replace("{one}", str(tmp_path / "one.csv")) for word in words
    )
    assert reason in headway.refusal("workload", "build", *words, "--out", tmp_path / "w.jsonl")
    assert not (tmp_path / "w.jsonl").exists()


def test_show_of_no_workload(tmp_path: Path, headway: Headway) -> None:
    assert "cannot read" in headway.refusal("workload", "show", tmp_path / "nothing")


def test_sets_without_texts_cannot_give_prompts(trace: Path) -> None:
    with pytest.raises(WorkloadError, match="this set has no texts"):
        build("azure_conv", BuildOptions(files={"azure_conv": [trace]}, prompts="azure_conv"), {})


def test_a_mix_as_it_is_typed(tmp_path: Path, trace: Path, headway: Headway) -> None:
    out = tmp_path / "w.jsonl"
    words = ("--mix", "azure_conv=0.25,gamma=0.25", "--rate", "4", "--file", f"azure_conv={trace}")
    budgets = ("--budget-mix", "tight=0.5,none=0.5", "--budget-tariff", "0.1,0.4")
    told = headway.json("workload", "build", "poisson", "--out", out, "--cv", "1", *words, *budgets)
    assert set(told["sources"]) == {"poisson", "azure_conv", "gamma"}
    assert told["header"]["details"]["mix"]["poisson"]["share"] == pytest.approx(0.5)
    assert 0 < told["with_budget"] < told["requests"]
    assert told["requests"] == len(list(read(out)))


def test_several_names_of_a_model(tmp_path: Path) -> None:
    answers = tmp_path / "model_outputs.json"
    answers.write_bytes(
        orjson.dumps([{"instruction": "Why?", "output": "a" * 439, "generator": "b", "dataset": "d"}])
    )
    requests = built(tmp_path, "alpaca_eval", "--file", str(answers), "--models", "m=a|b")
    assert [request.output_tokens for request in requests] == [{"m": 100}]


def test_a_long_workload_is_not_held_in_memory(tmp_path: Path) -> None:
    tracemalloc.start()
    try:
        header, stream = plan("daycycle", BuildOptions(rate_per_s=12, limit=8000), {})
        write(tmp_path / "w.jsonl", header, stream())
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert header.requests == 8000
    assert peak_bytes < 8000 * 50  # a request is some 300 bytes
