"""Model names and the precedence of routing parameters."""

from __future__ import annotations

from typing import Any

import pytest

from router.core.errors import Refusal
from router.core.types import Slo
from router.request.model_names import ModelNames
from router.request.routing_input import RoutingInput
from router.request.routing_params import Defaults, KeyTerms, RoutingParams, RoutingRules

POLICIES = ("latency", "slo", "price", "random")
NAMES = ModelNames(
    ["llama", "qwen:7b", "tagged:latest", "embedder"],
    {"small": "llama", "qwen:price": "llama"},
    POLICIES,
)


@pytest.mark.parametrize(
    ("asked", "models", "suffix"),
    [
        ("llama", ("llama",), None),
        ("small", ("llama",), None),
        ("llama:latest", ("llama",), None),
        ("small:latest", ("llama",), None),
        ("llama:slo", ("llama",), "slo"),
        ("small:slo", ("llama",), "slo"),
        ("llama:latest:slo", ("llama",), "slo"),
        ("qwen:7b", ("qwen:7b",), None),
        ("qwen:7b:random", ("qwen:7b",), "random"),
        ("qwen:price", ("llama",), None),  # an exact alias wins over a suffix
        ("tagged", ("tagged:latest",), None),
        ("tagged:latest", ("tagged:latest",), None),
        ("tagged:price", ("tagged:latest",), "price"),
        ("auto", NAMES.models, None),
        ("auto:latency", NAMES.models, "latency"),
        ("auto:latest", NAMES.models, None),
        ("auto:latest:slo", NAMES.models, "slo"),
        ("embedder", ("embedder",), None),
    ],
)
def test_names_resolve(asked: str, models: tuple[str, ...], suffix: str | None) -> None:
    assert NAMES.resolve(asked) == (models, suffix)


@pytest.mark.parametrize(
    ("asked", "status", "code"),
    [
        ("llama:fast", 400, "invalid_request"),
        ("llama:", 400, "invalid_request"),
        ("llama:7b:fast", 400, "invalid_request"),
        ("qwen:7b:fast", 400, "invalid_request"),
        ("auto:fast", 400, "invalid_request"),
        ("auto:latency:latency", 400, "invalid_request"),
        ("", 400, "invalid_request"),
        (None, 400, "invalid_request"),
        (["llama"], 400, "invalid_request"),
        (7, 400, "invalid_request"),
        ("gpt-4", 404, "model_not_found"),
        ("qwen", 404, "model_not_found"),
        ("qwen:72b", 404, "model_not_found"),
        ("Llama", 404, "model_not_found"),
        (":latency", 404, "model_not_found"),
    ],
)
def test_what_does_not_resolve(asked: Any, status: int, code: str) -> None:
    with pytest.raises(Refusal) as caught:
        NAMES.resolve(asked)
    assert (caught.value.status, caught.value.code, caught.value.param) == (status, code, "model")
    assert caught.value.outcome == "rejected_invalid"


def test_an_unknown_suffix_is_refused_with_the_known_policies() -> None:
    with pytest.raises(Refusal) as caught:
        NAMES.resolve("llama:cheap")
    assert "'cheap'" in caught.value.message
    assert all(policy in caught.value.message for policy in POLICIES)


def test_a_long_name_is_cut_in_the_error() -> None:
    with pytest.raises(Refusal) as caught:
        NAMES.resolve("x" * 10_000)
    assert len(caught.value.message) < 200


def test_a_name_in_another_case_is_spelled_as_the_known_one() -> None:
    assert [NAMES.spelled(name) for name in ("QWEN:7b", "qwen:7b", "none")] == ["qwen:7b", "qwen:7b", "none"]
    assert NAMES.spelled("Small:LATEST") == "small:latest"
    assert ModelNames(["m", "M"], {}, POLICIES).spelled("M") == "M"


def test_a_model_called_auto_is_that_model() -> None:
    names = ModelNames(["auto", "other"], {}, POLICIES)
    assert names.resolve("auto") == (("auto",), None)
    assert names.name_of("auto") == "auto"
    assert NAMES.name_of("auto") is None


def test_a_fleet_without_models_has_no_auto() -> None:
    with pytest.raises(Refusal) as caught:
        ModelNames([], {}, POLICIES).resolve("auto")
    assert caught.value.status == 404


# --- precedence --------------------------------------------------------------------------------------
SERVER = Defaults("random")


def merged(
    model: str = "llama",
    *,
    key: KeyTerms | None = None,
    body: RoutingInput | None = None,
    headers: RoutingInput | None = None,
    server: Defaults = SERVER,
    models: dict[str, Defaults] | None = None,
) -> RoutingParams:
    return RoutingRules(NAMES, server, models).merge(model, key, body, headers)


def policy(name: str) -> RoutingInput:
    return RoutingInput(policy=name)


LOCKED = KeyTerms(policy="random", locked=True)


@pytest.mark.parametrize(
    ("asked", "key", "body", "headers", "model_default", "expected"),
    [
        ("llama", None, None, None, None, "random"),  # the server's default
        ("llama", None, None, None, "price", "price"),  # the model's above it
        ("llama", KeyTerms(policy="slo"), None, None, "price", "slo"),  # the key's above that
        ("llama:latency", KeyTerms(policy="slo"), None, None, "price", "latency"),  # the suffix
        ("llama:latency", None, None, policy("price"), None, "price"),  # a header
        ("llama:latency", None, policy("slo"), policy("price"), None, "slo"),  # the body
        ("llama:latency", LOCKED, policy("slo"), policy("price"), None, "random"),
        ("llama", KeyTerms(locked=True), policy("slo"), None, "price", "price"),  # locked to the default
        ("llama", KeyTerms(policy="price"), policy("slo"), None, None, "slo"),
    ],
)
def test_policy_precedence(
    asked: str,
    key: KeyTerms | None,
    body: RoutingInput | None,
    headers: RoutingInput | None,
    model_default: str | None,
    expected: str,
) -> None:
    models = None if model_default is None else {"llama": Defaults(policy=model_default)}
    assert merged(asked, key=key, body=body, headers=headers, models=models).policy == expected


BODY_SLO, HEADER_SLO, MODEL_SLO, SERVER_SLO = Slo(ttft_s=1), Slo(tpot_s=2), Slo(e2e_s=3), Slo(4, 4, 4)


@pytest.mark.parametrize(
    ("body", "headers", "model", "server", "expected"),
    [
        (None, None, None, None, None),
        (None, None, None, SERVER_SLO, SERVER_SLO),
        (None, None, MODEL_SLO, SERVER_SLO, MODEL_SLO),
        (None, HEADER_SLO, MODEL_SLO, SERVER_SLO, HEADER_SLO),
        (BODY_SLO, HEADER_SLO, MODEL_SLO, SERVER_SLO, BODY_SLO),  # as a whole, not target by target
        (Slo(), HEADER_SLO, MODEL_SLO, SERVER_SLO, None),  # an empty one asks for none
    ],
)
def test_slo_precedence(
    body: Slo | None, headers: Slo | None, model: Slo | None, server: Slo | None, expected: Slo | None
) -> None:
    params = merged(
        body=RoutingInput(slo=body),
        headers=RoutingInput(slo=headers),
        models={"llama": Defaults(slo=model)},
        server=Defaults("random", slo=server),
    )
    assert params.slo == expected


@pytest.mark.parametrize(
    ("body", "headers", "model", "server", "hard"),
    [
        (None, None, None, None, False),
        (None, None, None, "reject", True),
        (None, None, "best_effort", "reject", False),
        (None, "reject", "best_effort", None, True),
        ("best_effort", "reject", None, "reject", False),
        ("reject", None, None, "best_effort", True),
    ],
)
def test_on_miss_precedence(body: Any, headers: Any, model: Any, server: Any, hard: bool) -> None:
    params = merged(
        body=RoutingInput(on_miss=body, slo=BODY_SLO),
        headers=RoutingInput(on_miss=headers),
        models={"llama": Defaults(on_miss=model)},
        server=Defaults("random", on_miss=server),
    )
    assert params.hard is hard


def test_without_a_target_nothing_is_hard() -> None:
    assert not merged(body=RoutingInput(on_miss="reject")).hard


@pytest.mark.parametrize(
    ("of_key", "name", "cases"),
    [
        (
            "max_cost_usd",
            "max_cost_usd",
            [
                (None, None, None),
                (0.5, None, 0.5),
                (None, 0.2, 0.2),
                (0.5, 0.2, 0.2),
                (0.1, 0.2, 0.1),
                (0.0, 0.2, 0.0),
            ],
        ),
        (
            "min_quality",
            "min_quality",
            [
                (None, None, None),
                (0.5, None, 0.5),
                (None, 0.6, 0.6),
                (0.5, 0.6, 0.6),
                (0.7, 0.6, 0.7),
                (0.0, 0.6, 0.6),
            ],
        ),
        (
            "max_priority",
            "priority",
            [(None, None, 0), (9, None, 9), (9, 5, 5), (3, 5, 3), (-4, 5, -4), (None, -1, -1), (9, 0, 0)],
        ),
    ],
)
def test_a_key_s_bounds_are_tightened_never_loosened(of_key: str, name: str, cases: Any) -> None:
    for asked, bound, expected in cases:
        key, asking = KeyTerms(**{of_key: bound}), RoutingInput(**{name: asked})
        assert getattr(merged(key=key, body=asking), name) == expected
        assert merged(key=key, headers=asking) == merged(key=key, body=asking)


def test_the_body_outranks_headers_under_the_keys_caps() -> None:
    params = merged(
        key=KeyTerms(max_cost_usd=0.3, max_priority=2),
        body=RoutingInput(max_cost_usd=0.2, min_quality=0.1, priority=1, seed=7),
        headers=RoutingInput(max_cost_usd=0.1, min_quality=0.9, priority=2),
    )
    assert (params.max_cost_usd, params.min_quality, params.priority, params.seed) == (0.2, 0.1, 1, 7)


@pytest.mark.parametrize(
    ("asked", "body", "headers", "expected"),
    [
        ("auto", None, None, NAMES.models),
        ("llama", ("qwen:7b",), None, ("qwen:7b",)),
        ("auto", None, ("small", "tagged"), ("llama", "tagged:latest")),
        ("auto", ("qwen:7b", "small", "llama"), ("tagged",), ("qwen:7b", "llama")),  # each once, in order
    ],
)
def test_models_replace_the_model(
    asked: str, body: tuple[str, ...] | None, headers: tuple[str, ...] | None, expected: tuple[str, ...]
) -> None:
    params = merged(asked, body=RoutingInput(models=body), headers=RoutingInput(models=headers))
    assert params.models == expected


@pytest.mark.parametrize(
    ("body", "headers", "param"),
    [
        (RoutingInput(policy="cheap"), None, "routing.policy"),
        (None, RoutingInput(policy="cheap"), "x-headway-policy"),
        (RoutingInput(policy="price"), RoutingInput(policy="cheap"), "x-headway-policy"),
        (RoutingInput(models=("llama", "gpt-4")), None, "routing.models"),
        (RoutingInput(models=("llama:price",)), None, "routing.models"),  # no suffixes here
        (RoutingInput(models=("auto",)), None, "routing.models"),
        (None, RoutingInput(models=("gpt-4",)), "x-headway-models"),
        (RoutingInput(models=("llama",)), RoutingInput(models=("gpt-4",)), "x-headway-models"),
    ],
)
def test_unknown_policies_and_models_are_refused_where_they_stand(
    body: RoutingInput | None, headers: RoutingInput | None, param: str
) -> None:
    with pytest.raises(Refusal) as caught:
        merged(key=KeyTerms(policy="slo", locked=True), body=body, headers=headers)
    assert (caught.value.status, caught.value.param) == (400, param)
    if param.endswith("policy"):
        assert all(policy in caught.value.message for policy in POLICIES)


def test_several_models_are_held_to_the_loosest_of_their_targets() -> None:
    models = {"llama": Defaults(slo=Slo(1, 0.05)), "qwen:7b": Defaults(slo=Slo(3, 0.02, 9))}
    both = RoutingInput(models=("llama", "qwen:7b"))
    assert merged("auto", body=both, models=models).slo == Slo(3, 0.05)
    # A model without a default has the server's, here none: nothing can be held against all of them.
    assert merged("auto", models=models).slo is None
    server = Defaults("random", slo=Slo(2, 2, 2))
    assert merged("auto", models=models, server=server).slo == Slo(3, 2)


def test_several_models_share_a_policy_only_if_all_name_it() -> None:
    both = RoutingInput(models=("llama", "qwen:7b"))
    same = {"llama": Defaults(policy="price"), "qwen:7b": Defaults(policy="price")}
    assert merged("auto", body=both, models=same).policy == "price"
    assert merged("auto", body=both, models={"llama": Defaults(policy="price")}).policy == "random"


def test_plain_requests_are_merged_once_for_each_key() -> None:
    rules = RoutingRules(NAMES, Defaults("random"))
    dear, cheap = KeyTerms("a", max_cost_usd=1), KeyTerms("a", max_cost_usd=0.1)
    assert rules.merge("llama", dear) is rules.merge("llama", dear)
    assert rules.merge("llama", dear).max_cost_usd == 1
    assert rules.merge("llama", cheap).max_cost_usd == 0.1
    assert rules.merge("llama").max_cost_usd is None
    for _ in range(2):  # a refusal is not remembered as an answer
        with pytest.raises(Refusal):
            rules.merge("gpt-4", dear)
    with pytest.raises(Refusal):
        rules.merge(["llama"], dear)


def test_the_server_must_name_a_policy() -> None:
    with pytest.raises(ValueError, match="policy"):
        RoutingRules(NAMES, Defaults())


# --- a key's models ----------------------------------------------------------------------------------
QWEN = KeyTerms("k", models=frozenset({"qwen:7b", "embedder"}))
NONE = KeyTerms("n", models=frozenset())


def test_for_a_key_with_models_auto_means_those_of_its_own() -> None:
    assert merged("auto", key=QWEN).models == ("qwen:7b", "embedder")
    assert merged("auto:slo", key=QWEN).models == ("qwen:7b", "embedder")
    assert merged("qwen:7b", key=QWEN).models == ("qwen:7b",)
    assert merged("embedder", key=QWEN).models == ("embedder",)


@pytest.mark.parametrize("asked", ["llama", "llama:latest", "llama:slo", "small", "tagged", "tagged:latest"])
def test_other_models_do_not_exist_for_a_key(asked: str) -> None:
    def told(key: KeyTerms | None, name: str) -> tuple[object, ...]:
        with pytest.raises(Refusal) as caught:
            merged(name, key=key)
        error = caught.value
        return error.status, error.code, error.param, error.message.replace(name, "?")

    assert told(QWEN, asked) == told(QWEN, "nowhere") == told(None, "nowhere")
    assert told(QWEN, asked)[:2] == (404, "model_not_found")


def test_an_alias_counts_as_its_model() -> None:
    key = KeyTerms("k", models=frozenset({"llama"}))
    assert merged("small", key=key).models == ("llama",)
    assert merged("auto", key=key, body=RoutingInput(models=("small",))).models == ("llama",)


@pytest.mark.parametrize("name", ["llama", "small", "nowhere"])
def test_other_models_cannot_be_listed_either(name: str) -> None:
    for asked in (
        {"body": RoutingInput(models=("qwen:7b", name))},
        {"headers": RoutingInput(models=(name,))},
    ):
        with pytest.raises(Refusal) as caught:
            merged("auto", key=QWEN, **asked)
        assert caught.value.status == 400
        assert caught.value.message.startswith(f"unknown model '{name}' in ")


@pytest.mark.parametrize("asked", ["auto", "llama", "nowhere", "auto:slo"])
def test_a_key_without_any_model_left_is_told_so(asked: str) -> None:
    with pytest.raises(Refusal) as caught:
        merged(asked, key=NONE)
    assert (caught.value.status, caught.value.code) == (404, "model_not_found")
    assert "none of the models that this key may use" in caught.value.message


def test_names_of_a_key_are_settled_once_for_each_set_of_models() -> None:
    rules = RoutingRules(NAMES, Defaults("random"))
    assert rules.names_for(None) is rules.names_for(KeyTerms()) is NAMES
    assert rules.names_for(QWEN) is rules.names_for(KeyTerms("other", models=QWEN.models))
    assert rules.names_for(QWEN).models == ("qwen:7b", "embedder")
