"""The page: it stands alone, is well formed, and says what the data say."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

import pytest

from benchmarks.compare import svg
from benchmarks.compare.headline import headline
from benchmarks.compare.looks import OUTCOME_GROUPS, looks_of
from benchmarks.compare.page import page
from benchmarks.compare.report import report
from router.core.types import Outcome

from .made import ABOUT, made_report, run, runs

_VOID = {"meta", "input", "br", "path", "rect", "circle"}


class Page(HTMLParser):
    """Every start tag must be ended; collects outside addresses, ids and classes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.outside: list[str] = []
        self.ids: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.open.append(tag)
        if tag in ("meta", "input"):
            self.open.pop()
        self.outside += [value for name, value in attrs if name in ("src", "href") and value]
        self.ids += [value for name, value in attrs if name == "id" and value]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    return made_report()


def test_it_stands_alone_and_is_well_formed(told: dict[str, Any]) -> None:
    text = page(told)
    parsed = Page(text)
    assert parsed.open == []
    assert parsed.outside == []
    assert "script" not in parsed.tags
    assert "url(" not in text
    assert len(parsed.ids) == len(set(parsed.ids))
    assert "made &lt;up&gt;" in text
    assert "<up>" not in text
    assert "nan" not in re.sub(r"<style>.*?</style>", "", text).lower()
    for title in (
        "Against load",
        "Load that each bears",
        "Results",
        "Latency",
        "Cost",
        "Load of the instances",
    ):
        assert f"<h2>{title}</h2>" in text
    for title in ("What became of the requests", "Against the oracle", "Differences", "How it was measured"):
        assert f"<h2>{title}</h2>" in text


def test_each_policy_can_be_hidden(told: dict[str, Any]) -> None:
    parsed = Page(page(told))
    assert [name for name in parsed.ids if name.startswith("show-")] == ["show-p0", "show-p1", "show-p2"]


@pytest.mark.parametrize(
    "made",
    [
        [],
        [run("slo", 5.0, None, 0.9)],
        [run("slo", 5.0, None, 0.9), run("round_robin", 5.0, None, 0.5)],
        [run("slo", 5.0, 0, 0.0), run("slo", 10.0, 0, 0.0)],
    ],
    ids=["nothing yet", "one run", "one rate", "nothing kept"],
)
def test_small_reports(made: list[dict[str, Any]]) -> None:
    text = page(report(made, about={**ABOUT, "url": "http://gateway", "speed": 6.0}, complete=False))
    assert Page(text).open == []
    assert "Interrupted" in text
    assert "time compressed 6 times" in text


def test_runs_without_slo_quality_or_answers() -> None:
    bare = {
        "attainment": None,
        "goodput_per_s": None,
        "offered_with_slo": 0,
        "quality_mean": None,
        "by_slo": None,
        "timeline": None,
    }
    made = [{**one, **bare} for one in runs()]
    told = report(made, about=ABOUT, complete=True)
    assert Page(page(told)).open == []
    lost = [{**one, "curves": {name: [None] * 201 for name in one["curves"]}} for one in made]
    assert Page(page(report(lost, about=ABOUT, complete=True))).open == []


def test_many_policies_and_seeds_stay_small() -> None:
    shares = dict.fromkeys(
        (
            "round_robin",
            "random",
            "least_load",
            "power_of_two",
            "lmetric",
            "eccos_rr",
            "llm_router_rr",
            "latency",
            "slo",
            "price",
            "relevance",
            "cost",
        ),
        (0.99, 0.9, 0.5),
    )
    made = runs(shares, seeds=range(2))
    text = page(report(made, about=ABOUT, complete=True))
    assert len(text) < 1_000_000
    looks = looks_of(list(shares))
    assert len({look.css for look in looks.values()}) == len(shares)
    ours = [looks[name] for name in ("latency", "slo", "price", "relevance", "cost")]
    assert {look.dash for look in ours} == {"none"}
    assert len({look.light for look in looks.values()}) == len(shares)
    assert "none" not in {looks[name].dash for name in ("round_robin", "random", "eccos_rr")}


def test_every_outcome_has_its_place() -> None:
    shown = [outcome for group in OUTCOME_GROUPS for outcome in group.outcomes]
    assert sorted(shown) == sorted(Outcome)


def test_the_headline_tells_numbers(told: dict[str, Any]) -> None:
    first, second = headline(told)[:2]
    capacity = next(one["rate_per_s"]["mean"] for one in told["capacity"] if one["policy"] == "slo")
    assert first.startswith(f"slo bears most load: {capacity:.1f}")
    assert "times as much as round_robin" in first
    assert second.startswith("At 20 requests/s slo keeps most within their SLO")


def test_a_lead_within_the_noise_is_told_as_none() -> None:
    def seeded(policy: str, *shares: float) -> list[dict[str, Any]]:
        return [
            {**run(policy, rate, seed, 0.9), "attainment": share - 0.2 * (rate == 10.0)}
            for seed, share in enumerate(shares)
            for rate in (5.0, 10.0)
        ]

    made = [*seeded("slo", 0.99, 0.96), *seeded("latency", 0.97, 0.99)]
    first = headline(report(made, about=ABOUT, complete=True))[0]
    assert "not clearly behind" in first
    none = [*seeded("slo", 0.5), *seeded("latency", 0.4)]
    assert headline(report(none, about=ABOUT, complete=True))[0].startswith("No policy keeps 95 %")
    all_of_it = [{**one, "attainment": 1.0} for one in none]
    assert headline(report(all_of_it, about=ABOUT, complete=True))[0].startswith("slo and latency keep 95 %")


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0, 100, [0, 20, 40, 60, 80, 100]), (0.31, 0.52, [0.35, 0.4, 0.45, 0.5]), (-3, 4, [-2, 0, 2, 4])],
)
def test_linear_ticks(low: float, high: float, expected: list[float]) -> None:
    assert svg.linear_ticks(low, high) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0.09, 2.1, [0.1, 0.2, 0.5, 1, 2]), (0.01, 500, [0.01, 0.1, 1, 10, 100]), (3, 4, [])],
)
def test_log_ticks(low: float, high: float, expected: list[float]) -> None:
    assert svg.log_ticks(low, high) == pytest.approx(expected)


def test_labels_are_kept_apart() -> None:
    placed = svg.spread([10.0, 11.0, 12.0, 80.0], gap=14.0, least=0.0, most=300.0)
    assert all(later - earlier >= 14 - 1e-9 for earlier, later in pairwise(placed))
    assert placed[3] == 80.0
    assert placed[0] >= 0
    low = svg.spread([299.0, 300.0, 300.0], gap=14.0, least=0.0, most=300.0)
    assert low == [272.0, 286.0, 300.0]
    assert svg.spread([], 14.0, 0.0, 300.0) == []
