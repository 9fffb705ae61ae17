"""Fields that operators forbid, and media that engines would fetch.

An engine acts on some fields with its own rights: it runs a template, loads a tensor, delays other requests, finds another
client's picture in its cache, or opens a URL from its place in the network. Each body is checked once, before it is
translated or sent. The forbidden names come from the fleet file and may be anywhere in open-ended arguments, so these
checks are code, not a model of the body.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from router.core.errors import invalid_request

#: Fields of a message's part that name media, beside those that end in `url`.
_MEDIA = frozenset({"image", "video", "audio", "file", "input_audio"})
#: A text that an engine may read as a URL: some parsers drop white space. Neither base64 nor an id begins so.
_BEGINS_URL = re.compile(r"[\0- ]|[A-Za-z][A-Za-z0-9+.\t\r\n-]{0,99}:[\t\r\n]{0,9}/")
#: Endings of fields that hold further arguments for engines (vLLM takes `kv_transfer_params` in `vllm_xargs` too).
_ARGUMENTS = ("_kwargs", "_body", "_params", "_xargs")
_NOT_GIVEN: tuple[Any, ...] = (None, [], {}, "")
_ALLOWED = {"allow": ("data:", "http://", "https://"), "data_only": ("data:",)}


class FieldRules:
    """`forbidden` are names of fields; `media_urls` is `allow` or `data_only` (`limits` of the fleet file)."""

    def __init__(self, forbidden: Collection[str], media_urls: str) -> None:
        self._forbidden = frozenset(forbidden)
        self._schemes = _ALLOWED[media_urls]
        self._refused = (
            "media must be sent as data: URIs"
            if media_urls == "data_only"
            else "is not an http, https or data URL"
        )

    def check_names(self, body: Mapping[str, Any]) -> None:
        """Raise a 400 for a forbidden field, in arguments (`chat_template_kwargs`) too. Null and empty values pass: clients
        write `"tools": []` into every request."""
        if not self._forbidden.isdisjoint(body):
            self._refuse(body, "")
        if dict not in map(type, body.values()):
            return
        for name, value in body.items():
            if type(value) is dict and name.endswith(_ARGUMENTS) and not self._forbidden.isdisjoint(value):
                self._refuse(value, f"{name}.")

    def _refuse(self, members: Mapping[str, Any], at: str) -> None:
        for name, value in members.items():
            if name in self._forbidden and value not in _NOT_GIVEN:
                raise invalid_request(f"{at}{name} is not allowed here.", f"{at}{name}")

    def check_media(self, body: Mapping[str, Any]) -> None:
        """Raise a 400 for parts of a chat's messages with a forbidden field, or with media that an engine must not fetch."""
        messages = body.get("messages")
        if not isinstance(messages, list):
            return
        for index, message in enumerate(messages):
            content = message.get("content") if isinstance(message, dict) else None
            if isinstance(content, list):
                for number, part in enumerate(content):
                    if isinstance(part, dict) and not self._forbidden.isdisjoint(part):
                        self._refuse(part, f"messages[{index}].content[{number}].")
                    for name, url in _urls(part):
                        if not url[:8].lower().startswith(self._schemes):
                            where = f"messages[{index}].content[{number}].{name}"
                            raise invalid_request(f"{where}: {self._refused}.", where)


def _urls(part: Any) -> Iterator[tuple[str, str]]:
    """All URLs and texts that name media in a part, with the field's name. Within the field, a text under another key than a
    URL's (`data`, `file_id`) counts only if it begins as a URL does."""
    if not isinstance(part, dict):
        return
    for name, value in part.items():
        if name in _MEDIA or name.endswith("url"):
            ahead: list[tuple[str, Iterable[Any]]] = [("url", (value,))]
            while ahead:
                key, values = ahead.pop()
                is_url = key.endswith("url")
                for each in values:
                    if isinstance(each, str):
                        if is_url or _BEGINS_URL.match(each):
                            yield name, each
                    elif isinstance(each, list):  # a video may be a list of frames
                        ahead.append((key, each))
                    elif isinstance(each, dict):
                        ahead.extend([(member, (inner,)) for member, inner in each.items()])
