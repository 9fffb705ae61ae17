"""The harness of pickers on made data, where what must come out can be said beforehand."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import yaml

from benchmarks.evaluate.figures import Resampled
from benchmarks.pickers import judge as judging
from benchmarks.pickers import page, second_look
from benchmarks.pickers import trained as training
from benchmarks.pickers.__main__ import looks_of, main, text_of
from benchmarks.pickers.cases import CASES, Case, Table, part, read_tariff, table_of
from benchmarks.pickers.figures import (
    PickerResult,
    area,
    cost_at,
    priced_frontier,
    result_of,
    savings,
    savings_at,
    true_frontier,
    verdict,
)
from benchmarks.pickers.judge import Fold, brought, judge, played
from benchmarks.pickers.replay import SimulatedCheck, orders, replay
from benchmarks.pickers.second_look import second_looks
from benchmarks.pickers.trained import Predicted, artifacts_of, fold_of, predict, splits, trained
from policies import POLICIES, PolicySettings
from policies.lower_hull import lower_hull
from predictors.learned.artifact import SHIPPED
from predictors.learned.text import prompt_features
from predictors.training.dataset import Answer, Dataset, DatasetError, Prompt
from router.core.types import AnswerCheck, Prediction, Price, Targets

SMALL = Case(
    "made",
    "made",
    {"small-7b": "Small-7B", "large-70b": "Large-70B"},
    {"small-7b": Price(0.1, 0.1), "large-70b": Price(1.0, 1.0)},
    instruction_tokens=10,
)
ROOT = Path(__file__).parents[3]


def made(count: int = 120, seed: int = 1) -> Dataset:
    """Every other question is hard; the small model fails those, and each model fails a tenth of all."""
    rng = Random(seed)
    prompts, answers = [], []
    for at in range(count):
        hard = at % 2 == 1
        words = " ".join(f"w{rng.randrange(40)}" for _ in range(6))
        text = f"{'prove the theorem of' if hard else 'add the numbers in'} {words}"
        prompts.append(
            Prompt(f"p{at}", f"g{at // 2}", "made", prompt_features(text), "hard" if hard else "easy", text)
        )
        for model, wrong in (("Small-7B", 0.95 if hard else 0.1), ("Large-70B", 0.1)):
            right = float(rng.random() >= wrong)
            answers.append(Answer(f"p{at}", model, None, 100 + at % 7, False, right, "correct"))
    return Dataset(tuple(prompts), tuple(answers))


def halves(data: Dataset) -> tuple[Dataset, Dataset]:
    """What is learned from and what is judged."""
    folds = fold_of(data, 2, 1)
    return tuple(data.keep(prompt=lambda each, part=part: folds[each.id] == part) for part in (0, 1))


def known(table: Table, sharp: float = 0.9) -> Predicted:
    """Predictions that know how hard a prompt is, and its true cost."""
    rows = []
    for at in range(len(table.prompts)):
        hard = table.tasks[at] == "hard"
        quality = (1.0 - sharp if hard else 0.9, 0.9)
        rows.append(
            [
                Prediction(quality=each, cost_usd=usd, output_tokens_mean=100.0, e2e_s_mean=1.0)
                for each, usd in zip(quality, table.cost_usd[at].tolist(), strict=True)
            ]
        )
    return Predicted(rows, {})


def blind(table: Table) -> Predicted:
    """Predictions that do not know how hard a prompt is."""
    usual = (0.5, 0.9)
    rows = [
        [replace(each, quality=quality) for each, quality in zip(row, usual, strict=True)]
        for row in known(table).predictions
    ]
    return Predicted(rows, {})


def fold(data: Dataset) -> Fold:
    table = table_of(SMALL, data)
    hard = (table.tasks == "hard")[:, None]
    of_task = np.where(hard, [0.05, 0.9], [0.9, 0.89])
    return Fold(table, known(table), table.quality.mean(axis=0), (of_task, table.cost_usd), of_task)


# --- tables -----------------------------------------------------------------------------------------------
def test_table_has_the_prompts_that_all_models_answered_with_what_they_cost() -> None:
    data = made(6)
    answers = tuple(each for each in data.answers if (each.prompt, each.model) != ("p2", "Large-70B"))
    table = table_of(SMALL, Dataset(data.prompts, answers))
    assert [prompt.id for prompt in table.prompts] == ["p0", "p1", "p3", "p4", "p5"]
    text = table.prompts[1].text or ""
    assert table.prompt_tokens[1] == round(len(text) / 4) + 10
    assert table.cost_usd[1, 1] == pytest.approx((table.prompt_tokens[1] + 101) * 1e-6)
    assert table.cost_usd[1, 0] == pytest.approx(table.cost_usd[1, 1] / 10)
    assert [prompt.id for prompt in part(table, [3, 0]).prompts] == ["p4", "p0"]


def test_a_case_that_nobody_answered_is_refused() -> None:
    with pytest.raises(DatasetError, match="no prompt was answered by all of small-7b, large-70b"):
        table_of(SMALL, Dataset(made(4).prompts, ()))


def test_a_set_without_lengths_has_the_one_that_is_assumed() -> None:
    data = made(4)
    answers = tuple(Answer(each.prompt, each.model, quality=each.quality) for each in data.answers)
    case = Case("made", "made", SMALL.models, SMALL.prices, tokens=300.0)
    assert (table_of(case, Dataset(data.prompts, answers)).output_tokens == 300.0).all()


def test_prices_of_the_first_tariff_are_those_of_the_scenario() -> None:
    fleet = yaml.safe_load((ROOT / "benchmarks/scenarios/two-families.fleet.yaml").read_text())
    for model in fleet["models"]:
        price = CASES["zeroeval/deepinfra"].prices[model["name"]]
        assert model["price"] == {
            "input_usd_per_mtok": price.input_usd_per_mtok,
            "output_usd_per_mtok": price.output_usd_per_mtok,
        }


def test_folds_hold_out_whole_groups() -> None:
    data = made(80)
    folds = fold_of(data, 4, 1)
    assert set(folds.values()) == {0, 1, 2, 3}
    by_group: dict[str, set[int]] = {}
    for prompt in data.prompts:
        by_group.setdefault(prompt.group, set()).add(folds[prompt.id])
    assert all(len(found) == 1 for found in by_group.values())


# --- replay -----------------------------------------------------------------------------------------------
def test_replay_tells_the_policy_what_the_scheduler_would() -> None:
    table = table_of(SMALL, made(20))
    said = known(table).predictions
    order = orders(20, 1)[0]
    assert sorted(order) == list(range(20))
    assert order != list(range(20))
    picks = replay(POLICIES["relevance"](PolicySettings()), table, said, order, 0).models
    assert (picks[table.tasks == "hard"] == 1).all()
    cheapest = replay(POLICIES["price"](PolicySettings()), table, said, order, 0)
    assert (cheapest.models == 0).all()
    assert not cheapest.checked.any()


def test_a_replaced_answer_is_paid_too() -> None:
    table = table_of(SMALL, made(300))
    said = blind(table).predictions
    check = AnswerCheck(4.0, Price(0.0, 1.0), 0, 1, 0.0)

    def score(row: int, model: int) -> float:
        return float(table.quality[row, model])

    order = orders(300, 1)[0]
    picks = replay(POLICIES["cost"](PolicySettings()), table, said, order, 0, SimulatedCheck(check, score))
    assert picks.replaced.sum() > 50
    assert (picks.models[picks.replaced] == 1).all()
    assert not table.quality[picks.replaced, 0].any()
    assert (picks.more_usd > 0.0).tolist() == picks.checked.tolist()
    both_usd = table.cost_usd[picks.replaced, 0] + 1e-6
    assert picks.more_usd[picks.replaced] == pytest.approx(both_usd)
    kept = picks.checked & ~picks.replaced
    assert picks.more_usd[kept] == pytest.approx(1e-6)


# --- figures ----------------------------------------------------------------------------------------------
def test_true_frontier_is_the_least_cost_of_every_quality() -> None:
    rng = np.random.default_rng(2)
    quality, cost = rng.random((3, 3)), rng.random((3, 3))
    points = true_frontier(quality, cost)
    grid = [
        (quality[[0, 1, 2], list(pick)].mean(), cost[[0, 1, 2], list(pick)].mean())
        for pick in np.ndindex(3, 3, 3)
    ]
    for target in np.linspace(points[0][0], points[-1][0], 7):
        best = lower_hull(grid)
        wanted = np.interp(target, [each for each, _ in best], [each for _, each in best])
        assert cost_at(points, float(target)) == pytest.approx(wanted)
    assert np.isnan(cost_at(points, points[-1][0] + 0.01))


def test_area_is_the_mean_quality_over_the_costs() -> None:
    assert area([(0.2, 1.0), (0.6, 3.0)], 1.0, 3.0) == pytest.approx(0.4, abs=1e-3)
    assert area([(0.2, 1.0), (0.6, 3.0), (0.6, 2.0)], 1.0, 3.0) == pytest.approx(0.5, abs=1e-3)


def test_savings_are_paired_over_groups() -> None:
    groups = np.array([f"g{at // 2}" for at in range(40)])
    best = PickerResult(np.ones(40), np.linspace(1.0, 5.0, 40))
    half = PickerResult(np.ones(40), best.cost_usd / 2)
    resampled = Resampled(groups)
    assert savings(resampled, half, best) == pytest.approx(0.5)  # in every resample
    assert resampled.means(best.cost_usd)[0] == pytest.approx(3.0)
    assert resampled.means(best.cost_usd)[1:].std() == pytest.approx(best.cost_usd.std() / 20**0.5, rel=0.2)


def test_savings_at_a_quality_mix_what_was_reached() -> None:
    best = PickerResult(np.ones(40), np.full(40, 4.0))
    worse = PickerResult(np.full(40, 0.5), np.full(40, 2.0))
    resampled = Resampled(np.arange(40))
    assert savings_at(resampled, [worse, best], best, 0.0) == pytest.approx(0.0)
    assert savings_at(resampled, [worse, best], best, 0.25) == pytest.approx(0.25)
    assert savings_at(resampled, [worse, best], best, 0.5) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("difference", "shown"),
    [
        ([0.1, 0.01, 0.2], "more"),
        ([-0.1, -0.2, -0.01], "less"),
        ([0.1, -0.01, 0.2], "no difference shown"),
        ([0.1, 0.0, 0.2], "no difference shown"),
    ],
)
def test_a_verdict_is_by_the_interval(difference: list[float], shown: str) -> None:
    assert verdict(difference) == shown


def test_a_fixed_price_on_what_is_true_of_each_task_reaches_the_frontier_of_tasks() -> None:
    one = fold(made(200))
    points = priced_frontier(one.table, one.predicted.quality, one.table.cost_usd)
    hard = one.table.tasks == "hard"
    picked = result_of(one.table, [np.where(hard, 1, 0)])
    assert cost_at(points, picked.point[0]) <= picked.point[1] + 1e-12


# --- the whole --------------------------------------------------------------------------------------------
def test_report_of_a_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "PICKERS", ("cost", "logistic_rr", "relevance", "price"))
    report = judge(SMALL, [fold(made(300, 1)), fold(made(300, 2))], 2, lambda line: None)
    cost, relevance = report["policies"]["cost"], report["policies"]["relevance"]
    assert report["prompts"] == 600
    assert relevance["above_best_single"][0] == pytest.approx(0.0, abs=0.03)
    # Half of the prompts can go to a model of a tenth of the price.
    assert cost["saving"][0] == pytest.approx(0.45, abs=0.06)
    assert cost["above_best_single"][0] == pytest.approx(0.0, abs=0.03)
    assert cost["saving"][1] <= cost["saving"][0] <= cost["saving"][2]
    bounds = report["bounds"]
    value, low, high = cost["saving_at_equal_quality"]
    assert low < value < high
    assert 0.0 < value < bounds["oracle"]["saving_at_equal_quality"] < 1.0
    # Without an estimator a picker knows no model from the other: it has only single models to mix.
    rival = report["policies"]["logistic_rr"]
    assert rival["ours_saves"] == "more"
    assert rival["ours_minus_its"][0] == pytest.approx(value - rival["saving_at_equal_quality"][0])
    assert bounds["oracle"]["area"] > cost["area"]
    assert bounds["fixed price, means of tasks"]["saving_at_equal_quality"] > 0.2
    assert report["relevance"]["best single model"]["verdict"] == "no difference shown"
    assert report["fixed"]["best single model"]["saving"] == pytest.approx([0.0, 0.0, 0.0])
    assert report["price"]["over_cheapest_tariff"][0] == pytest.approx(0.0)
    text = text_of(json.loads(json.dumps({"artifacts": "own", **report})))
    assert "made, artifacts own: 600 prompts" in text
    assert "chosen after looking" in text


def test_report_of_second_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who can tell good answers from poor ones saves, who cannot or is too dear does not."""
    checks = ((4.0, 4.0, 0.0), (4.0, 4.0, 2.0), (0.1, 0.1, 0.1))
    monkeypatch.setattr(second_look, "_SIMULATED", checks)
    monkeypatch.setattr(judging, "_SWEPT_SHARES", ())
    one = fold(made(160))
    one = replace(one, predicted=blind(one.table))
    report = second_looks(SMALL, [one], 1, lambda line: None)
    good, dear, poor, length = report["checks"]
    assert good["saves"] == "more"
    assert good["checked"] > good["replaced"] > 0.2
    assert (dear["checked"], poor["checked"]) == (0.0, 0.0)
    assert dear["more"] == [0.0, 0.0, 0.0]
    assert length["check"] == "its length"
    assert length["saves"] != "more"  # lengths say nothing here
    shown = json.loads(json.dumps({"artifacts": "own", **report}))
    assert "simulated, d' 4, assumed 4.00" in looks_of(shown)
    about = {"held_out": "folds", "parts": 1, "folds": 4, "seeds": 1, "seed": 1}
    assert "| simulated, d' 4 (AUC 1.00) | 2 |" in page.looks_of({**about, "cases": [shown]})


def test_targets_move_what_a_policy_takes() -> None:
    one = fold(made(300))
    low = brought([one], played("cost", [one], 1, Targets(quality=0.4))).point
    high = brought([one], played("cost", [one], 1, Targets(quality=0.85))).point
    assert low[0] < high[0]
    assert low[1] < high[1]


def test_predictors_are_trained_once_on_the_training_part_and_tell_hard_from_easy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "_KINDS", ("length", "relevance"))
    data = made(160)
    train, test = halves(data)
    without_lengths = Dataset(
        train.prompts,
        tuple(Answer(a.prompt, a.model, None, None, False, a.quality, "correct") for a in train.answers),
    )
    case = Case("made", "made", SMALL.models, SMALL.prices, tokens=50.0)
    told: list[str] = []
    folder = trained(without_lengths, tmp_path / "a", 1, told.append)
    assert any(line.startswith("relevance: ") for line in told)
    assert not (folder / "length.headway.npz").is_file()
    told.clear()
    trained(without_lengths, folder, 1, told.append)
    assert told == []
    table = table_of(case, test)
    asked = predict(folder, table_of(case, without_lengths), table)
    assert asked is not None
    hard = table.tasks == "hard"
    assert asked.quality[hard, 0].mean() < asked.quality[~hard, 0].mean() - 0.3
    assert asked.cost_usd == pytest.approx(table.cost_usd)
    strangers = replace(table, case=replace(case, models={"small-7b": "Small-7B", "stranger": "Large-70B"}))
    assert predict(folder, table, strangers) is None


def test_artifacts_learn_from_the_training_part_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learned: dict[str, set[str]] = {}

    def kept(data: Dataset, folder: Path, seed: int, progress: object) -> Path:
        learned[folder.name] = {each.id for each in data.prompts}
        return folder

    monkeypatch.setattr(training, "trained", kept)
    split = splits(made(40), None, 2, 1)[1]
    for who in ("own", "all", "shipped"):
        assert artifacts_of(who, split, "made", tmp_path, 1, lambda line: None).parent == tmp_path
    train = {each.id for each in split.train.prompts}
    # The shipped artifacts may learn from no such set.
    found = [(name.rpartition("-")[0], prompts) for name, prompts in learned.items()]
    assert found == [("made-2-1-1", train), ("all-2-1-1", train), ("shipped-2-1-1", set())]
    other = replace(split, train=split.train.keep(prompt=lambda each: each.id != min(train)))
    assert artifacts_of("all", other, "made", tmp_path, 1, print).name != list(learned)[1]
    assert train.isdisjoint(each.id for each in split.test.prompts)
    assert artifacts_of(str(tmp_path / "mine"), split, "made", tmp_path, 1, print) == tmp_path / "mine"


def test_a_test_set_is_apart_and_judges_the_shipped_artifacts_themselves(tmp_path: Path) -> None:
    data = made(40)
    train, test = halves(data)
    (split,) = splits(train, test, 4, 1)
    assert (split.train, split.test) == (train, test)
    assert artifacts_of("shipped", split, "made", tmp_path, 1, lambda line: None) == SHIPPED
    with pytest.raises(DatasetError, match="in the training part and in the test part"):
        splits(train, data, 4, 1)


def test_a_tariff_of_your_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    price = "input_usd_per_mtok: 1.0, output_usd_per_mtok: 2.0"
    path.write_text(f"set: zeroeval\nmodels:\n  small: {{published: Qwen2-7B-Instruct, {price}}}\n")
    case = read_tariff(path)
    assert (case.name, case.models) == ("zeroeval/mine", {"small": "Qwen2-7B-Instruct"})
    assert (case.prices, case.max_tokens) == ({"small": Price(1.0, 2.0)}, 4096)
    path.write_text("set: zeroeval\nmodels:\n  small: {published: Qwen2-7B-Instruct, price: 1}\n")
    with pytest.raises(DatasetError, match="no tariff"):
        read_tariff(path)
    for content in (b"set: another\nmodels: {}\n", b"", b"\xff\xfe"):
        path.write_bytes(content)
        with pytest.raises(DatasetError, match="no tariff"):
            read_tariff(path)


def test_artifacts_of_a_folder_need_a_test_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--out", str(tmp_path), "--data", str(tmp_path), "--artifacts", str(tmp_path)]) == 2
    assert "may have seen the data" in capsys.readouterr().err


def test_without_data_the_command_says_what_it_needs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HEADWAY_DATA", raising=False)
    assert main(["--out", str(tmp_path)]) == 2
    assert "set HEADWAY_DATA" in capsys.readouterr().err
    assert main(["--out", str(tmp_path), "--data", str(tmp_path)]) == 2
    assert "has no folder of" in capsys.readouterr().err


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.skipif("HEADWAY_DATA" not in os.environ, reason="needs published sets")
@pytest.mark.parametrize(
    ("file", "options"),
    [("pickers.json", ["--seeds", "2"]), ("second_look.json", ["--seeds", "1", "--second-look"])],
)
def test_a_documented_case_holds(tmp_path: Path, file: str, options: list[str]) -> None:
    """One case, with artifacts that are trained anew. Fits differ between CPUs."""
    assert main(["--out", str(tmp_path), "--cases", "zeroeval/deepinfra", *options]) == 0
    (found,) = json.loads((tmp_path / "report.json").read_text())["cases"]
    kept = json.loads((Path(__file__).parents[3] / "docs" / file).read_text())["cases"]
    (told,) = (case for case in kept if (case["artifacts"], case["case"]) == ("own", "zeroeval/deepinfra"))
    assert dict(_figures(found)) == pytest.approx(dict(_figures(told)), abs=0.02)


def _figures(tree: Any, place: str = "") -> Iterator[tuple[str, float]]:
    """Each number of a report, by its place."""
    if isinstance(tree, dict | list):
        for name, each in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from _figures(each, f"{place}/{name}")
    elif isinstance(tree, int | float):
        yield place, tree
