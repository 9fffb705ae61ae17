"""The capabilities that a request needs and that not every kind of engine has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from router.core.types import Capability, Need


def needs_of(api: str, body: Mapping[str, Any], *, truncates: bool = False) -> tuple[Need, ...]:
    """The needs of a checked body, each once. `truncates`: its prompt is to be truncated."""
    needs = [Need(Capability.TRUNCATION, "truncate_prompt_tokens")] if truncates else []
    if api == "embeddings":
        return (*needs,) if _texts(body["input"]) else (*needs, Need(Capability.PROMPTS_AS_IDS, "input"))
    for several in ("n", "best_of"):
        if several in body and (body[several] or 1) > 1:
            needs.append(Need(Capability.SEVERAL_ANSWERS, several))
            break
    if "prompt_logprobs" in body and body["prompt_logprobs"] is not None:
        needs.append(Need(Capability.PROMPT_LOGPROBS, "prompt_logprobs"))
    if "use_beam_search" in body and body["use_beam_search"] not in (None, False):
        needs.append(Need(Capability.BEAM_SEARCH, "use_beam_search"))
    if api == "chat":
        return (*needs, *_media(body["messages"]))
    prompt = body["prompt"]
    if not _texts(prompt):
        needs.append(Need(Capability.PROMPTS_AS_IDS, "prompt"))
    if not isinstance(prompt, str) and len(prompt) > 1 and not isinstance(prompt[0], int):
        needs.append(Need(Capability.SEVERAL_PROMPTS, "prompt"))
    if body.get("echo"):
        needs.append(Need(Capability.ECHO, "echo"))
    return tuple(needs)


def _texts(prompt: str | list[Any]) -> bool:
    """Whether a prompt is text, not token ids."""
    return isinstance(prompt, str) or isinstance(prompt[0], str)


def _holds_data(url: str) -> bool:
    """Whether a URL is the image itself, as base64."""
    return url.startswith("data:") and url.endswith(";base64", 0, max(0, url.find(",")))


def _media(messages: list[dict[str, Any]]) -> list[Need]:
    found = set()
    for message in messages:
        content = message.get("content")
        if isinstance(content, list):
            for part in content:
                kind = part.get("type", "text")
                if kind == "image_url":
                    image = part.get(kind)
                    url = image.get("url") if isinstance(image, dict) else image
                    if isinstance(url, str) and not _holds_data(url):
                        found.add(Capability.IMAGES_BY_URL)
                elif kind not in ("text", "refusal"):
                    found.add(Capability.OTHER_MEDIA)
    return [Need(capability, "messages") for capability in sorted(found)] if found else []
