"""Several workloads as one; streams that can be gone through again; prompts, lengths and quality combined."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from benchmarks.measures import mean_rate
from benchmarks.workloads import streams
from benchmarks.workloads.build import build, plan
from benchmarks.workloads.format import WorkloadError, WorkloadRequest
from benchmarks.workloads.mixes import RoutingMix
from benchmarks.workloads.options import BuildOptions
from benchmarks.workloads.restrict import Bounds
from benchmarks.workloads.sources.prompt_sets import prompt_id
from benchmarks.workloads.sources.source import Choices
from tests.data_files import put

Rows = Sequence[tuple[str, str, str]]


@pytest.fixture
def data(tmp_path: Path) -> Mapping[str, str]:
    """A data folder: a trace with prefix blocks, one without, questions with answers and with scores."""
    lines = [
        {
            "timestamp": 500 * index,
            "input_length": 1500,
            "output_length": 7,
            "hash_ids": [0, index % 3, index],
        }
        for index in range(200)
    ]
    for name in ("conversation", "synthetic"):
        put(tmp_path / f"mooncake/{name}.jsonl.gz", lines)
    put(
        tmp_path / "azure_llm_2023/conv.csv.gz",
        [{"arrival_s": index, "context_tokens": 100 + index, "generated_tokens": 20} for index in range(400)],
    )
    put(tmp_path / "sharegpt_lengths/sharegpt_v3.csv.gz", "row,in_tokens,out_tokens\n1,900,33\n2,900,44\n")
    prompts = [f"How many eggs are {count} eggs?" for count in range(8)]
    known = [{"prompt_id": prompt_id(prompt), "prompt": prompt, "task": "gsm"} for prompt in prompts]
    put(tmp_path / "zeroeval/prompts.jsonl.gz", known)
    answers = "".join(
        f"{prompt_id(prompt)},gsm,{model},{tokens},{3 * tokens},{place % 2}\n"
        for place, prompt in enumerate(prompts)
        for model, tokens in (("Meta-Llama-3.1-8B-Instruct", 60), ("Qwen2-72B-Instruct", 40))
        if (place, tokens) != (5, 40)
    )
    put(
        tmp_path / "zeroeval/responses.csv.gz",
        "prompt_id,task,model,out_tokens,out_chars,correct\n" + answers,
    )
    put(tmp_path / "llmrouter/prompts.jsonl.gz", known)
    scores = [{"prompt_id": prompt_id(prompt), "model": "gemma-2-9b-it", "score": 0.25} for prompt in prompts]
    put(tmp_path / "llmrouter/responses.csv.gz", scores)
    return {"HEADWAY_DATA": str(tmp_path)}


QUALITY = Choices(
    models={"small": ("Meta-Llama-3.1-8B-Instruct",), "large": ("Qwen2-72B-Instruct",)},
    quality=True,
    native_lengths=True,
)


# --- mixing -------------------------------------------------------------------------------------------
def test_a_mix_has_its_shares_its_rate_and_the_parts_own_requests(data: Mapping[str, str]) -> None:
    options = BuildOptions(mix={"mooncake_conversation": 0.3, "gamma": 0.3}, rate_per_s=5.0, cv=1.0, seed=2)
    header, requests = build("azure_conv", options, data)
    shares = {
        name: count / len(requests) for name, count in Counter(each.source for each in requests).items()
    }
    assert shares == pytest.approx({"azure_conv": 0.4, "mooncake_conversation": 0.3, "gamma": 0.3}, abs=0.06)
    assert mean_rate([request.arrival_s for request in requests]) == pytest.approx(5.0, rel=0.15)
    assert [request.arrival_s for request in requests] == sorted(request.arrival_s for request in requests)
    assert len({request.id for request in requests}) == len(requests)
    own = {request.id: request.prompt_tokens for request in requests if request.source == "azure_conv"}
    assert own["azure_conv-7"] == 107
    assert header.source == "azure_conv + mooncake_conversation + gamma"
    assert header.details["mix"]["gamma"] == {"share": 0.3, "rate_per_s": 1.5}
    assert header.requests == len(requests)
    assert build("azure_conv", options, data)[1] == requests
    assert build("azure_conv", BuildOptions(mix=options.mix, rate_per_s=5.0, seed=3), data)[1] != requests


def test_prefix_blocks_of_two_sets_are_apart_and_those_of_one_stay_shared(data: Mapping[str, str]) -> None:
    _, requests = build("mooncake_conversation", BuildOptions(mix={"mooncake_synthetic": 0.5}), data)
    blocks: dict[str, set[int]] = {}
    for request in requests:
        blocks.setdefault(request.source, set()).update(request.prefix_hashes or ())
    assert len(blocks) == 2
    assert not set.intersection(*blocks.values())
    first = {request.prefix_hashes[0] for request in requests if request.prefix_hashes}
    assert len(first) == 2  # each set's requests still begin alike


def test_prefix_blocks_outlast_scaling_slicing_and_wishes(data: Mapping[str, str]) -> None:
    routing = RoutingMix.of(slo_mix="tight=0.5,none=0.5", budget_mix="0.01=0.5,none=0.5")
    options = BuildOptions(rate_scale=3.0, start_s=20.0, duration_s=50.0, routing=routing)
    _, requests = build("mooncake_conversation", options, data)
    assert [request.prefix_hashes for request in requests] == [
        (0, index % 3, index) for index in range(40, 140)
    ]
    assert requests[1].arrival_s == pytest.approx(0.5 / 3)


def test_the_base_keeps_its_own_times_without_a_rate(data: Mapping[str, str]) -> None:
    _, requests = build("azure_conv", BuildOptions(mix={"mooncake_conversation": 0.5}), data)
    own = [request.arrival_s for request in requests if request.source == "azure_conv"]
    assert own == pytest.approx(list(range(len(own))))
    # Both at 1/s: the other set, of 200 requests at 2/s, ends the mix.
    assert len(requests) == pytest.approx(400, abs=3)


def test_a_limit_is_that_of_the_whole(data: Mapping[str, str]) -> None:
    header, requests = build("poisson", BuildOptions(mix={"gamma": 0.25}, limit=3000, rate_per_s=9), data)
    assert header.requests == len(requests) == 3000
    assert Counter(request.source for request in requests)["gamma"] == pytest.approx(750, rel=0.2)


@pytest.mark.parametrize(
    "mix", [{"gamma": 1.0}, {"gamma": 0.7, "azure_conv": 0.5}, {"poisson": 0.5, "gamma": 0.4}]
)
def test_shares_must_add_up(data: Mapping[str, str], mix: dict[str, float]) -> None:
    with pytest.raises(WorkloadError, match="add up to 1"):
        build("poisson", BuildOptions(mix=mix), data)


def test_interleaving_ends_with_the_first_stream() -> None:
    def stream(name: str, *times_s: float) -> streams.Stream:
        return lambda: (WorkloadRequest(f"{name}{at_s}", at_s, 1) for at_s in times_s)

    mixed = streams.interleave([stream("a", 0.0, 2.0, 9.0), stream("b", 1.0, 2.0, 3.0)])
    assert [request.id for request in mixed()] == ["a0.0", "b1.0", "a2.0", "b2.0", "b3.0"]
    assert list(streams.interleave([stream("a", 0.0), stream("b")])()) == []


# --- streams ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["poisson", "azure_conv", "mooncake_conversation", "zeroeval"])
def test_a_workload_can_be_gone_through_again(data: Mapping[str, str], name: str) -> None:
    header, stream = plan(name, BuildOptions(limit=6), data)
    assert list(stream()) == list(stream())
    assert header.requests == len(list(stream())) == 6


def test_a_survey_tells_the_longest_and_the_mean_answer() -> None:
    requests = [
        WorkloadRequest("a", 1.0, 5, output_tokens={"m": 10, "n": 30}),
        WorkloadRequest("b", 2.0, 5),
        WorkloadRequest("c", 5.0, 5, output_tokens=8),
    ]
    seen = streams.survey(lambda: iter(requests))
    assert (seen.requests, seen.longest_output, seen.mean_output_tokens) == (3, 30, 14.0)
    assert seen.rate_per_s == pytest.approx(0.5)
    assert streams.survey(lambda: iter(())).rate_per_s is None


# --- texts, lengths and quality -----------------------------------------------------------------------
def test_quality_and_lengths_by_model_come_along_on_other_arrivals(data: Mapping[str, str]) -> None:
    options = BuildOptions(prompts="zeroeval", length_wins="prompts", choices=QUALITY, limit=20)
    header, requests = build("azure_conv", options, data)
    assert {request.source for request in requests} == {"azure_conv"}
    for request in requests:
        place = int((request.prompt or "").split(" eggs?")[0].rsplit(" ", 1)[1])
        expected = {"small": place % 2, "large": place % 2}
        lengths = {"small": 60, "large": 40}
        if place == 5:
            del expected["large"], lengths["large"]
        assert request.quality == expected
        assert request.output_tokens == lengths
    assert header.details["quality_of_models"]["zeroeval"]["large"] == ["Qwen2-72B-Instruct"]


def test_complete_leaves_out_prompts_that_lack_a_model(data: Mapping[str, str]) -> None:
    choices = Choices(models=QUALITY.models, quality=True, complete=True)
    header, requests = build("zeroeval", BuildOptions(choices=choices), data)
    assert len(requests) == 7
    assert all(request.quality is not None and len(request.quality) == 2 for request in requests)
    assert header.cuts["complete"] is True
    with pytest.raises(WorkloadError, match="--complete leaves no prompt"):
        build("zeroeval", BuildOptions(choices=Choices(quality=True, complete=True)), data)


def test_a_set_without_lengths_takes_those_of_another(data: Mapping[str, str]) -> None:
    choices = Choices(quality=True)
    _, bare = build("llmrouter", BuildOptions(choices=choices), data)
    assert {request.output_tokens for request in bare} == {None}
    assert all(request.quality == {"gemma-2-9b": 0.25} for request in bare)
    options = BuildOptions(choices=choices, lengths="sharegpt", length_wins="prompts")
    header, requests = build("llmrouter", options, data)
    assert {request.output_tokens for request in requests} == {33, 44}
    assert {request.prompt: request.prompt_tokens for request in requests} == {
        request.prompt: request.prompt_tokens for request in bare
    }
    found = header.length_wins
    assert found == "llmrouter: its own prompt lengths are kept, answer lengths are those of sharegpt"
    _, cut = build("llmrouter", BuildOptions(lengths="sharegpt"), data)
    assert {request.prompt_tokens for request in cut} == {900}
    options = BuildOptions(prompts="llmrouter", length_wins="prompts", choices=choices)
    header, worded = build("azure_conv", options, data)
    assert {request.output_tokens for request in worded} == {20}
    seen = header.length_wins
    assert seen == "llmrouter: its own prompt lengths are kept, answer lengths are those of azure_conv"


# --- budgets in words ---------------------------------------------------------------------------------
def test_budget_classes_are_multiples_of_the_expected_cost(data: Mapping[str, str]) -> None:
    routing = RoutingMix.of(budget_mix="tight=0.25,normal=0.25,loose=0.25,none=0.25", budget_tariff="1,10")
    header, requests = build(
        "azure_conv", BuildOptions(routing=routing, bounds=Bounds(max_prompt_tokens=100)), data
    )
    expected_usd = (100 * 1 + 20 * 10) / 1e6
    found = Counter((request.routing or {}).get("max_cost_usd", 0.0) / expected_usd for request in requests)
    assert sorted(found) == pytest.approx([0.0, 0.5, 1.0, 3.0])
    assert all(count == pytest.approx(100, abs=40) for count in found.values())
    assert header.details["budget_tariff_usd_per_mtok"] == [1.0, 10.0]


def test_budget_classes_need_known_lengths(data: Mapping[str, str]) -> None:
    routing = RoutingMix.of(budget_mix="tight=1", budget_tariff="1,2")
    with pytest.raises(WorkloadError, match="answer lengths are known"):
        build("llmrouter", BuildOptions(routing=routing), data)
