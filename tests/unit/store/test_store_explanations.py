"""The blob of a request's decisions."""

from __future__ import annotations

import orjson
import pytest

from router.core.deciding import Decided
from router.core.interfaces import Choice, Option
from router.core.state import LOAD_FEATURES, Instance
from router.core.types import Candidate, Considered, Decision, LoadReport, Prediction, PromptFeatures
from router.store import explanations
from router.store.explanations import MAX_PREFIX_HASHES, decode, encode, kept
from router.store.records import PREDICTION_FIELDS
from tests.records import make_decision, make_record


def test_the_fields_are_those_of_this_version() -> None:
    """When the core's fields change, the version of the blob must change with them."""
    assert explanations.VERSION == 2
    prediction = """
        output_tokens_p50 output_tokens_p90 output_tokens_mean ttft_s_p50 ttft_s_p95 tpot_s e2e_s_mean
        e2e_s_p50 e2e_s_p95 quality cost_usd p_miss engine_ttft_s quality_sd memory_ratio
    """
    load = """
        in_flight awaiting_first_token pending_prefill_tokens context_tokens running waiting kv_usage report_age_s
    """
    assert list(PREDICTION_FIELDS) == prediction.split()
    assert list(LOAD_FEATURES) == load.split()


def test_what_was_decided_comes_back() -> None:
    record = make_record(decisions=[make_decision(), make_decision(candidates=2, chosen=0, at_s=13.0)])
    blob = encode(record)
    assert blob is not None
    explanation = decode(blob)
    assert explanation["prefix"] == [11, 2**63 + 5]
    first, second = explanation["decisions"]
    assert (first["policy"], first["decided_after_s"], first["propensity"]) == ("latency", 0.5, 0.75)
    assert second["decided_after_s"] == 1.0
    assert [candidate["chosen"] for candidate in first["candidates"]] == [False, True, False]
    candidate = first["candidates"][2]
    assert (candidate["instance"], candidate["model"], candidate["score"]) == ("gpu-2", "llama", 2.5)
    assert candidate["reason"] == "a higher score"
    assert candidate["predicted"]["output_tokens_p50"] == 102.0
    assert candidate["predicted"]["p_miss"] is None
    assert candidate["load"]["pending_prefill_tokens"] == 512
    assert candidate["load"]["kv_usage"] == 0.25
    assert first["candidates_left_out"] == 0


@pytest.mark.parametrize("passed_over", [(), ((Candidate("gpu-9", "llama", "up"), "no room"),)])
@pytest.mark.parametrize("candidates", [2, 300])
def test_a_decision_is_the_same_before_it_is_made_an_object(
    passed_over: tuple[tuple[Candidate, str], ...], candidates: int
) -> None:
    instance = Instance("gpu", "vllm", {})
    options = [
        Option(Candidate(f"gpu-{i}", "llama", "up"), instance, Prediction(ttft_s_p50=0.1 * i) if i else None)
        for i in range(candidates)
    ]
    choice = Choice(1, [0.5 * i for i in range(candidates)], ["slower"] * candidates, 0.5)
    loads = [(i, 1, 512, 4096, LoadReport(), 12.0) for i in range(candidates)]
    decided = Decided("latency", 12.5, options, choice, (), passed_over, loads)
    before, after = make_record(decisions=[decided]), make_record(decisions=[decided.decision])
    before.set_prediction(options[1].prediction)
    assert encode(before) == encode(after)


def test_without_a_decision_there_is_nothing_to_keep() -> None:
    assert encode(make_record(decisions=[])) is None


def test_a_candidate_without_prediction_or_load() -> None:
    considered = (Considered(Candidate("gpu-0", "llama", "up"), None, None, None),)
    blob = encode(make_record(decisions=[Decision("random", 0.0, 0, considered, None, ())], arrived_at=None))
    assert blob is not None
    decision = decode(blob)["decisions"][0]
    assert decision["decided_after_s"] is None
    assert decision["candidates"][0]["predicted"] is None
    assert decision["candidates"][0]["load"] is None
    assert decision["candidates"][0]["chosen"]


@pytest.mark.parametrize("max_bytes", [700, 1500, 4096])
@pytest.mark.parametrize("chosen", [0, 150, 299])
def test_over_the_cap_the_worst_are_left_out(max_bytes: int, chosen: int) -> None:
    blob = encode(make_record(decisions=[make_decision(candidates=300, chosen=chosen)]), max_bytes)
    assert len(blob) <= max_bytes
    decision = decode(blob)["decisions"][0]
    names = [candidate["instance"] for candidate in decision["candidates"]]
    assert decision["candidates"][0]["chosen"]
    assert names[0] == f"gpu-{chosen}"
    best = [f"gpu-{i}" for i in range(300) if i != chosen]
    assert names[1:] == best[: len(names) - 1]
    assert decision["candidates_left_out"] == 300 - len(names)


def test_a_long_prefix_is_cut() -> None:
    blob = encode(make_record(prefix=tuple(range(2**70, 2**70 + 10_000))))
    assert blob is not None
    assert decode(blob)["prefix"] == list(range(MAX_PREFIX_HASHES))


def test_what_cannot_fit_at_all_is_not_kept() -> None:
    assert encode(make_record(), max_bytes=50) is None


def test_an_unknown_version_is_refused() -> None:
    with pytest.raises(ValueError, match=f"version {explanations.VERSION + 98}"):
        decode(orjson.dumps({"v": explanations.VERSION + 98, "d": [], "prefix": []}))


@pytest.mark.parametrize(
    "blob", [b"", b'{"v":2,"d":[', b"[]", b"{}", b'{"v":[]}', b'{"v":2,"d":[[]],"prefix":[]}']
)
def test_a_damaged_blob_is_known_as_one(blob: bytes) -> None:
    with pytest.raises(ValueError):
        decode(blob)


def test_a_blob_of_the_first_version_is_still_read() -> None:
    values = list(range(13))
    row = ["latency", 0.5, 0, 1.0, 0, [["gpu-0", "llama", 0.1, None, values, None]]]
    kept_then = decode(orjson.dumps({"v": 1, "d": [row], "prefix": [3]}))
    assert kept_then["features"] is None
    predicted = kept_then["decisions"][0]["candidates"][0]["predicted"]
    assert predicted["engine_ttft_s"] == 12
    assert predicted["quality_sd"] is None
    assert predicted["memory_ratio"] is None


def test_features_of_the_prompt_come_back() -> None:
    features = PromptFeatures((1, 65_535, 7), (300,), (12, 1, 4, 0, 0, 0, 0, 2**40))
    blob = encode(make_record(features=features))
    assert blob is not None
    assert decode(blob)["features"] == features
    nothing = encode(make_record(features=None))
    assert nothing is not None
    assert decode(nothing)["features"] is None


def test_a_dry_run_reads_like_a_kept_decision() -> None:
    decision = make_decision(candidates=200)
    assert len(kept(decision)["candidates"]) == 200
    blob = encode(make_record(decisions=[make_decision()]))
    assert blob is not None
    assert kept(make_decision(), 12.0) == decode(blob)["decisions"][0]
