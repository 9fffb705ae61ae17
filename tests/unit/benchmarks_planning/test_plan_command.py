"""`headway plan` from files to a fleet file, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from backends.engine import profile
from benchmarks.planning.drawing import plan_svg
from benchmarks.planning.report import table
from benchmarks.simulator import open_fleet
from router import cli
from router.config import load
from tests.commands import Headway
from tests.unit.benchmarks_planning.made import plan_files

MODELS = {"llama-3.2-1b", "llama-3.2-3b"}
SLO = ("--slo", "ttft_ms=1500,tpot_ms=80")
BRIEF = ("--limit", "60", "--time-s", "1", "--jobs", "1")


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, ...]:
    pool = "{gpu: l4, gpus: 2, node_gpus: 2, usd_per_hour: 0.7}"
    return plan_files(tmp_path, pool, "{name: llama-3.2-1b}, {name: llama-3.2-3b}")


def test_a_plan_from_rates_to_a_fleet_file(files: tuple[str, ...], tmp_path: Path, headway: Headway) -> None:
    out = tmp_path / "plan"
    rates = ("--rates", "llama-3.2-1b=1,llama-3.2-3b=0.5")
    data = headway.json("plan", *files, *rates, *SLO, *BRIEF, "--out", out)
    assert data == orjson.loads((out / "plan.json").read_bytes())
    best = data["plans"][0]
    assert {model for group in best["groups"] for model in group["models"]} == MODELS
    assert best["usd_per_hour"] == pytest.approx(1.4)
    assert best["low"] <= best["attainment"] <= best["high"] <= 1
    assert best["attainment"] > 0.9
    assert data["bound"] == {"attainment": 1.0}
    assert (out / "plan.svg").read_text(encoding="utf-8") == plan_svg(data)
    config = load(out / "fleet.yaml")
    assert open_fleet(config).names == [each.name for each in config.instances]
    assert [each.profile for each in config.instances] == [group["profile"] for group in best["groups"]]
    assert config.defaults.policy == "latency"


def test_a_model_of_a_low_rate_has_no_request_in_some_draws(files: tuple[str, ...], headway: Headway) -> None:
    rates = ("--rates", "llama-3.2-1b=20,llama-3.2-3b=0.01")
    best = headway.json("plan", *files, *rates, *SLO, *BRIEF)["plans"][0]
    assert {model for group in best["groups"] for model in group["models"]} == MODELS
    said = headway.refusal("plan", *files, "--rates", "llama-3.2-1b=1", *SLO, *BRIEF, "--limit", "1")
    assert "--rates: a draw has no request: give a larger --limit" in said


def test_a_workload_file_is_planned_too(files: tuple[str, ...], tmp_path: Path, headway: Headway) -> None:
    workload = str(tmp_path / "w.jsonl")
    built = ["workload", "build", "poisson", "--rate", "2", "--limit", "60", "--out", workload, *SLO]
    assert cli.main(built) == 0
    shown = headway.out("plan", *files, "--workload", workload, *BRIEF)
    assert "bound: no placement attains more than 100.0%" in shown
    assert "llama-3.2-1b" in shown


def test_a_workload_beyond_every_context_is_refused(tmp_path: Path, headway: Headway) -> None:
    files = plan_files(tmp_path, "{gpu: l4, gpus: 1}", "{name: llama-3.2-1b, context_tokens: 100}")
    rates = ("--rates", "llama-3.2-1b=1")
    assert "longer than the context" in headway.refusal("plan", *files, *rates, *SLO, *BRIEF)


@pytest.mark.parametrize(
    ("models", "limit"),
    [
        (
            "models: [{name: llama-3.1-70b}]",
            "needs 71.4 GB of each GPU in a group of 2, l4 has 19.7 usable of 24.15",
        ),
        ("models: [{name: llama-3.2-1b, weights: bf16}]", "bf16 needs compute capability 8.0, t4 has 7.5"),
    ],
)
def test_the_infeasible_is_explained(
    files: tuple[str, ...], tmp_path: Path, headway: Headway, models: str, limit: str
) -> None:
    (tmp_path / "models.yaml").write_text(models)
    if "bf16" in models:
        (tmp_path / "cluster.yaml").write_text("pools: [{gpu: t4, gpus: 1}]")
    name = models.partition("name: ")[2].partition("}")[0].partition(",")[0]
    said = headway.err("plan", *files, "--rates", f"{name}=1", *SLO, *BRIEF, code=1)
    assert limit in said
    assert "enough would be" in said
    assert ("vLLM 90% of a GPU's memory less 2 GB" in said) == ("usable" in limit)


@pytest.mark.parametrize(
    ("measure", "value", "words"),
    [
        ("multiple", None, "bound: none; there is GPU time to keep 95% of these requests at any load"),
        ("multiple", 2.5, "bound: no placement keeps 95% at more than 2.50 times the load"),
        ("usd_per_hour", None, "bound: no placement keeps 95%"),
        ("usd_per_hour", 1.4, "bound: no placement keeps 95% for less than 1.40 USD an hour"),
    ],
)
def test_the_bound_in_words(measure: str, value: float | None, words: str) -> None:
    assert words in table(planned({measure: value}, span_s=60.0))


def test_a_plan_for_less_time_than_a_fleet_needs_to_fill_up_warns() -> None:
    warned = [line for line in table(planned({"multiple": None}, span_s=3.3)) if "warning" in line]
    assert len(warned) == 1
    assert "within 3.3 s" in warned[0]
    assert not any("warning" in line for line in table(planned({"multiple": None}, span_s=30.0)))


def test_a_best_plan_below_the_target_warns() -> None:
    data = planned({"usd_per_hour": 1.4}, span_s=60.0)
    assert not any("warning" in line for line in table(data))
    data["plans"][0]["attainment"] = 0.949
    assert "warning: no plan was found that keeps 95%" in table(data)
    assert not any("warning" in line for line in table(data | {"objective": "attainment"}))


def planned(bound: dict[str, float | None], *, span_s: float) -> dict[str, Any]:
    """The data of a plan."""
    plan = {
        "attainment": 1.0,
        "low": 0.9,
        "high": 1.0,
        "ttft_s_p95": 0.5,
        "usd_per_hour": None,
        "multiple": 1.0,
        "groups": [],
    }
    return {
        "policy": "latency",
        "objective": "cost",
        "target": 0.95,
        "bound": bound,
        "span_s": span_s,
        "plans": [plan],
        "present": None,
        "what_if": [],
    }


def test_a_budget_that_is_too_small(files: tuple[str, ...], headway: Headway) -> None:
    line = [*files, "--rates", "llama-3.2-1b=1", *SLO, *BRIEF, "--budget-usd-per-hour", "0.7"]
    said = headway.err("plan", *line, code=1)
    assert (
        said
        == "headway plan: no placement of all models costs at most 0.7 USD an hour; the cheapest costs 1.4\n"
    )


def test_the_budget_may_be_the_price_of_the_cheapest_placement(tmp_path: Path, headway: Headway) -> None:
    """Models of unlike size that all need the GPUs of one pool: the search for the most attainment does not pass by it."""
    pools = "{gpu: t4, gpus: 4, node_gpus: 1, usd_per_hour: 2}, {gpu: a100-80g, gpus: 8, usd_per_hour: 0.5}"
    rows = [f"{{name: {name}, weights: q4}}" for name in ("llama-3.1-70b", "qwen2.5-72b", "qwen2.5-32b")]
    rates = "llama-3.1-70b=0.1,qwen2.5-72b=0.1,qwen2.5-32b=1"
    line = ["plan", *plan_files(tmp_path, pools, ", ".join(rows)), "--rates", rates, *SLO, *BRIEF]
    assert headway.err(*line, "--budget-usd-per-hour", "1.4", code=1).endswith("; the cheapest costs 1.5\n")
    assert headway.json(*line, "--budget-usd-per-hour", "1.5")["plans"][0]["usd_per_hour"] == 1.5


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (["--rates", "gpt=1", *SLO], "--rates: unknown model 'gpt' (known: llama-3.2-1b, llama-3.2-3b)"),
        (["--rates", "llama-3.2-1b=0", *SLO], "--rates: llama-3.2-1b=0 is not above 0"),
        (["--rates", "llama-3.2-1b=-2", *SLO], "--rates: llama-3.2-1b=-2 is below 0"),
        ([*SLO], "give one of --workload, --rates, --from-store and --batch"),
        (["--rates", "llama-3.2-1b=1"], "no request has an SLO: give --slo"),
        (["--rates", "llama-3.2-1b=1", "--policy", "best"], "unknown policy 'best'"),
        (["--rates", "llama-3.2-1b=1", "--target", "2"], "--target: must be at most 1"),
        (["--rates", "llama-3.2-1b=1e-9", *SLO], "--rates: the requests arrive over 2"),
        (["--rates", "llama-3.2-1b=5e-324", *SLO], "--rates: nothing can be planned for 4.94066e-324"),
        (
            ["--rates", "llama-3.2-1b=1e308,llama-3.2-3b=1e308", *SLO],
            "--rates: nothing can be planned for inf",
        ),
        (["--rates", "llama-3.2-1b=1", *SLO, "--limit", "2147483647"], "--limit: at most 5,000,000 requests"),
        (["--rates", "llama-3.2-1b=1", *SLO, "--jobs", "2147483647"], "--jobs: must be at most 1000"),
    ],
)
def test_bad_input_is_one_line(
    files: tuple[str, ...], headway: Headway, line: list[str], message: str
) -> None:
    said = headway.refusal("plan", *files, *line)
    assert said.count("\n") == 1
    assert message in said


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pools: [{gpu: b200, gpus: 1}]", "pools[0].gpu: has no engine profiles; known: a100-80g"),
        (
            "pools: [{gpu: l4, gpus: 1, node_gpus: 3}]",
            "pools[0].node_gpus: must be 1, 2, 4, 8 or 16 (given: 3)",
        ),
        ("pools: [{gpu: l4, gpus: 1}, {gpu: l4, gpus: 2}]", "two pools differ in their number of GPUs only"),
        ("pools: [{gpu: l4, gpus: 1}, {gpu: l4, gpus: 1, node_gpus: 16}]", "nodes of 8 and more are alike"),
        (
            "pools: [{gpu: l4, gpus: 1, usd_per_hour: 1.0}, {gpu: t4, gpus: 2}]",
            "give it for all pools, or for none",
        ),
        ("pools: []", "pools"),
    ],
)
def test_a_wrong_cluster_file(
    files: tuple[str, ...], tmp_path: Path, headway: Headway, text: str, message: str
) -> None:
    (tmp_path / "cluster.yaml").write_text(text)
    assert message in headway.refusal("plan", *files, "--rates", "llama-3.2-1b=1", *SLO)


def test_an_out_that_cannot_be_written_is_refused_before_the_search(
    files: tuple[str, ...],
    tmp_path: Path,
    headway: Headway,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("benchmarks.planning.command.inputs", None)  # what would be called next
    line = [*files, "--rates", "llama-3.2-1b=1", *SLO, "--out"]
    assert "--out" in headway.refusal("plan", *line, tmp_path / "models.yaml")
    assert "cannot write" in headway.refusal("plan", *line, tmp_path / "models.yaml" / "plan")


def test_models_that_do_not_go_together_are_refused_with_the_name_of_their_file(
    files: tuple[str, ...], tmp_path: Path, headway: Headway
) -> None:
    (tmp_path / "models.yaml").write_text(
        "models: [{name: llama-3.2-1b, aliases: [small]}, {name: llama-3.2-3b, aliases: [small]}]"
    )
    said = headway.refusal("plan", *files, "--rates", "llama-3.2-1b=1", *SLO)
    reason = "models[1].aliases[0]: alias 'small' already stands for 'llama-3.2-1b'"
    assert said == f"headway: {tmp_path / 'models.yaml'}: {reason}\n"


def test_a_batch_gets_unlike_groups_and_a_fleet_file_of_them(tmp_path: Path, headway: Headway) -> None:
    line = batch_files(tmp_path, "{gpu: a100-80g, gpus: 16, node_gpus: 8}", [100_000, *[500] * 400])
    data = headway.json("plan", *line, "--out", tmp_path / "plan")
    assert data == orjson.loads((tmp_path / "plan" / "plan.json").read_bytes())
    tokens = [each for group in data["groups"] for each in group["tokens"]]
    assert sorted(tokens) == [500] * 400 + [100_000]
    assert {group["tensor"] for group in data["groups"]} == {1, 8}
    assert data["bound_s"] <= data["makespan_s"] < min(each["makespan_s"] for each in data["equal_groups"])
    config = load(tmp_path / "plan" / "fleet.yaml")
    assert len(config.instances) == len(data["groups"])
    assert config.defaults.policy == "length_groups"

    head, *rows = headway.out("plan", *line).splitlines()
    assert head.startswith("401 prompts of 300000 tokens for llama-3.2-1b on 16 x a100-80g: prefilled in ")
    assert [row.split()[0] for row in rows if row] == ["tensor", "8", "1", "equal", *["tensor"] * 4]


def test_a_prompt_goes_only_where_the_cache_holds_it(tmp_path: Path, headway: Headway) -> None:
    pool = "{gpu: l4, gpus: 8, node_gpus: 8}"
    one, two = (profile(f"llama-3.2-1b@{gpus}l4").kv_capacity_tokens for gpus in ("", "2x"))
    line = batch_files(tmp_path, pool, [one, 100, 100, 100])
    data = headway.json("plan", *line)
    assert one < two
    assert all(group["tensor"] > 1 for group in data["groups"] if one in group["tokens"])
    assert [each["tensor"] for each in data["equal_groups"]] == [2, 4, 8]


@pytest.mark.parametrize(
    ("pools", "tokens", "message"),
    [
        ("{gpu: l4, gpus: 1}, {gpu: t4, gpus: 1}", [100], "--batch is for one model and one pool of GPUs"),
        ("{gpu: l4, gpus: 1}", [], "tokens"),
        ("{gpu: l4, gpus: 1}", [0], "tokens"),
    ],
)
def test_a_batch_that_cannot_be_planned_is_refused(
    pools: str, tokens: list[int], message: str, tmp_path: Path, headway: Headway
) -> None:
    assert message in headway.refusal("plan", *batch_files(tmp_path, pools, tokens))


def test_a_batch_has_no_prompt_beyond_the_context(tmp_path: Path, headway: Headway) -> None:
    line = batch_files(tmp_path, "{gpu: l4, gpus: 1}", [500, 8192], ", context_tokens: 8192")
    assert "llama-3.2-1b takes prompts of less than 8192 tokens, not 8192" in headway.refusal("plan", *line)


def test_a_batch_that_no_group_holds_says_what_would_be_enough(tmp_path: Path, headway: Headway) -> None:
    def changes_of(pool: str, *more: str) -> list[str]:
        head, reason, *_ = headway.err(
            "plan", *batch_files(tmp_path, pool, [10**6], *more), code=1
        ).splitlines()
        assert head == "headway plan: no group prefills a prompt of 1000000 tokens"
        return reason.partition("; enough would be: ")[2].split("; or ")

    assert "1 more l4" in changes_of("{gpu: l4, gpus: 1}")
    assert cli.main(["plan", *batch_files(tmp_path, "{gpu: l4, gpus: 2}", [10**6])]) == 0
    # Pipeline stages do not count, so GPUs in other nodes do not help.
    assert not any("more" in each for each in changes_of("{gpu: l4, gpus: 1, node_gpus: 1}"))
    # Those of llama.cpp run on one GPU each.
    changes = changes_of("{gpu: t4, gpus: 1}", ", weights: bf16")
    assert changes == ["fp16 weights with 3 more t4", "fp8 weights with 3 more t4"]


def test_a_batch_takes_no_option_that_it_would_not_heed(tmp_path: Path, headway: Headway) -> None:
    line = batch_files(tmp_path, "{gpu: l4, gpus: 1}", [500])
    for name, value in (
        ("--budget-usd-per-hour", "1"),
        ("--what-if", "+1xl4"),
        ("--objective", "cost"),
        ("--limit", "5"),
        ("--jobs", "1"),
        ("--config", "fleet.yaml"),
        SLO,
    ):
        said = headway.refusal("plan", *line, name, value)
        assert said == f"headway plan: --batch cannot be used with {name}\n"


def batch_files(folder: Path, pools: str, tokens: list[int], more: str = "") -> tuple[str, ...]:
    files = {
        "cluster": f"pools: [{pools}]",
        "models": f"models: [{{name: llama-3.2-1b{more}}}]",
        "batch": f"tokens: {tokens}",
    }
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)
    return tuple(part for name in files for part in (f"--{name}", str(folder / f"{name}.yaml")))
