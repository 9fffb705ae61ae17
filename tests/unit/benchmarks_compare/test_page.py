"""The page: it stands alone, is well formed, and says what the data say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from benchmarks.compare import panels, plots
from benchmarks.compare.page import gap_note, headline, oracle_note, page
from benchmarks.compare.page_tables import results_table
from benchmarks.compare.report import report
from benchmarks.compare.styles import OUTCOME_GROUPS, styles_of
from benchmarks.compare.tables import ENDINGS, rates_hint, table
from benchmarks.pages.drawing import Drawing
from router.core.types import Outcome
from tests.unit.benchmarks.parsed import Parsed, assert_stands_alone, words

from .made import ABOUT, made_report, oracles, run, runs


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    return made_report()


@pytest.fixture(scope="module")
def text(told: dict[str, Any]) -> str:
    return page(told)


def test_it_stands_alone_and_is_well_formed(text: str) -> None:
    assert_stands_alone(text)
    assert "made &lt;up&gt;" in text
    assert "<up>" not in text
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


def test_each_policy_can_be_hidden(text: str) -> None:
    parsed = Parsed(text)
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
    assert_stands_alone(text)
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
    made = [{**one, **bare} for one in runs({"slo": (1.0, 0.97), "round_robin": (0.99, 0.6)}, (0, 1))]
    told = report(made, about=ABOUT, complete=True)
    assert_stands_alone(page(told))
    lost = [{**one, "curves": {name: [None] * 201 for name in one["curves"]}} for one in made]
    assert_stands_alone(page(report(lost, about=ABOUT, complete=True)))


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
    styles = styles_of(list(shares))
    assert len({style.css for style in styles.values()}) == len(shares)
    ours = [styles[name] for name in ("latency", "slo", "price", "relevance", "cost")]
    assert {style.dash for style in ours} == {"none"}
    assert len({style.light for style in styles.values()}) == len(shares)
    assert "none" not in {styles[name].dash for name in ("round_robin", "random", "eccos_rr")}


def test_every_outcome_has_its_place() -> None:
    shown = [outcome for group in OUTCOME_GROUPS for outcome in group.outcomes]
    assert sorted(shown) == sorted(Outcome)


def attained(rates: Sequence[float], **shares: Sequence[Sequence[float]]) -> dict[str, Any]:
    """A report in which policies attained so: by seed, then by rate."""
    made = [
        {**run(policy, rate, seed, 0.9), "attainment": share}
        for policy, by_seed in shares.items()
        for seed, own in enumerate(by_seed)
        for rate, share in zip(rates, own, strict=True)
    ]
    return report(made, about=ABOUT, complete=True, oracles=[])


def test_the_headline_tells_numbers(told: dict[str, Any]) -> None:
    near = attained((10.0, 12.0), round_robin=[(0.96, 0.94)], slo=[(1.0, 0.94)])
    first, second = headline(near)[:2]
    assert first.startswith("slo bears most load: 11.7 requests/s with 95 %")
    assert first.endswith("1.06 times as much as round_robin.")
    assert second.startswith("At 12 requests/s")
    assert headline(told)[1].startswith("At 20 requests/s slo keeps most within their SLO")


@pytest.mark.usefixtures("undrawn")
def test_between_rates_far_apart_the_headline_has_no_number() -> None:
    far = attained((8.0, 16.0, 32.0), round_robin=[(1.0, 0.9, 0.1)], slo=[(1.0, 1.0, 0.5)])
    expected = "slo bears most load: between 16 and 32 requests/s with 95 % of requests within their SLO"
    assert headline(far)[0] == f"{expected} (round_robin: between 8 and 16)."
    text = page(far)
    assert text == page(far)
    assert "between 16 and 32" in text
    assert "add rates: 9.51, 11.3, 13.5, 19, 22.6, 26.9." in text
    assert "add rates: 9.51, 11.3" in table(far)


def test_the_headline_claims_of_the_highest_rate_what_all_seeds_show() -> None:
    told = attained(
        (8.0, 16.0),
        round_robin=[(1.0, 0.5), (1.0, 0.5), (1.0, 0.5)],
        slo=[(1.0, 0.96), (1.0, 0.95), (1.0, 0.934)],  # 94.8 % on average, and 95 % in two draws
    )
    first = headline(told)[0]
    assert "up to the highest rate" not in first
    assert first.startswith("slo bears most load: between 8 and at least 16 requests/s")
    # Below the target at the lowest rate, and above it at a higher one.
    uneven = attained((4.0, 8.0, 9.0), round_robin=[(0.9, 0.99, 0.91)], slo=[(0.9, 0.98, 0.98)])
    assert "up to the highest rate" not in headline(uneven)[0]
    assert headline(uneven)[0].startswith("slo bears most load: at least 9, though not at 4 requests/s")
    assert "8.50, though not at 4" in table(uneven)


def test_a_lead_within_the_noise_is_told_as_none() -> None:
    first = headline(
        attained(
            (10.0, 11.0),
            slo=[(0.99, 0.79), (0.96, 0.76)],
            latency=[(0.97, 0.77), (0.99, 0.79)],
        )
    )[0]
    assert "not clearly behind" in first
    none = {"slo": [(0.5, 0.3)], "latency": [(0.4, 0.2)]}
    assert headline(attained((5.0, 10.0), **none))[0].startswith("No policy keeps 95 %")
    throughout = {"slo": [(1.0, 1.0)], "latency": [(1.0, 1.0)]}
    assert headline(attained((5.0, 10.0), **throughout))[0].startswith("slo and latency keep 95 %")


def test_a_lead_that_pairs_show_is_told_though_the_means_intervals_overlap() -> None:
    # The draws differ by much, the policies in each of them by little, and always the same way.
    second = headline(
        attained(
            (8.0, 16.0),
            round_robin=[(1.0, 0.9), (1.0, 0.7), (1.0, 0.5)],
            slo=[(1.0, 0.93), (1.0, 0.731), (1.0, 0.53)],
        )
    )[1]
    assert "+3.0 ±0.1 points against round_robin" in second
    assert "not clearly behind" not in second


def test_a_target_out_of_reach_asks_for_no_lower_rates() -> None:
    made = [{**one, "attainment": 0.5} for one in runs()]
    capped = [{**one, "attainment_upper_bound": 0.88} for one in oracles()]
    told = report(made, about=ABOUT, complete=True, oracles=capped)
    assert headline(told)[0].endswith("none could, the oracle's upper bound there is 88.0 %.")
    assert rates_hint(told) is None
    reachable = report(made, about=ABOUT, complete=True, oracles=oracles())
    assert "none could" not in headline(reachable)[0]
    assert rates_hint(reachable) == "For a more exact rate, add rates: below 5."


def test_those_beyond_three_are_counted() -> None:
    names = ("slo", "latency", "cost", "price", "relevance", "random")
    level = attained((8.0, 16.0), **{name: [(1.0, 0.9)] for name in names})
    assert headline(level)[1].endswith("; latency, cost, price and 2 others are not clearly behind.")


def test_the_cheapest_policy_tells_what_it_attains() -> None:
    told = attained((8.0,), round_robin=[(0.9,)], cost=[(0.62,)])
    made = [
        {**one, "cost_usd_per_request": 0.01 if one["policy"] == "cost" else 0.02} for one in told["runs"]
    ]
    sentence = headline(report(made, about=ABOUT, complete=True))[-1]
    assert "cost is the cheapest" in sentence
    assert "with 62.0 % within their SLO (90.0 %)" in sentence


def test_oracles_of_some_draws_say_so(told: dict[str, Any], text: str) -> None:
    assert oracle_note(told) in words(text)
    assert gap_note(told) in words(text)
    assert "Oracles: draws 0 and 1 only" in oracle_note(told)
    assert "over draws 0 and 1" in gap_note(told)
    assert "was not run" not in gap_note(told)
    assert "Oracles: draws" not in oracle_note(made_report(runs=runs(seeds=(0, 1))))
    without = made_report(runs=[one for one in runs() if one["policy"] != "round_robin"])
    assert "between random (round_robin was not run: random stands in its place)" in gap_note(without)


def reached(drawing: Drawing | None) -> tuple[tuple[float, float], list[float]]:
    """The range of the height, and the heights of all lines and areas."""
    (axes,) = drawing.axes
    lines = [y for line in axes.lines for y in np.asarray(line.get_ydata(), float)]
    areas = [y for area in axes.collections for path in area.get_paths() for _, y in path.vertices]
    return axes.get_ylim(), lines + areas


def test_charts_have_room_for_intervals_and_oracles(told: dict[str, Any]) -> None:
    (_, most), heights = reached(plots.goodput(told, styles_of(told["policies"])))
    assert max(heights) == pytest.approx(20.0)  # the upper bound lies above all that was reached
    assert most > 20
    wide = attained((8.0, 16.0), slo=[(0.9, 0.71), (0.9, 0.81)], round_robin=[(0.9, 0.8), (0.9, 0.8)])
    (least, most), heights = reached(plots.attainment(wide, styles_of(wide["policies"])))
    assert least < min(heights) < 71
    assert max(heights) <= most == 100


@pytest.mark.usefixtures("undrawn")
def test_the_page_says_which_rates_it_shows() -> None:
    rates = (4.0, 8.0, 16.0, 32.0)
    text = page(attained(rates, round_robin=[(1.0, 0.9, 0.5, 0.1)], slo=[(1.0, 1.0, 0.9, 0.2)]))
    assert text.count("Shown at 4, 8 and 32 of 4 rates") == 3
    assert text.count("the nearest to what the best policy bears") == 3
    nothing = attained(rates, slo=[(0.5, 0.4, 0.3, 0.2)])
    assert "Shown at 4, 16 and 32 of 4 rates: the lowest, a middle one" in plots.shown_note(nothing)
    assert plots.shown_note(attained(rates[:3], slo=[(1.0, 0.9, 0.5)])) == ""


def test_all_that_are_not_clearly_behind_are_marked() -> None:
    told = attained(
        (8.0,),
        round_robin=[(0.60,), (0.50,), (0.40,)],
        slo=[(0.90,), (0.80,), (0.70,)],
        latency=[(0.88,), (0.83,), (0.68,)],
    )
    table = results_table(told, styles_of(told["policies"]))
    attainment = [heading.text for heading in table.headings].index("attained %")
    marked = {row.cells[0].text for row in table.rows if row.cells[attainment].css == "best"}
    assert marked == {"slo", "latency"}


def test_endings_have_one_word_everywhere(told: dict[str, Any], text: str) -> None:
    labels = {group.label for group in OUTCOME_GROUPS}
    for column in ENDINGS:
        assert column.heading.removesuffix(" %") in labels
    assert text.count("counts as in time") == 2
    headings = panels.outcomes(told, styles_of(told["policies"]))["headings"]
    assert {"cut by budget", "refused for SLO", "timed out before decoding"} <= set(headings)
    clean = made_report(runs=[{**one, "outcomes": {"ok": one["requests"]}} for one in told["runs"]])
    left = panels.outcomes(clean, styles_of(told["policies"]))
    assert left["headings"] == ["timed out before decoding", "out of budget before decoding"]
    assert [name for _, name in left["groups"]] == ["ok"]


def test_bars_of_outcomes_are_whole(told: dict[str, Any]) -> None:
    for _, rate in panels.outcomes(told, styles_of(told["policies"]))["bars"]:
        for bar in rate:
            assert sum(percent for _, percent, _ in bar["parts"]) == pytest.approx(100)


def test_strips_have_no_gap_before_the_first_change() -> None:
    rising = {"at_s": [0.0, 10.0, 20.0], "instances": {"a": {"in_flight": [0, 90_000, 90_000]}}}
    made = {**run("slo", 5.0, 0, 0.9), "timeline": rising, "requests": 100, "measured_rate_per_s": 5.0}
    found = panels.load(report([made], about=ABOUT, complete=True), styles_of(["slo"]), 5.0)
    assert (found["most"], found["ticks"][-1]) == (90_000, ("20", 100.0))
    ((policy, css, (strip,)),) = found["panels"]
    assert (policy, css, strip["instance"]) == ("slo", "p0", "a")
    assert [start for _, start, _ in strip["pieces"][1:]] == [end for _, _, end in strip["pieces"][:-1]]
    assert (strip["pieces"][0][1], strip["pieces"][-1][2]) == (0, 100)
    assert strip["pieces"][1][1] < 5
    # From none to all over a half of the time, then all of them.
    assert int(strip["mean"].replace(",", "")) == pytest.approx(67_500, rel=0.01)
