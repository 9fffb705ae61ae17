"""The features of a prompt for predictors. Training and serving use this one function.

A prompt is cut into words, numbers, single signs and line breaks, in lower case. Each becomes a 16-bit hash, a number its count
of digits (`predictors.kernels.reference.words`): whether 17 or 23 apples were sold says nothing about an answer's length. Only
the first `HEAD_CHARS` and last `TAIL_CHARS` characters are read, so a prompt of a megabyte costs no more than one of a page. No
tokenizer is needed, so the features are the same for every model and engine.
"""

from __future__ import annotations

from operator import add

from predictors.kernels import read_words
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


def prompt_features(text: str) -> PromptFeatures:
    """Features of a prompt (of a chat: all its texts joined by line breaks). Never fails, whatever the text."""
    if len(text) > HEAD_CHARS + TAIL_CHARS:
        first, kinds = read_words(text[:HEAD_CHARS])
        last, kinds_of_last = read_words(text[-TAIL_CHARS:])
        kinds = tuple(map(add, kinds, kinds_of_last))
        words = len(first) + len(last)
        head, tail = first[:HEAD_TOKENS], last[-TAIL_TOKENS:]
    else:
        first, kinds = read_words(text)
        words = len(first)
        head, tail = first[:HEAD_TOKENS], first[max(HEAD_TOKENS, words - TAIL_TOKENS) :]
    return PromptFeatures(head, tail, (*_size_and_lines(text), words, *kinds))


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
