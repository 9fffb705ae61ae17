"""ServeGen: aggregates by client and window become requests with their rates, bursts and lengths."""

from __future__ import annotations

import itertools
import math
import random
from pathlib import Path

import orjson
import pytest

from benchmarks.measures import coefficient_of_variation, quantile
from benchmarks.workloads.build import build, plan
from benchmarks.workloads.clients import LEVELS, Client, ClientPool, Lengths, TokenQuantiles, Window, spread
from benchmarks.workloads.fetch import load
from benchmarks.workloads.format import WorkloadError, WorkloadRequest
from benchmarks.workloads.options import BuildOptions
from benchmarks.workloads.sources import SOURCES
from benchmarks.workloads.sources.source import Choices
from tests.data_files import put

INPUT = (250.0, (50, 80, 120, 200, 400, 1500))
OUTPUT = (40.0, (5, 10, 20, 40, 90, 300))
LENGTHS = Lengths(TokenQuantiles(*INPUT), TokenQuantiles(*OUTPUT))


def pool(
    rates: dict[int, tuple[float, ...]], *, shape: float = 0.25, silent: tuple[int, ...] = ()
) -> ClientPool:
    """Clients with a rate for each window; those in `silent` have no lengths of their own."""
    return ClientPool(
        "servegen_m_small",
        {
            number: Client(
                {place * 600: Window(rate, "Gamma", shape) for place, rate in enumerate(of_windows) if rate},
                {} if number in silent else {0: LENGTHS},
            )
            for number, of_windows in rates.items()
        },
    )


def drawn(
    traffic: ClientPool, start_s: float = 0.0, end_s: float = math.inf, factor: float = 1.0, seed: int = 1
) -> list[WorkloadRequest]:
    return list(traffic.draw(seed, start_s, end_s, factor))


# --- arrivals -----------------------------------------------------------------------------------------
def test_windows_have_their_rates_and_clients_their_shares() -> None:
    requests = drawn(pool({0: (4.0, 8.0), 1: (1.0, 0.0)}))
    counts: dict[tuple[str, int], int] = {}
    for request in requests:
        key = request.id.split("-")[1], int(request.arrival_s // 600)
        counts[key] = counts.get(key, 0) + 1
    assert counts == {("0", 0): 2400, ("0", 1): 4800, ("1", 0): 600}
    assert all(one.arrival_s <= other.arrival_s for one, other in itertools.pairwise(requests))
    assert len({request.id for request in requests}) == len(requests)


@pytest.mark.parametrize("factor", [1.0, 0.1])
def test_bursts_outlast_a_lower_rate(factor: float) -> None:
    """Gamma gaps of shape 1/4 have a CV of 2, whatever the rate."""
    requests = drawn(pool({0: (20.0,) * 10}), factor=factor)
    gaps_s = [later.arrival_s - earlier.arrival_s for earlier, later in itertools.pairwise(requests)]
    assert len(requests) == pytest.approx(20 * 6000 * factor, rel=0.01)
    assert coefficient_of_variation(gaps_s) == pytest.approx(2.0, rel=0.1)


def test_a_fraction_of_a_request_is_rounded_without_bias() -> None:
    windows = 4000
    requests = drawn(pool({0: (1.0,) * windows}), factor=0.3 / 600)
    assert len(requests) == pytest.approx(0.3 * windows, rel=0.1)


def test_a_slice_holds_what_the_whole_holds_there() -> None:
    traffic = pool({0: (2.0, 3.0, 1.0), 1: (0.5, 0.1, 4.0)})
    whole = {request.id: request for request in drawn(traffic)}
    part = drawn(traffic, 700.0, 1300.0)
    assert part
    for request in part:
        assert whole[request.id].arrival_s == pytest.approx(request.arrival_s + 700)
        assert whole[request.id].prompt_tokens == request.prompt_tokens
    assert len(part) == sum(700 <= request.arrival_s < 1300 for request in whole.values())
    assert drawn(traffic) == drawn(traffic)
    assert drawn(traffic, seed=2) != drawn(traffic)


def test_mean_rate_counts_parts_of_windows() -> None:
    traffic = pool({0: (1.0, 3.0), 1: (1.0, 0.0)})
    assert traffic.mean_rate_per_s(0, math.inf) == pytest.approx(2.5)
    assert traffic.mean_rate_per_s(300, 900) == pytest.approx((300 * 2 + 300 * 3) / 600)
    assert traffic.mean_rate_per_s(5000, 6000) == 0.0


def test_spread_fills_the_length_evenly() -> None:
    random_ = random.Random(3)
    times: list[float] = []
    for _ in range(3000):
        times += spread(random_, 4, lambda: random_.gammavariate(0.3, 1.0), 600.0)
    assert all(0 <= at_s < 600 for at_s in times)
    for low in range(0, 600, 100):
        assert sum(low <= at_s < low + 100 for at_s in times) == pytest.approx(2000, rel=0.1)
    assert spread(random_, 0, random_.random, 600.0) == []
    assert len(set(spread(random_, 5, lambda: 0.0, 600.0))) == 1


# --- lengths ------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "told", [INPUT, OUTPUT, (12.0, (12, 12, 12, 12, 12, 12)), (1398.5, (549, 828, 1172, 1588, 2225, 6329))]
)
def test_lengths_have_their_quantiles_and_about_their_mean(told: tuple[float, tuple[int, ...]]) -> None:
    mean, quantiles = told
    random_ = random.Random(5)
    tokens = TokenQuantiles(mean, quantiles)
    values = sorted(tokens.draw(random_) for _ in range(40_000))
    for level, value in zip(LEVELS, quantiles, strict=True):
        assert quantile(values, level) == pytest.approx(value, rel=0.06, abs=1)
    assert sum(values) / len(values) == pytest.approx(mean, rel=0.05)
    assert values[0] >= 1


def test_a_client_without_lengths_takes_those_of_the_pool_by_rate() -> None:
    few, many = (Lengths(*[TokenQuantiles(size, (size,) * 6)] * 2) for size in (10.0, 1000.0))
    traffic = ClientPool(
        "x",
        {
            0: Client({0: Window(1.0, "Gamma", 1.0)}, {0: few}),
            1: Client({0: Window(3.0, "Weibull", 0.8)}, {0: many}),
            2: Client({0: Window(10.0, "Gamma", 1.0)}),
        },
    )
    sizes = [
        request.prompt_tokens for request in traffic.draw(0, 0, 600, 1.0) if request.id.startswith("x-2-")
    ]
    assert len(sizes) == 6000
    assert set(sizes) == {10, 1000}
    assert sizes.count(1000) / len(sizes) == pytest.approx(0.75, abs=0.03)


def test_lengths_follow_their_own_windows() -> None:
    early, late = (Lengths(*[TokenQuantiles(size, (size,) * 6)] * 2) for size in (10.0, 99.0))
    client = Client(
        {21000: Window(0.1, "Gamma", 1.0), 21600: Window(0.1, "Gamma", 1.0)}, {0: early, 21600: late}
    )
    requests = ClientPool("x", {0: client}).draw(0, 0, 30000, 1.0)
    found = {(request.arrival_s >= 21600, request.output_tokens) for request in requests}
    assert found == {(False, 10), (True, 99)}


# --- files --------------------------------------------------------------------------------------------
HEADER = "in_mean,in_p10,in_p25,in_p50,in_p75,in_p90,in_p99,out_mean,out_p10,out_p25,out_p50,out_p75,out_p90,out_p99"


def folder(root: Path) -> Path:
    """One client of 100-token prompts and 2-token answers, and a second one without lengths."""
    put(
        root / "servegen/m-small_arrivals.csv.gz",
        "client,t_s,rate_per_s,cv,pattern,param1,param2\n"
        "0,0,0.5,2,Gamma,0.25,8\n0,600,1.5,1,Weibull,1.0,0.7\n3,600,0.25,1,Gamma,1,4\n",
    )
    put(
        root / "servegen/m-small_lengths.csv.gz",
        f"client,t_s,{HEADER}\n0,0,100,100,100,100,100,100,100,2,2,2,2,2,2,2\n",
    )
    return root


def originals(root: Path) -> Path:
    """The same as ServeGen publishes it: windows without requests have a rate of 0 and no pattern."""
    root.mkdir()
    (root / "chunk-0-trace.csv").write_text(
        "0,0.5,2,Gamma,0.25,8\n600,1.5,1,Weibull,1.0,0.7\n1200,0.0,0.0,,0,0\n"
    )
    (root / "chunk-3-trace.csv").write_text("0,0,0,,0,0\n600,0.25,1,Gamma,1,4\n")
    shares = {"input_tokens": "{100: 1.0}", "output_tokens": "{2: 1.0}"}
    (root / "chunk-0-dataset.json").write_bytes(orjson.dumps({"0": shares}))
    (root / "chunk-3-dataset.json").write_bytes(
        orjson.dumps({"0": {"input_tokens": "{}", "output_tokens": "{}"}})
    )
    return root


def test_servegen_is_the_same_by_both_routes(tmp_path: Path) -> None:
    data, published = folder(tmp_path), originals(tmp_path / "m-small")
    one = load(SOURCES["servegen_m_small"], [], Choices(), {"HEADWAY_DATA": str(data)})
    other = load(SOURCES["servegen_m_small"], [published], Choices(), {})
    assert one.traffic is not None
    assert other.traffic is not None
    assert (one.route, other.route) == ("folder", "file")
    requests = list(one.traffic.draw(4, 0, 1200, 1.0))
    assert requests == list(other.traffic.draw(4, 0, 1200, 1.0))
    assert len(requests) == 300 + 900 + 150
    assert {request.prompt_tokens for request in requests} == {100}
    assert {request.output_tokens for request in requests} == {2}


def test_a_published_histogram_becomes_its_quantiles(tmp_path: Path) -> None:
    published = originals(tmp_path / "m-small")
    histogram = "{" + ", ".join(f"{length}: 0.01" for length in range(100, 0, -1)) + "}"
    shares = {"input_tokens": histogram, "output_tokens": "{7: 1.0}"}
    (published / "chunk-0-dataset.json").write_bytes(orjson.dumps({"0": shares}))
    traffic = load(SOURCES["servegen_m_small"], [published], Choices(), {}).traffic
    values = sorted(request.prompt_tokens for request in traffic.draw(0, 0, 1200, 10.0))
    for level in LEVELS:
        assert quantile(values, level) == pytest.approx(100 * level, rel=0.05, abs=1)
    assert sum(values) / len(values) == pytest.approx(50.5, rel=0.05)


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("chunk-0-trace.csv", "0,0.5,2,Gamma,0.25\n", "line 1: expected 6 values"),
        ("chunk-0-trace.csv", "0,0.5,2,Pareto,1,1\n", "line 1: pattern: must be 'Gamma', 'Weibull'"),
        ("chunk-0-trace.csv", "0,x,2,Gamma,1,1\n", r"line 1: rate_per_s: must be a number \(given: 'x'\)"),
        ("chunk-0-trace.csv", "0,1,2,Gamma,0,1\n", "line 1: param1 must be above 0"),
        ("chunk-0-trace.csv", "", "no client asks anything"),
        ("chunk-0-dataset.json", "{", "not a dataset of ServeGen"),
        ("chunk-0-dataset.json", '{"0": {"input_tokens": "{1: 1}"}}', "not a dataset of ServeGen"),
        ("chunk-0-dataset.json", "{}", "no client's lengths are known"),
        ("notes.csv", "", "expected chunk-N-trace.csv"),
    ],
)
def test_broken_files_are_named(tmp_path: Path, name: str, text: str, reason: str) -> None:
    published = originals(tmp_path / "m-small")
    (published / name).write_text(text)
    files = (
        [published / name]
        if name == "notes.csv"
        else [published / "chunk-0-trace.csv", published / "chunk-0-dataset.json"]
    )
    with pytest.raises(WorkloadError, match=reason) as caught:
        load(SOURCES["servegen_m_small"], files, Choices(), {})
    assert str(tmp_path) in str(caught.value)


# --- as a workload ------------------------------------------------------------------------------------
def test_the_rate_is_that_of_the_chosen_window(tmp_path: Path) -> None:
    environment = {"HEADWAY_DATA": str(folder(tmp_path))}
    header, requests = build("servegen_m_small", BuildOptions(rate_per_s=0.5), environment)
    assert len(requests) == pytest.approx(0.5 * 1200, abs=3)
    early = sum(request.arrival_s < 600 for request in requests)
    assert early / len(requests) == pytest.approx(0.5 / 2.25, abs=0.01)  # the windows keep their ratio
    assert header.details["published_rate_per_s"] == pytest.approx(1.125)
    assert header.details["rates_multiplied_by"] == pytest.approx(0.5 / 1.125)
    _, sliced = build(
        "servegen_m_small", BuildOptions(rate_per_s=0.5, start_s=600, duration_s=300), environment
    )
    assert len(sliced) == pytest.approx(150, abs=20)
    assert all(0 <= request.arrival_s < 300 for request in sliced)
    _, own = build("servegen_m_small", BuildOptions(limit=7), environment)
    assert len(own) == 7


def test_too_much_is_refused_and_what_cannot_be_is_told(tmp_path: Path) -> None:
    environment = {"HEADWAY_DATA": str(folder(tmp_path))}
    with pytest.raises(WorkloadError, match=r"about 6,000,000 requests; give --rate"):
        plan("servegen_m_small", BuildOptions(rate_per_s=5000), environment)
    with pytest.raises(WorkloadError, match="the trace ends at 1200 s"):
        plan("servegen_m_small", BuildOptions(start_s=5000), environment)
    with pytest.raises(WorkloadError, match="drawn with its arrivals"):
        plan("poisson", BuildOptions(lengths="servegen_m_small"), environment)
    with pytest.raises(WorkloadError, match="drawn with their times"):
        plan("servegen_m_small", BuildOptions(arrivals="poisson"), environment)
