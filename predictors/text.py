"""What predictors see of a prompt: the one feature function of text, in training and in serving.

A prompt is cut into words, numbers, single signs and line breaks, in lower case; each becomes a 16-bit hash.
Numbers become their count of digits: whether 17 or 23 apples were sold says nothing of an answer's length.
Only the first `HEAD_CHARS` and last `TAIL_CHARS` characters are read, so a prompt of a megabyte costs no more
than one of a page. Needs no tokenizer, so it is the same for every model and engine.
"""

from __future__ import annotations

import re
from zlib import crc32

from router.core.types import PromptFeatures

#: Changes whenever the same text would give other features; an artifact names the one that it was made with.
TEXT_FEATURES = "words-16bit-1"

HEAD_TOKENS = 128
TAIL_TOKENS = 64
HEAD_CHARS = 2048
TAIL_CHARS = 1024
#: What `PromptFeatures.counts` holds.
COUNTS = ("bytes", "lines", "words", "digits", "signs", "capitals", "not_ascii", "question_marks")

_TOKEN = re.compile(r"[^\W\d_]+|\d+|\n|[^\w\s]|_")
_MAX_WORD_CHARS = 24
_CACHE_WORDS = 50_000
_ids: dict[str, int] = {}


def prompt_features(text: str) -> PromptFeatures:
    """Features of a prompt (of a chat: all its texts joined by line breaks). Never fails, whatever the text."""
    if len(text) > HEAD_CHARS + TAIL_CHARS:
        start, end = text[:HEAD_CHARS], text[-TAIL_CHARS:]
        first, last = _TOKEN.findall(start), _TOKEN.findall(end)
        counts = _counts(text, start + end, len(first) + len(last))
        return PromptFeatures(_hashed(first[:HEAD_TOKENS]), _hashed(last[-TAIL_TOKENS:]), counts)
    tokens = _TOKEN.findall(text)
    rest = tokens[HEAD_TOKENS:]
    return PromptFeatures(
        _hashed(tokens[:HEAD_TOKENS]), _hashed(rest[-TAIL_TOKENS:]), _counts(text, text, len(tokens))
    )


def _hashed(tokens: list[str]) -> tuple[int, ...]:
    ids = _ids
    return tuple([ids[token] if token in ids else _hash(token) for token in tokens])


def _hash(token: str) -> int:
    word = token.lower()[:_MAX_WORD_CHARS]
    if word.isdecimal():
        word = f"#{len(token)}"
    value = crc32(word.encode("utf-8", "replace")) & 0xFFFF
    if len(_ids) < _CACHE_WORDS and len(token) <= _MAX_WORD_CHARS:
        _ids[token] = value
    return value


def _counts(text: str, read: str, tokens: int) -> tuple[int, ...]:
    ascii_only = read.isascii()
    size = len(text) if ascii_only and text.isascii() else len(text.encode("utf-8", "replace"))
    letters = sum(map(str.isupper, read)) if not read.islower() else 0
    return (
        size,
        text.count("\n") + 1,
        tokens,
        sum(map(read.count, "0123456789")),
        sum(map(read.count, ".,;:!()[]{}<>=+-*/\\$_`\"'")),
        letters,
        0 if ascii_only else sum(not c.isascii() for c in read),
        read.count("?"),
    )
