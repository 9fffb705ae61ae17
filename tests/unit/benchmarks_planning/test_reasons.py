"""Why no placement is possible, and the changes that would be enough."""

from __future__ import annotations

import pytest

from backends.engine.weights import weights_named
from benchmarks.planning.reasons import reasons
from tests.unit.benchmarks_planning.made import problem

LARGE = "llama-3.1-70b"


def changes_of(pools: str, models: str, longest_tokens: int = 4000) -> tuple[str, list[str]]:
    (reason,) = reasons(problem(pools, models, longest_tokens).with_unlike_groups())
    limit, _, changes = reason.partition("; enough would be: ")
    return limit, changes.split("; or ")


def test_what_fits_has_no_reason() -> None:
    assert reasons(problem("1xa100-80g 6xl4", f"{LARGE} llama-3.2-1b").with_unlike_groups()) == []


def test_a_group_of_unlike_gpus_that_takes_all_is_the_reason() -> None:
    limit, changes = changes_of("1xa100-80g 4xl4", f"{LARGE} llama-3.2-1b")
    assert limit == (
        f"{LARGE}, llama-3.2-1b: too few GPUs are left where {LARGE} takes a100-80g:41+l4:9+l4:10+l4:10+l4:10"
    )
    assert changes[:3] == ["fp8 weights", f"leave out 1 x {LARGE}", "1 more a100-80g"]


def test_a_change_may_lead_to_a_group_of_unlike_gpus() -> None:
    assert changes_of("4xt4 4xv100-32g", f"{LARGE}:bf16")[1] == ["fp16 weights"]


def test_the_longest_context_that_fits_is_proposed() -> None:
    models = "llama-3.1-8b llama-3.2-1b:q8"
    _, changes = changes_of("1xl4 1xrtx-4090", models, 100_000)
    context = int(changes[0].removeprefix("context_tokens: ").removesuffix(" (requests have up to 100000)"))
    assert not reasons(problem("1xl4 1xrtx-4090", models, context))
    assert reasons(problem("1xl4 1xrtx-4090", models, context + 1))
    assert not changes_of("1xt4", "llama-3.1-8b", 100_000)[1][0].startswith("context_tokens")


def test_a_format_that_needs_more_gpus_is_proposed_with_them() -> None:
    _, changes = changes_of("2xt4 2xv100-32g", f"{LARGE}:bf16")
    assert changes == ["fp16 weights with 3 more v100-32g", "fp8 weights with 4 more t4"]
    assert not reasons(problem("2xt4 5xv100-32g", f"{LARGE}:fp16").with_unlike_groups())
    assert reasons(problem("2xt4 4xv100-32g", f"{LARGE}:fp16").with_unlike_groups())


@pytest.mark.parametrize("weights", ["bf16", "fp8"])
def test_four_bits_are_proposed_where_eight_are_too_many(weights: str) -> None:
    assert changes_of("1xa40", f"{LARGE}:{weights}")[1][0] == "int4 weights"
    assert changes_of("1xa40 1xl4", f"{LARGE}:{weights} llama-3.1-8b:{weights}")[1][0] == "int4 weights"


@pytest.mark.parametrize(
    ("pools", "models"),
    [
        ("1xl4", "qwen2.5-14b"),
        ("1xa40", LARGE),
        ("1xt4", "llama-3.1-8b:bf16"),
        ("1xl4 1xt4", "llama-3.1-8b qwen2.5-7b"),
    ],
)
def test_every_format_that_is_proposed_can_be_written_in_a_models_file(pools: str, models: str) -> None:
    _, changes = changes_of(pools, models)
    formats = [change.removesuffix(" weights") for change in changes if change.endswith(" weights")]
    assert formats
    for weights in formats:
        assert weights_named(weights) == weights
        assert not reasons(
            problem(pools, " ".join(f"{each.partition(':')[0]}:{weights}" for each in models.split()))
        )


@pytest.mark.parametrize(
    ("pools", "models"),
    [
        ("1xl4", "qwen2.5-32b:q4"),
        ("1xrtx-4090", "qwen2.5-32b:q4"),
        ("1xa40", "llama-3.1-70b:q4"),
        ("1xa100-80g", "llama-3.1-70b:q8"),
    ],
)
def test_a_model_of_llamacpp_has_the_memory_that_its_engine_takes(pools: str, models: str) -> None:
    found = problem(pools, models)
    assert reasons(found) == []
    # The budget of vLLM on these GPUs is smaller than what the model needs.
    assert found.models[0].gb > found.cluster.pools[0].kind.budget_gb


def test_a_reason_has_the_memory_of_llamacpp() -> None:
    limit, _ = changes_of("1xl4", "llama-3.1-70b:q4")
    assert limit == "llama-3.1-70b: needs 44.3 GB of each GPU in a group of 1, l4 has 22.1 usable of 24.15"
    limit, changes = changes_of("1xl4 1xt4", "qwen2.5-32b:q4 qwen2.5-14b:q8")
    assert limit == "qwen2.5-32b, qwen2.5-14b: need 16.5 GB of each of 2 GPUs, which have 14.4 usable of 16.1"
    assert changes[-1] == "GPUs with 16.5 GB usable each"


def test_a_model_runs_only_on_as_many_gpus_as_divide_its_heads() -> None:
    # Qwen 2.5 7B has 28 heads, Qwen 2.5 14B has 40.
    wide = {
        name: {tensor for _, tensor, _ in problem("8xa100-80g", name).models[0].shapes or ()}
        for name in ("qwen2.5-7b", "qwen2.5-14b")
    }
    assert wide == {"qwen2.5-7b": {1, 2, 4}, "qwen2.5-14b": {1, 2, 4, 8}}
