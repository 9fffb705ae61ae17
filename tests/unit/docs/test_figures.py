"""The figure of candidates shows what the policies choose."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random

import numpy as np
import pytest

from policies import PolicySettings, create_all
from router.cli import main
from router.core.interfaces import Option
from router.core.state import Instance
from router.core.types import Candidate, Prediction, Request, Slo, Targets
from tests.unit.docs.pages import ROOT

ROWS = [
    dict(re.findall(r'([\w-]+)="([^"]*)"', row))
    for row in re.findall(r"<g ([^>]*)>", (ROOT / "docs/images/candidates.svg").read_text(encoding="utf-8"))
]


def option(row: dict[str, str]) -> Option:
    candidate = Candidate(row["data-instance"], row["data-model"], row["data-model"])
    prediction = Prediction(
        p_miss=float(row["data-p-miss"]),
        e2e_s_mean=float(row["data-e2e-s"]),
        cost_usd=float(row["data-usd"]) / 1000,
        quality=float(row["data-quality"]),
        tpot_s=float(row["data-e2e-s"]) / 200,
    )
    return Option(candidate, Instance(candidate.instance, "vllm", {candidate.model: candidate}), prediction)


#: (policy, its target quality, the instance that the figure gives it).
TAKEN = [
    (policy, float(quality) if quality else None, row["data-instance"])
    for row in ROWS
    for policy, _, quality in (said.partition(" ") for said in row["data-taken-by"].split(", "))
]


@pytest.mark.parametrize(("policy", "quality", "instance"), TAKEN)
def test_each_policy_takes_the_candidate_that_the_figure_says(
    policy: str, quality: float | None, instance: str
) -> None:
    options = [option(row) for row in ROWS]
    request = Request("r", 0.0, policy, ("8B", "70B"), prompt_tokens=200, slo=Slo(e2e_s=15.0))
    chooses = create_all(PolicySettings(targets=lambda key: Targets(quality=quality)))[policy]
    choice = chooses.choose(request, options, Random(1))
    assert options[choice.index].candidate.instance == instance


def test_every_candidate_is_taken_by_some_policy() -> None:
    assert {instance for _, _, instance in TAKEN} == {row["data-instance"] for row in ROWS} != set()


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_p_miss_is_as_right_as_the_figure_says(tmp_path: Path) -> None:
    """In points of 100, for each bin of P(miss). The command is that of docs/predictions.md."""
    command = re.search(
        r"headway (compare .* --keep-requests .*) --out report", (ROOT / "docs/predictions.md").read_text()
    )
    assert command is not None
    assert main([*command[1].split(), "--out", str(tmp_path)]) == 0
    drawn = (ROOT / "docs/images/p-miss.svg").read_text(encoding="utf-8")
    for policy in ("latency", "random"):
        said = re.findall(
            r"predicted (\d+) %, missed (\d+) %", drawn.partition(f"olicy {policy}: ")[2].partition(".")[0]
        )
        runs = [np.load(path) for path in (tmp_path / "runs").glob(f"{policy}@*.npz")]
        predicted, met = (np.concatenate([run[name] for run in runs]) for name in ("p_miss", "met"))
        bins = np.digitize(predicted, [0.01, 0.05, *np.arange(1, 10) / 10])
        for at, (chance, share) in enumerate(said):
            assert 100 * predicted[bins == at].mean() == pytest.approx(float(chance), abs=2)
            assert 100 * (1.0 - met[bins == at].mean()) == pytest.approx(float(share), abs=2)
        assert len(said) == 12


def test_the_first_numbers_of_the_readme_are_those_of_its_table() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(
        r"at 50 requests/s, the policy `slo` meets (\d+) % of the SLOs, round robin (\d+) %", readme
    )
    assert found is not None
    table = [
        line.strip("|").split("|") for line in readme.partition("claim unequal-gpus: begin")[2].splitlines()
    ]
    column = next(cells for cells in table if " 50/s " in cells).index(" 50/s ")
    for policy, said in zip(("slo", "round_robin"), found.groups(), strict=True):
        (cells,) = (cells for cells in table if cells[0].strip() == f"`{policy}`")
        assert f"{float(cells[column].strip().removesuffix(' %')):.0f}" == said
