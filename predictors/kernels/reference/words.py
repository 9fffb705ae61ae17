"""The words of a text as ids, and what its characters are."""

from __future__ import annotations

import re
from binascii import b2a_base64
from functools import lru_cache
from struct import pack
from zlib import crc32

_TOKEN = re.compile(r"[^\W\d_]+|\d+|\n|[^\w\s]|_")
USUAL_SIGNS = b".,;:!()[]{}<>=+-*/\\$_`\"'"
_DIGITS = b"0123456789"
MAX_WORD_CHARS = 24


def read_words(text: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The id of each word, number, single sign and line break, in 16 bits; and the counts of ASCII digits, of usual signs, of
    capitals, of characters that are not ASCII, and of question marks."""
    ascii_text = text.encode("ascii", "ignore")
    size = len(ascii_text)
    # bytes.translate removes the given characters: several times faster than counting each of them
    counts = (
        size - len(ascii_text.translate(None, _DIGITS)),
        size - len(ascii_text.translate(None, USUAL_SIGNS)),
        sum(map(str.isupper, text)),
        len(text) - size,
        text.count("?"),
    )
    return tuple(word_id(token) for token in _TOKEN.findall(text)), counts


def ids_as_base64(head: tuple[int, ...], tail: tuple[int, ...]) -> str:
    """Ids of words in base64, two bytes for each, the lower one first."""
    ids = head + tail
    return b2a_base64(pack(f"<{len(ids)}H", *ids), newline=False).decode()


def word_id(token: str) -> int:
    """The hash of a token in lower case; of a number, of its count of digits."""
    return _short_word_id(token) if len(token) <= MAX_WORD_CHARS else _word_id(token)


def _word_id(token: str) -> int:
    word = token.lower()[:MAX_WORD_CHARS]
    if word.isdecimal():
        word = f"#{len(token)}"
    return crc32(word.encode("utf-8", "replace")) & 0xFFFF


_short_word_id = lru_cache(50_000)(_word_id)
