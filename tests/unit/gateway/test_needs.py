"""What a body needs of an engine, in step with what the backends refuse."""

from __future__ import annotations

from typing import Any

import pytest

import backends
from backends.ollama_bodies import chat_body, embed_body, generate_body
from router.core.errors import UpstreamRejected
from router.core.interfaces import Call
from router.core.types import Ability, Candidate, Need
from router.gateway import body as bodies
from router.gateway.needs import needs_of

HI = {"role": "user", "content": "hi"}
PICTURE = "data:image/png;base64,iVBORw0KGgo="
TO_OLLAMA = {"chat": chat_body, "completions": generate_body, "embeddings": embed_body}


def part(kind: str, value: Any) -> dict[str, Any]:
    return {"type": kind, kind: value}


def said(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [HI, {"role": "user", "content": list(parts)}]}


CASES: list[tuple[str, dict[str, Any], dict[Ability, str]]] = [
    ("chat", {"messages": [HI]}, {}),
    ("chat", {"messages": [HI], "n": 1, "best_of": None, "logprobs": True, "tools": []}, {}),
    ("chat", {"messages": [HI], "n": 2}, {Ability.SEVERAL_ANSWERS: "n"}),
    ("completions", {"prompt": "hi", "n": 1, "best_of": 3}, {Ability.SEVERAL_ANSWERS: "best_of"}),
    ("completions", {"prompt": "hi", "n": 2, "best_of": 3}, {Ability.SEVERAL_ANSWERS: "n"}),
    ("completions", {"prompt": "hi", "echo": False, "suffix": "x"}, {}),
    ("completions", {"prompt": "hi", "echo": True}, {Ability.ECHO: "echo"}),
    ("completions", {"prompt": ["hi"]}, {}),
    ("completions", {"prompt": ["hi", "ho"]}, {Ability.SEVERAL_PROMPTS: "prompt"}),
    ("completions", {"prompt": [7]}, {Ability.PROMPTS_AS_IDS: "prompt"}),
    ("completions", {"prompt": [7, 8]}, {Ability.PROMPTS_AS_IDS: "prompt"}),
    ("completions", {"prompt": [[7, 8]]}, {Ability.PROMPTS_AS_IDS: "prompt"}),
    (
        "completions",
        {"prompt": [[7], [8]]},
        {Ability.PROMPTS_AS_IDS: "prompt", Ability.SEVERAL_PROMPTS: "prompt"},
    ),
    ("embeddings", {"input": "hi", "n": 2}, {}),
    ("embeddings", {"input": ["hi", "ho"]}, {}),
    ("embeddings", {"input": [7, 8]}, {Ability.PROMPTS_AS_IDS: "input"}),
    ("embeddings", {"input": [[7], [8]]}, {Ability.PROMPTS_AS_IDS: "input"}),
    ("chat", said(part("text", "a"), part("refusal", "b"), part("image_url", {"url": PICTURE})), {}),
    ("chat", said(part("image_url", PICTURE)), {}),
    ("chat", said(part("image_url", {"url": "http://a/b.png"})), {Ability.IMAGES_BY_URL: "messages"}),
    ("chat", said(part("image_url", {"url": "data:image/svg+xml,a"})), {Ability.IMAGES_BY_URL: "messages"}),
    ("chat", said(part("image_url", {"url": "data:a;base64"})), {Ability.IMAGES_BY_URL: "messages"}),
    ("chat", said(part("input_audio", {"data": "AA=="})), {Ability.OTHER_MEDIA: "messages"}),
    (
        "chat",
        {**said(part("video_url", {"url": PICTURE}), part("image_url", "http://a/b.png")), "n": 2},
        {
            Ability.SEVERAL_ANSWERS: "n",
            Ability.IMAGES_BY_URL: "messages",
            Ability.OTHER_MEDIA: "messages",
        },
    ),
]


@pytest.mark.parametrize(("api", "body", "needs"), CASES)
def test_needs(api: str, body: dict[str, Any], needs: dict[Ability, str]) -> None:
    bodies.check(api, body)
    found = needs_of(api, body)
    assert set(found) == {Need(*each) for each in needs.items()}
    assert len(found) == len(needs)
    # An Ollama's backend refuses what it is declared to lack, naming the same field, and nothing else.
    call = Call(api, body, Candidate("i", "m", "m"), "r")
    lacking = [need for need in found if need.ability in backends.LACKS["ollama"]]
    if not lacking:
        TO_OLLAMA[api](call, None)
        return
    with pytest.raises(UpstreamRejected) as refused:
        TO_OLLAMA[api](call, None)
    assert refused.value.param == lacking[0].param


def test_every_ability_that_a_kind_lacks_can_be_needed() -> None:
    needed = {ability for _, _, needs in CASES for ability in needs}
    assert backends.LACKS.keys() <= backends.KINDS.keys()
    assert frozenset[Ability]().union(*backends.LACKS.values()) <= needed
