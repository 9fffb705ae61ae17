"""What a body needs of an engine, in step with what the backends refuse."""

from __future__ import annotations

from typing import Any

import pytest

import backends
from backends.ollama_bodies import native_body
from router.core.errors import UpstreamRejected
from router.core.interfaces import Call
from router.core.types import Candidate, Capability, Need
from router.request import body as bodies
from router.request.needs import needs_of

HI = {"role": "user", "content": "hi"}
PICTURE = "data:image/png;base64,iVBORw0KGgo="


def part(kind: str, value: Any) -> dict[str, Any]:
    return {"type": kind, kind: value}


def said(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [HI, {"role": "user", "content": list(parts)}]}


CASES: list[tuple[str, dict[str, Any], dict[Capability, str]]] = [
    ("chat", {"messages": [HI]}, {}),
    ("chat", {"messages": [HI], "n": 1, "best_of": None, "logprobs": True, "tools": []}, {}),
    ("chat", {"messages": [HI], "n": 2}, {Capability.SEVERAL_ANSWERS: "n"}),
    ("chat", {"messages": [HI], "prompt_logprobs": 0}, {Capability.PROMPT_LOGPROBS: "prompt_logprobs"}),
    ("completions", {"prompt": "hi", "use_beam_search": True}, {Capability.BEAM_SEARCH: "use_beam_search"}),
    ("completions", {"prompt": "hi", "use_beam_search": False, "prompt_logprobs": None}, {}),
    ("completions", {"prompt": "hi", "n": 1, "best_of": 3}, {Capability.SEVERAL_ANSWERS: "best_of"}),
    ("completions", {"prompt": "hi", "n": 2, "best_of": 3}, {Capability.SEVERAL_ANSWERS: "n"}),
    ("completions", {"prompt": "hi", "echo": False, "suffix": "x"}, {}),
    ("completions", {"prompt": "hi", "echo": True}, {Capability.ECHO: "echo"}),
    ("completions", {"prompt": ["hi"]}, {}),
    ("completions", {"prompt": ["hi", "ho"]}, {Capability.SEVERAL_PROMPTS: "prompt"}),
    ("completions", {"prompt": [7]}, {Capability.PROMPTS_AS_IDS: "prompt"}),
    ("completions", {"prompt": [7, 8]}, {Capability.PROMPTS_AS_IDS: "prompt"}),
    ("completions", {"prompt": [[7, 8]]}, {Capability.PROMPTS_AS_IDS: "prompt"}),
    (
        "completions",
        {"prompt": [[7], [8]]},
        {Capability.PROMPTS_AS_IDS: "prompt", Capability.SEVERAL_PROMPTS: "prompt"},
    ),
    ("embeddings", {"input": "hi", "n": 2}, {}),
    ("embeddings", {"input": ["hi", "ho"]}, {}),
    ("embeddings", {"input": [7, 8]}, {Capability.PROMPTS_AS_IDS: "input"}),
    ("embeddings", {"input": [[7], [8]]}, {Capability.PROMPTS_AS_IDS: "input"}),
    ("chat", said(part("text", "a"), part("refusal", "b"), part("image_url", {"url": PICTURE})), {}),
    ("chat", said(part("image_url", PICTURE)), {}),
    ("chat", said(part("image_url", {"url": "http://a/b.png"})), {Capability.IMAGES_BY_URL: "messages"}),
    (
        "chat",
        said(part("image_url", {"url": "data:image/svg+xml,a"})),
        {Capability.IMAGES_BY_URL: "messages"},
    ),
    ("chat", said(part("image_url", {"url": "data:a;base64"})), {Capability.IMAGES_BY_URL: "messages"}),
    ("chat", said(part("input_audio", {"data": "AA=="})), {Capability.OTHER_MEDIA: "messages"}),
    (
        "chat",
        {**said(part("video_url", {"url": PICTURE}), part("image_url", "http://a/b.png")), "n": 2},
        {
            Capability.SEVERAL_ANSWERS: "n",
            Capability.IMAGES_BY_URL: "messages",
            Capability.OTHER_MEDIA: "messages",
        },
    ),
]


@pytest.mark.parametrize(("api", "body", "needs"), CASES)
def test_needs(api: str, body: dict[str, Any], needs: dict[Capability, str]) -> None:
    bodies.check(api, body)
    found = needs_of(api, body)
    assert set(found) == {Need(*each) for each in needs.items()}
    assert len(found) == len(needs)
    # An Ollama's backend refuses what it is declared to lack, naming the same field, and nothing else.
    call = Call(api, body, Candidate("i", "m", "m"), "r")
    lacking = [need for need in found if need.capability in backends.KINDS["ollama"].unsupported]
    if not lacking:
        native_body(call, None)
        return
    with pytest.raises(UpstreamRejected) as refused:
        native_body(call, None)
    assert refused.value.param == lacking[0].param


def test_every_ability_that_a_kind_lacks_can_be_needed() -> None:
    needed = {capability for _, _, needs in CASES for capability in needs}
    declared = [kind.unsupported for kind in backends.KINDS.values()]
    assert frozenset[Capability]().union(*declared) <= needed | {Capability.TRUNCATION}


@pytest.mark.parametrize(("api", "body"), [("chat", {"messages": [HI]}), ("embeddings", {"input": [7]})])
def test_a_truncation_is_needed_beside_the_rest(api: str, body: dict[str, Any]) -> None:
    need = Need(Capability.TRUNCATION, "truncate_prompt_tokens")
    assert needs_of(api, body, truncates=True) == (need, *needs_of(api, body))
