"""Counts the tokens of one event of a stream, or of an answer in one piece, as far as they show."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from router.request.prompt import BYTES_PER_TOKEN

#: The longest tokens of vocabularies in use are runs of this many spaces or dashes.
_MOST_BYTES_OF_A_TOKEN = 128
#: No other token that is not ASCII is longer, in characters: the longest are Thai (21 in the vocabulary of GPT-4o). Few have
#: more than four Chinese, Japanese or Korean characters or emoji.
_MOST_CHARS_OF_A_TOKEN = 24
_MOST_CJK_CHARS_OF_A_TOKEN = 4
_FIRST_CJK_CHAR = "\u2e80"
#: The most different characters in such a run.
_CHARS_OF_A_RUN = 3


def tokens_of_text(text: str) -> int:
    """Tokens that the text of one event holds, at least. One word may be one token. A token never holds two words, so an
    engine that sends several words in one event does not stream token by token: then the usual number of bytes per
    token counts too. It also does if one word, as of a script without spaces, is longer than a token."""
    if not text:
        return 0
    words = len(text.split())
    is_ascii = text.isascii()
    size = len(text) if is_ascii else len(text.encode("utf-8", "surrogatepass"))
    if is_ascii:
        longest = _MOST_BYTES_OF_A_TOKEN
    else:
        longest = _MOST_CHARS_OF_A_TOKEN if max(text) < _FIRST_CJK_CHAR else _MOST_CJK_CHARS_OF_A_TOKEN
    if words > 1 or (len(text) > longest and len(set(text)) > _CHARS_OF_A_RUN):
        return max(words, -(-size // BYTES_PER_TOKEN))
    return max(1, -(-size // _MOST_BYTES_OF_A_TOKEN))


#: At most one word of plain ASCII, in JSON's form: no quote and no backslash.
_is_one_word = re.compile(rb" *[!#-\[\]-~]* *").fullmatch


def tokens_of_json(text: bytes) -> int:
    """Tokens of a text in JSON's form, without its quotes and not empty. Raises ValueError."""
    if len(text) <= _MOST_BYTES_OF_A_TOKEN and _is_one_word(text):
        return 1  # as `tokens_of_text` says, in a fraction of the time
    return tokens_of_text(orjson.loads(b'"%b"' % text))


_LETTERS = bytes(letter for letter in range(ord("!"), ord("~") + 1) if letter not in b'"\\')


def tokens_of_each(texts: Sequence[bytes]) -> list[int]:
    """The same of each of several texts. Raises ValueError."""
    if len(texts) > 1 and max(map(len, texts)) <= _MOST_BYTES_OF_A_TOKEN:
        words = b"".join([text.strip(b" ") for text in texts])  # if each text is one, as of `_is_one_word`
        if not words.translate(None, _LETTERS):
            return [1] * len(texts)
    return [tokens_of_json(text) for text in texts]


def tokens_of(answer: Mapping[str, Any]) -> int:
    """Tokens that the choices of an answer in one piece hold, as far as they show."""
    return sum(map(choice_tokens, choices_of(answer)))


def choices_of(payload: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What an event says of each choice."""
    choices = payload.get("choices")
    if type(choices) is list and len(choices) == 1 and type(choices[0]) is dict:
        return choices
    return [each for each in choices if isinstance(each, dict)] if isinstance(choices, list) else []


def index_of(choice: Mapping[str, Any]) -> int:
    """The number of a choice."""
    index = choice.get("index")
    return index if type(index) is int else 0


def ended_in(choices: Sequence[Mapping[str, Any]]) -> set[int]:
    """The choices that an event ends."""
    ended = set()
    for each in choices:
        if isinstance(each.get("finish_reason"), str):
            ended.add(index_of(each))
    return ended


def choice_tokens(choice: Mapping[str, Any]) -> int:
    """Tokens that one event brings for one choice."""
    logprobs = choice.get("logprobs")
    if isinstance(logprobs, dict):
        listed = logprobs.get("content") or logprobs.get("tokens")
        if isinstance(listed, list) and listed:
            return len(listed)
    ids = choice.get("token_ids")
    if isinstance(ids, list) and ids:
        return len(ids)
    return tokens_of_text(text_of(choice))


#: The fields of most deltas and messages.
_PLAIN = frozenset({"role", "content"})


def text_of(choice: Mapping[str, Any]) -> str:
    """All that the model wrote of a choice, of an event or of an answer in one piece."""
    delta = choice.get("delta") or choice.get("message")
    said = delta if isinstance(delta, dict) else choice
    if said.keys() <= _PLAIN and type(content := said.get("content")) is str:
        return content
    parts = [
        said.get("reasoning") or said.get("reasoning_content"),
        said.get("content"),
        said.get("text"),
        said.get("refusal"),
    ]
    if (calls := said.get("tool_calls")) or said.get("function_call"):
        functions = (
            [call.get("function") for call in calls if isinstance(call, dict)]
            if isinstance(calls, list)
            else []
        )
        for function in (*functions, said.get("function_call")):
            if isinstance(function, dict):
                parts += [function.get("name"), function.get("arguments")]
    return "".join([part for part in parts if type(part) is str])
