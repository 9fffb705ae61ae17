"""Engine profiles of pipelines whose stages are unlike GPUs."""

from dataclasses import replace

import pytest

from backends.engine import profiles
from backends.engine.hardware import HARDWARE
from backends.engine.models import MODELS
from backends.engine.unlike_stages import EngineStage, parsed

MIXED = "llama-3.1-70b@4xa100-80g:62+4xl4:18"


@pytest.mark.parametrize(
    ("text", "stages"),
    [
        ("4xa100-80g:62+4xl4:18", [("a100-80g", 4, 62), ("l4", 4, 18)]),
        ("l4:10+t4:5+l4:1", [("l4", 1, 10), ("t4", 1, 5), ("l4", 1, 1)]),
        ("4xa100-80g:62", None),
        ("4xa100-80g+4xl4", None),
        ("4xa100-80g:0+l4:80", None),
        ("0xl4:3+l4:4", None),
        ("4xb900:3+l4:4", None),
        ("l4", None),
    ],
)
def test_the_stages_of_a_name(text: str, stages: list[tuple[str, int, int]] | None) -> None:
    made = None if stages is None else tuple(EngineStage(HARDWARE[gpu], n, held) for gpu, n, held in stages)
    assert parsed(text) == made
    if made:
        assert "+".join(map(str, made)) == text


@pytest.mark.parametrize("degree", [2, 4])
def test_stages_that_are_alike_are_a_pipeline_of_equal_stages(degree: int) -> None:
    stage = f"{degree}xa100-80g:40"
    unlike = profiles.profile(f"llama-3.1-70b@{stage}+{stage}")
    equal = profiles.profile(f"llama-3.1-70b@pp2x{degree}xa100-80g")
    assert replace(unlike, name="", source="") == replace(equal, name="", source="")


def test_a_step_takes_as_long_as_its_slowest_stage_in_each_term() -> None:
    found = profiles.profile(MIXED)
    model = MODELS["llama-3.1-70b"]
    a100, l4 = (profiles.whole_profile(model, HARDWARE[gpu], 4, None) for gpu in ("a100-80g", "l4"))
    assert found.floor_s == pytest.approx(2 * max(a100.floor_s * 62 / 80, l4.floor_s * 18 / 80))
    assert found.per_token_s == pytest.approx(max(a100.per_token_s * 62, l4.per_token_s * 18) / 80)
    assert found.overhead_s > 2 * l4.overhead_s * 18 / 80
    assert found.max_seqs == min(a100.max_seqs, l4.max_seqs)


def test_the_fullest_stage_bounds_the_kv_cache() -> None:
    more_on_l4 = profiles.profile("llama-3.1-70b@4xa100-80g:50+4xl4:30")
    assert more_on_l4.kv_capacity_tokens < profiles.profile(MIXED).kv_capacity_tokens


@pytest.mark.parametrize(
    "name",
    [
        "llama-3.1-70b@4xa100-80g:62+4xl4:17",
        "llama-3.1-70b@l4:62+4xa100-80g:18",
        "llama-3.1-70b@3xa100-80g:62+4xl4:18",
        "llama-3.1-70b-q4@4xa100-80g:62+4xl4:18",
        "unknown@4xa100-80g:62+4xl4:18",
    ],
)
def test_a_name_whose_stages_do_not_hold_the_model_has_no_profile(name: str) -> None:
    assert profiles.find(name) is None
    assert name not in profiles.names()
    with pytest.raises(profiles.UnknownProfile):
        profiles.profile(name)


def test_names_gpus_and_memory_are_those_of_all_stages() -> None:
    assert MIXED in profiles.names()
    assert profiles.gpus_of(MIXED) == 8
    assert profiles.memory_bytes(MIXED) == 4 * (
        HARDWARE["a100-80g"].memory_bytes + HARDWARE["l4"].memory_bytes
    )
    assert profiles.weights_bytes(MIXED) == profiles.weights_bytes("llama-3.1-70b@4xa100-80g")
    assert profiles.model_of(MIXED) is MODELS["llama-3.1-70b"]


def test_the_most_layers_leave_room_for_the_tokens() -> None:
    model, hardware = MODELS["llama-3.1-70b"], HARDWARE["l4"]
    few, many = (profiles.most_layers(model, hardware, 4, None, tokens) for tokens in (4096, 65536))
    assert 1 <= many < few < model.layers
    assert profiles.most_layers(MODELS["llama-3.1-8b"], HARDWARE["a100-80g"], 1, None, 4096) == 32
