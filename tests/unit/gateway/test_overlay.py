"""What operators changed, laid over a fleet file."""

from __future__ import annotations

import json
from typing import Any

import pytest

from router.config import ConfigError, InstanceConfig, loads, parse_instance
from router.gateway.fleet.overlay import (
    Edit,
    Overlay,
    adding,
    drained,
    draining,
    removing,
    restoring,
    scaling,
    targeting,
)

FILE = loads(
    "models: [{name: m}, {name: n}]\n"
    "instances:\n"
    "  - {name: a, kind: vllm, url: 'http://h:1', serves: {m: x}}\n"
    "  - {name: b, kind: vllm, url: 'http://h:2', serves: {m: x}}\n"
)


def an_instance(name: str, **members: Any) -> InstanceConfig:
    return parse_instance(
        {"name": name, "kind": "vllm", "url": "http://h:9", "serves": {"m": "x"}, "max_concurrency": 3}
        | members
    )


def edited(*edits: Edit, overlay: Overlay | None = None) -> Overlay:
    overlay = overlay or Overlay()
    for edit in edits:
        overlay = edit(overlay, FILE)
    return overlay


def names(overlay: Overlay) -> str:
    return "".join(each.name for each in overlay.over(FILE).instances)


def test_instances_come_and_go() -> None:
    overlay = Overlay()
    assert overlay.over(FILE) is FILE
    overlay = edited(adding(an_instance("c")))
    assert names(overlay) == "abc"
    overlay = edited(removing("a"), overlay=overlay)
    assert names(overlay) == "bc"
    overlay = edited(removing("c"), overlay=overlay)
    assert (names(overlay), overlay.removed) == ("b", {"a"})
    again = edited(adding(an_instance("a", url="http://h:7")), overlay=overlay)
    assert names(again) == "ba"
    assert again.over(FILE).instance("a").url == "http://h:7"
    assert names(edited(removing("a"), overlay=again)) == "b"
    assert names(again.reloaded()) == "ab"
    assert (again.revision, again.reloaded().revision, again.reloaded().reloads) == (4, 5, 1)


def test_who_has_left_drains_no_more() -> None:
    overlay = edited(draining("a"), draining("b"))
    assert overlay.draining == {"a", "b"}
    for edit in (removing("a"), drained({"a"})):
        assert edited(edit, overlay=overlay).draining == {"b"}
    assert overlay.reloaded().draining == frozenset()


def test_the_scaler_takes_back_what_it_drains_but_not_what_an_operator_drains_or_removes() -> None:
    by_scaler = scaling((), ["a"])
    overlay = edited(by_scaler)
    assert (overlay.draining, overlay.scaled_down) == ({"a"}, {"a"})
    kept = edited(scaling(["a"], ()), overlay=overlay)
    assert (kept.draining, kept.scaled_down) == (frozenset(), frozenset())
    for first, second in ((by_scaler, draining("a")), (draining("a"), by_scaler)):
        overlay = edited(first, second, scaling(["a"], ()))
        assert (overlay.draining, overlay.scaled_down) == ({"a"}, frozenset())
    assert edited(by_scaler, removing("a")).scaled_down == frozenset()
    left = edited(by_scaler, drained({"a"}))
    assert (left.removed, left.scaled_down) == ({"a"}, {"a"})
    assert Overlay.of(left.document()) == left
    assert edited(restoring(["a"]), overlay=left).scaled_down == frozenset()
    added = edited(adding(an_instance("c")), scaling((), ["c"]), drained({"c"}))
    assert added.scaled_down == frozenset()


def test_a_document_of_an_older_replica_says_nothing_of_the_scaler() -> None:
    document = edited(scaling((), ["a"])).document()
    del document["scaled_down"]
    assert Overlay.of(document).scaled_down == frozenset()


def test_targets_are_kept_by_key() -> None:
    overlay = edited(
        targeting(None, {"quality": 0.5}),
        targeting("k", {"attainment": 0.9}),
        targeting(None, {"attainment": 0.8}),
        targeting("k", {"quality": None}),
    )
    found = overlay.targets
    assert found == {None: {"quality": 0.5, "attainment": 0.8}, "k": {"attainment": 0.9, "quality": None}}


def test_it_comes_back_from_its_document() -> None:
    overlay = edited(
        removing("a"),
        draining("b"),
        targeting(None, {"quality": 0.5}),
        targeting("k", {"quality": None}),
        adding(an_instance("c", api_key_env="SECRET")),
        overlay=Overlay().reloaded(),
    )
    document = json.loads(json.dumps(overlay.document()))
    assert Overlay.of(document) == overlay
    assert Overlay.of({}) == Overlay()
    assert Overlay.of(Overlay().document()) == Overlay()


def test_what_does_not_fit_the_file_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown"):
        edited(adding(an_instance("c", serves={"unknown": "x"}))).over(FILE)


SECRETS = loads(
    "auth: {admin_key_env: ADMIN, engine_env: [LATER_KEY]}\n"
    "store: {url: 'postgresql+asyncpg://h/d', password_env: DATABASE_PASSWORD}\n"
    "models: [{name: m}]\n"
    "instances:\n"
    "  - {name: a, kind: vllm, url: 'http://h:1', serves: {m: x}, api_key_env: A_KEY, ca_file: /etc/ca.pem}\n"
    "discovery:\n"
    "  - kubernetes: {selector: app=x, namespace: n}\n"
    "    instance: {kind: vllm, serves: {m: x}, headers_env: {x-token: POD_TOKEN}, tokenizer: /m/tokenizer.json}\n"
)


@pytest.mark.parametrize(
    ("members", "refused"),
    [
        ({"api_key_env": "A_KEY"}, None),
        ({"api_key_env": "LATER_KEY"}, None),
        ({"headers_env": {"x-a": "A_KEY", "x-b": "POD_TOKEN"}}, None),
        ({"ca_file": "/etc/ca.pem", "tokenizer": "/m/tokenizer.json"}, None),
        ({"api_key_env": "PATH"}, "PATH"),
        ({"api_key_env": "ADMIN"}, "ADMIN"),
        ({"api_key_env": "DATABASE_PASSWORD"}, "DATABASE_PASSWORD"),
        ({"headers_env": {"x-a": "A_KEY", "x-b": "HOME"}}, "HOME"),
        ({"ca_file": "/etc/shadow"}, "ca_file"),
        ({"tokenizer": "/etc/ca.pem"}, "tokenizer"),
    ],
)
def test_the_shared_document_asks_for_no_secret_and_no_file_of_its_own(
    members: dict[str, Any], refused: str | None
) -> None:
    document = json.loads(json.dumps(edited(adding(an_instance("c", **members))).document()))
    overlay = Overlay.of(document)
    if refused is None:
        assert overlay.over(SECRETS).instance("c") is not None
    else:
        with pytest.raises(ConfigError, match=refused):
            overlay.over(SECRETS)


@pytest.mark.parametrize(
    "document",
    [
        {"revision": 1},
        {"revision": 1, "reloads": 0, "added": 5, "removed": [], "draining": [], "targets": {"fleet": {}, "keys": {}}},
        {"revision": 1, "reloads": 0, "added": [], "removed": [], "draining": [], "targets": []},
        {"revision": "x", "reloads": 0, "added": [], "removed": [], "draining": [], "targets": {"fleet": {}, "keys": {}}},
        {
            "revision": 1,
            "reloads": 0,
            "added": [],
            "removed": [],
            "draining": [],
            "targets": {"fleet": {"quality": "high"}, "keys": {}},
        },
    ],
)  # fmt: skip
def test_another_versions_document_is_told_as_such(document: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="the shared fleet document"):
        Overlay.of(document)


def test_an_instance_that_does_not_validate_is_named() -> None:
    document = Overlay().document() | {"revision": 1, "added": [{"name": "c", "kind": "steam"}]}
    with pytest.raises(ConfigError, match="kind"):
        Overlay.of(document)
