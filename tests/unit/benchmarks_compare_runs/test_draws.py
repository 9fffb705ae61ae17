"""Draws of a workload and the tasks over them: rates, pairs, times of losses, and what is refused first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.compare.draws import Draw, Draws, RequestDefaults, from_file, from_scenario
from benchmarks.compare.pool import run_local
from benchmarks.compare.runs import RunFolder
from benchmarks.compare.tasks import OracleTask, Plan, Setting, Task, run_all, settings_of
from benchmarks.measures import mean_rate
from benchmarks.scenarios import Loss, load_scenario
from benchmarks.simulator import Fleet, open_fleet
from benchmarks.workloads.format import Header, WorkloadError, WorkloadRequest, read, write
from tests.unit.benchmarks_simulator.worlds import MODEL, config, emulated

DEFAULTS = RequestDefaults("auto", None)
CONFIG = config(emulated("a"), emulated("b", "l4"))


def workload(folder: Path, count: int = 60, **fields: Any) -> Path:
    """Requests that come ever more slowly, the first at 1000 s."""
    path = folder / "w.jsonl"
    values = {"prompt_tokens": 100, "output_tokens": 20, **fields}
    write(
        path,
        Header("test"),
        (WorkloadRequest(f"r{at}", 1_000 + at * at / 10, **values) for at in range(count)),
    )
    return path


@pytest.fixture
def fleet() -> Fleet:
    return open_fleet(CONFIG)


def drawn(
    path: Path, fleet: Fleet, out: Path, seeds: Sequence[int] = (0,), limit: int | None = None
) -> Draws:
    return from_file(path, fleet, DEFAULTS, seeds, limit, out)


def task(draw: Draw, rate: float | None, *losses: Loss, policy: str = "least_load") -> Task:
    return Task(Setting(CONFIG, {}, None, DEFAULTS, losses), draw, policy, rate)


@pytest.mark.parametrize("rate", [None, 0.5, 1.0, 7.5])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_task_comes_at_its_rate_and_starts_with_its_first_request(
    fleet: Fleet, tmp_path: Path, rate: float | None, seed: int
) -> None:
    draws = drawn(workload(tmp_path), fleet, tmp_path / "out", (seed,))
    requests = list(task(draws.each[0], rate).requests())
    assert requests[0].arrival_s == 0.0
    own = mean_rate([each.arrival_s for each in read(draws.each[0].file)])
    assert own == pytest.approx(draws.each[0].rate_per_s)
    assert mean_rate([each.arrival_s for each in requests]) == pytest.approx(rate or own)


def test_the_first_seed_is_the_file_itself_and_others_are_kept(fleet: Fleet, tmp_path: Path) -> None:
    path = workload(tmp_path)
    draws = drawn(path, fleet, tmp_path / "out", (0, 1, 2), limit=40)
    assert [draw.seed for draw in draws.each] == [0, 1, 2]
    assert draws.each[0].file == path
    assert draws.each[0].requests == 40
    for draw in draws.each[1:]:
        assert draw.file == tmp_path / f"out/workloads/{draw.seed}.jsonl"
        ids = {each.id.partition("~")[0] for each in read(draw.file)}
        assert ids <= {f"r{at}" for at in range(40)}
    assert draws.described["requests"] == 40
    # A seed's draw does not depend on which others there are.
    alone = drawn(path, fleet, tmp_path / "other", (2,), limit=40)
    assert alone.each[0].file.read_bytes() == draws.each[2].file.read_bytes()


@pytest.mark.parametrize("rate", [None, 0.5, 4.0])
def test_losses_are_at_their_shares_of_the_span_at_every_rate(
    fleet: Fleet, tmp_path: Path, rate: float | None
) -> None:
    draw = drawn(workload(tmp_path), fleet, tmp_path).each[0]
    one = task(draw, rate, Loss("a", 0.25, 0.5), Loss("b", 0.0, 1.0))
    last_s = list(one.requests())[-1].arrival_s
    first, second = one.losses()
    assert [first.instance, second.instance] == ["a", "b"]
    assert [first.at_s, first.for_s] == pytest.approx([last_s / 4, last_s / 2])
    assert [second.at_s, second.for_s] == pytest.approx([0.0, last_s])


def test_a_wrong_line_is_named_with_its_file(fleet: Fleet, tmp_path: Path) -> None:
    path = workload(tmp_path, count=3)
    lines = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([lines[0], b"", lines[1], b"  ", lines[2], lines[3].replace(b"20", b"null")]))
    with pytest.raises(WorkloadError, match=r"w\.jsonl, line 6: request r2: no output_tokens"):
        drawn(path, fleet, tmp_path)
    path.write_bytes(b"\n".join([lines[0], b"", b"{"]))
    with pytest.raises(WorkloadError, match=r"w\.jsonl, line 3: not valid JSON"):
        drawn(path, fleet, tmp_path)
    path.write_bytes(lines[0])
    with pytest.raises(WorkloadError, match=r"w\.jsonl: the workload has no requests"):
        drawn(path, fleet, tmp_path)


def test_a_model_that_the_fleet_cannot_serve_is_refused(tmp_path: Path) -> None:
    models = [
        {"name": name, "context_tokens": 8192, "price": {"input_usd_per_mtok": 1, "output_usd_per_mtok": 1}}
        for name in (MODEL, "big")
    ]
    fleet = open_fleet(config(emulated("a"), models=models))
    path = workload(tmp_path, count=4)
    lines = path.read_bytes().splitlines()
    asks = lines[2].replace(b'"routing":null', b'"routing":{"models":["big"]}')
    assert asks != lines[2]
    path.write_bytes(b"\n".join([*lines[:2], asks, *lines[3:]]))
    with pytest.raises(WorkloadError, match=r"line 3: request r1 asks for big, which no instance"):
        drawn(path, fleet, tmp_path)


def test_a_scenario_is_drawn_anew_for_each_seed(tmp_path: Path) -> None:
    scenario = load_scenario("split-prices", small=True)
    fleet = open_fleet(scenario.fleet)
    draws = from_scenario(scenario, fleet, DEFAULTS, (3, 4), tmp_path, {})
    assert [draw.seed for draw in draws.each] == [3, 4]
    assert draws.each[0].file.read_bytes() != draws.each[1].file.read_bytes()
    again = from_scenario(scenario, fleet, DEFAULTS, (4,), tmp_path / "again", {})
    assert again.each[0].file.read_bytes() == draws.each[1].file.read_bytes()
    assert draws.made_of == again.made_of  # so that seeds can be added
    with pytest.raises(WorkloadError, match="scenario split-prices: request gamma-0"):
        from_scenario(scenario, fleet, RequestDefaults("nope", None), (3,), tmp_path, {})


def plan(draws: Draws, **changes: Any) -> Plan:
    values: dict[str, Any] = {
        "policies": ("least_load", "random"),
        "rates": (1.0, 2.0),
        "oracle_draws": 0,
        "oracle_effort": "quick",
        "keep_requests": False,
        **changes,
    }
    return Plan(Setting(CONFIG, {}, None, DEFAULTS, ()), draws, **values)


class Counting:
    """A runner that says what it was asked to run."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def __call__(self, function: Any, items: Sequence[Task | OracleTask]) -> Any:
        self.ran += [item.name for item in items]
        return run_local(function, items, 1)


def run(one: Plan, out: Path) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """The runs by name, and those that were done now."""
    runner = Counting()
    found = {
        each["name"]: each
        for each in run_all(one, RunFolder(out, settings_of(one)), runner, lambda what, done, total: None)
    }
    return found, runner.ran


def without_clock(run: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in run.items() if key not in ("wall_s", "decision_s")}


def test_policies_of_a_rate_and_seed_see_the_same_requests(fleet: Fleet, tmp_path: Path) -> None:
    draws = drawn(workload(tmp_path), fleet, tmp_path, (0, 1))
    cells: dict[tuple[float | None, int], set[tuple[WorkloadRequest, ...]]] = {}
    for each in plan(draws).tasks(tmp_path):
        cells.setdefault((each.rate_per_s, each.draw.seed), set()).add(tuple(each.requests()))
    assert len(cells) == 4
    assert all(len(seen) == 1 for seen in cells.values())
    assert len({next(iter(seen)) for seen in cells.values()}) == 4


def test_what_is_kept_is_not_run_again_and_more_can_be_added(fleet: Fleet, tmp_path: Path) -> None:
    path, out = workload(tmp_path), tmp_path / "runs"
    first, ran = run(plan(drawn(path, fleet, tmp_path, (0,))), out)
    assert len(ran) == len(first) == 4
    again, ran = run(plan(drawn(path, fleet, tmp_path, (0,))), out)
    assert ran == []
    assert again == first
    more, ran = run(
        plan(drawn(path, fleet, tmp_path, (0, 1)), policies=("slo", "random"), rates=(2.0, 3.0)), out
    )
    assert sorted(ran) == sorted(
        f"{policy}@{rate}#{seed}"
        for policy in ("slo", "random")
        for rate in (2, 3)
        for seed in (0, 1)
        if (policy, rate, seed) != ("random", 2, 0)
    )
    assert more["random@2#0"] == first["random@2#0"]


def test_a_damaged_run_is_done_again_with_the_same_numbers(fleet: Fleet, tmp_path: Path) -> None:
    one, out = plan(drawn(workload(tmp_path), fleet, tmp_path)), tmp_path / "runs"
    first, _ = run(one, out)
    (out / "random@2#0.json").write_bytes(b'{"name": "rand')
    (out / "random@1#0.json").write_bytes(b"{}")
    again, ran = run(one, out)
    assert sorted(ran) == ["random@1#0", "random@2#0"]
    assert {name: without_clock(each) for name, each in again.items()} == {
        name: without_clock(each) for name, each in first.items()
    }


def test_runs_of_another_program_are_done_again(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, out = plan(drawn(workload(tmp_path), fleet, tmp_path), rates=(2.0,)), tmp_path / "runs"
    first, _ = run(one, out)
    assert len(first["random@2#0"]["program"]) == 64
    monkeypatch.setattr("benchmarks.compare.tasks.program", lambda: "later")
    again, ran = run(one, out)
    assert ran == ["least_load@2#0", "random@2#0"]
    assert again["random@2#0"]["program"] == "later"
    assert run(one, out)[1] == []


def test_requests_that_are_to_be_kept_are_run_again_for_them(fleet: Fleet, tmp_path: Path) -> None:
    draws, out = drawn(workload(tmp_path), fleet, tmp_path, (0, 1)), tmp_path / "runs"
    run(plan(draws, rates=None), out)
    assert not list(out.glob("*.npz"))
    _, ran = run(plan(draws, rates=None, keep_requests=True), out)
    assert len(ran) == 4
    found = sorted(file.stem for file in out.glob("*.npz"))
    assert found == ["least_load@own#0", "least_load@own#1", "random@own#0", "random@own#1"]


def test_oracles_are_asked_again_when_a_policy_is_added(fleet: Fleet, tmp_path: Path) -> None:
    path = workload(tmp_path, count=25, routing={"slo": {"ttft_ms": 500.0}})
    draws, out = drawn(path, fleet, tmp_path, (0, 1)), tmp_path / "runs"
    one = plan(draws, rates=(2.0,), oracle_draws=1)
    found, ran = run(one, out)
    assert ran == ["least_load@2#0", "random@2#0", "least_load@2#1", "random@2#1", "oracle@2#0"]
    assert found["oracle@2#0"]["goodput_upper_bound_per_s"] > 0
    assert run(one, out)[1] == []
    _, ran = run(plan(draws, rates=(2.0,), oracle_draws=1, policies=("least_load", "random", "slo")), out)
    assert ran == ["slo@2#0", "slo@2#1", "oracle@2#0"]


def test_only_the_first_draw_keeps_the_load_of_instances(fleet: Fleet, tmp_path: Path) -> None:
    found, _ = run(plan(drawn(workload(tmp_path), fleet, tmp_path, (0, 1))), tmp_path / "runs")
    assert found["random@1#0"]["timeline"]["instances"]
    assert found["random@1#1"]["timeline"] is None


def test_a_workload_without_a_rate_is_run_as_it_is(fleet: Fleet, tmp_path: Path) -> None:
    draws = drawn(workload(tmp_path, count=1), fleet, tmp_path)
    assert draws.each[0].rate_per_s is None
    found, _ = run(plan(draws, rates=None), tmp_path / "runs")
    assert found["random@own#0"]["requests"] == 1
