"""The features of a prompt for predictors. Training and serving use this one function.

A prompt is cut into words, numbers, single signs and line breaks, in lower case. Each becomes a 16-bit hash. Numbers
become their count of digits: whether 17 or 23 apples were sold says nothing about an answer's length. Only the first
`HEAD_CHARS` and last `TAIL_CHARS` characters are read, so a prompt of a megabyte costs no more than one of a page. No
tokenizer is needed, so the features are the same for every model and engine.
"""

from __future__ import annotations

import re
from zlib import crc32

from router.core.types import PromptFeatures

#: Changes whenever the same text would give other features. An artifact names the version with which it was made.
TEXT_FEATURES = "words-16bit-1"

HEAD_TOKENS = 128
TAIL_TOKENS = 64
HEAD_CHARS = 2048
TAIL_CHARS = 1024
#: Bytes and lines are counted exactly up to so many characters. No prompt in the training data is longer.
WHOLE_CHARS = 1 << 20
SAMPLES = 16
#: The members of `PromptFeatures.counts`.
COUNTS = ("bytes", "lines", "words", "digits", "signs", "capitals", "not_ascii", "question_marks")

_TOKEN = re.compile(r"[^\W\d_]+|\d+|\n|[^\w\s]|_")
#: The same for ASCII alone, which most prompts are, in two thirds of the time.
_ASCII_TOKEN = re.compile(r"[A-Za-z]+|[0-9]+|[^A-Za-z0-9 \t\r\f\v\x1c-\x1f]")
_NOT_ASCII = re.compile(r"[^\x00-\x7f]+")
_DIGITS = b"0123456789"
_SIGNS = b".,;:!()[]{}<>=+-*/\\$_`\"'"
_CAPITALS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_MAX_WORD_CHARS = 24
_CACHE_WORDS = 50_000


class _Ids(dict[str, int]):
    """Ids of tokens as written. An unknown token is hashed, and kept while there is room."""

    def __missing__(self, token: str) -> int:
        word = token.lower()[:_MAX_WORD_CHARS]
        if word.isdecimal():
            word = f"#{len(token)}"
        value = crc32(word.encode("utf-8", "replace")) & 0xFFFF
        if len(self) < _CACHE_WORDS and len(token) <= _MAX_WORD_CHARS:
            self[token] = value
        return value


_id_of = _Ids().__getitem__


def prompt_features(text: str) -> PromptFeatures:
    """Features of a prompt (of a chat: all its texts joined by line breaks). Never fails, whatever the text."""
    if len(text) > HEAD_CHARS + TAIL_CHARS:
        start, end = text[:HEAD_CHARS], text[-TAIL_CHARS:]
        first, last = _tokens(start), _tokens(end)
        counts = _counts(text, start + end, len(first) + len(last))
        return PromptFeatures(_hashed(first[:HEAD_TOKENS]), _hashed(last[-TAIL_TOKENS:]), counts)
    tokens = _tokens(text)
    rest = tokens[HEAD_TOKENS:]
    return PromptFeatures(
        _hashed(tokens[:HEAD_TOKENS]), _hashed(rest[-TAIL_TOKENS:]), _counts(text, text, len(tokens))
    )


def _tokens(text: str) -> list[str]:
    return (_ASCII_TOKEN if text.isascii() else _TOKEN).findall(text)


def _hashed(tokens: list[str]) -> tuple[int, ...]:
    return tuple(map(_id_of, tokens))


def _size_and_lines(text: str) -> tuple[int, int]:
    """Bytes and lines. For very long texts they are estimated from `SAMPLES` pieces, since reading all of 30 MB would
    block the event loop."""
    length = len(text)
    if length <= WHOLE_CHARS:
        return length if text.isascii() else len(text.encode("utf-8", "replace")), text.count("\n") + 1
    size = lines = 0
    piece_chars = WHOLE_CHARS // SAMPLES
    for number in range(SAMPLES):
        start = number * (length - piece_chars) // (SAMPLES - 1)
        piece = text[start : start + piece_chars]
        size += piece_chars if piece.isascii() else len(piece.encode("utf-8", "replace"))
        lines += piece.count("\n")
    share = length / WHOLE_CHARS
    return round(size * share), round(lines * share) + 1


def _counts(text: str, read: str, tokens: int) -> tuple[int, ...]:
    size, lines = _size_and_lines(text)
    plain = read.encode("ascii", "ignore")
    length = len(plain)
    capitals = length - len(plain.translate(None, _CAPITALS))
    if length < len(read):
        capitals += sum(map(str.isupper, "".join(_NOT_ASCII.findall(read))))
    return (
        size,
        lines,
        tokens,
        # bytes.translate removes the given characters: several times faster than counting each of them
        length - len(plain.translate(None, _DIGITS)),
        length - len(plain.translate(None, _SIGNS)),
        capitals,
        len(read) - length,
        read.count("?"),
    )
