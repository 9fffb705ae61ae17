"""The emulator's texts: token counts, prefix blocks, answers and their lengths (docs/emulator.md).

The tokenizer is arithmetic, so that a caller can predict every count. A chat has no overhead: its tokens are those of all its
message texts joined.
"""

from __future__ import annotations

import base64
import math
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import islice
from statistics import NormalDist
from typing import Any

import orjson

from router.core.profile import EngineProfile

BYTES_PER_TOKEN = 4
_QUANTIZED = re.compile(r"-(q\d|fp8|int4)$")
BLOCK_TOKENS = 16

#: Every answer begins with these pieces (one token each).
OPENING = ("Emulated", " text", ",", " not", " a", " model", "'s", " answer", ":")

_SENTENCES = (
    "the queue grows when requests arrive faster than the batch can finish them.",
    "a short prompt waits behind a long one unless the prefill is cut into chunks.",
    "memory for keys and values bounds how many sequences can run together.",
    "every decoding step reads all weights once, so a larger batch is nearly free until it is not.",
    "a cached prefix saves the sums of its blocks but not the wait for a place.",
    "the first token tells how long the line was, the later ones how full the room is.",
    "two replicas of one model seldom hold the same blocks at the same time.",
    "when blocks run out the youngest sequence gives its own back and starts again later.",
    "an answer ends when the length that was drawn for it has been written.",
    "words follow one another here in a fixed circle and mean nothing more than that.",
)
_CIRCLE: tuple[str, ...] = tuple(" " + word for sentence in _SENTENCES for word in sentence.split())
_CIRCLE_BYTES: tuple[bytes, ...] = tuple(word.encode() for word in _CIRCLE)
_OPENING_BYTES: tuple[bytes, ...] = tuple(piece.encode() for piece in OPENING)
_STANDARD_NORMAL = NormalDist()


def encoded(text: str | bytes) -> bytes:
    """The UTF-8 of a text; half of a surrogate pair stays what it is."""
    return text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text


def count_tokens(text: str | bytes) -> int:
    """Tokens of a text: ceil(UTF-8 bytes / 4), at least 1."""
    return max(1, -(-len(encoded(text)) // BYTES_PER_TOKEN))


def chat_text(messages: Sequence[Mapping[str, Any]]) -> str:
    """All message texts joined, without roles. Parts that are not text (images) do not count."""
    return "".join(piece for message in messages for piece in _content_texts(message.get("content")))


def _content_texts(content: Any) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        for part in content:
            if isinstance(part, Mapping) and isinstance(part.get("text"), str):
                yield part["text"]


def prefix_hashes(text: str | bytes) -> tuple[int, ...]:
    """One hash for each full block of 16 tokens (64 bytes). Each covers the text from its beginning to the block's end."""
    data = encoded(text)
    size = BLOCK_TOKENS * BYTES_PER_TOKEN
    running = blake2b(digest_size=8)
    hashes = []
    for start in range(0, len(data) - size + 1, size):
        running.update(data[start : start + size])
        hashes.append(int.from_bytes(running.digest(), "big"))
    return tuple(hashes)


def seed_of(text: str | bytes, salt: str = "") -> int:
    """A 64-bit number that depends on the text and the salt only."""
    salted = blake2b(salt.encode(), digest_size=16).digest()
    return int.from_bytes(blake2b(encoded(text), digest_size=8, salt=salted).digest())


def _unit(seed: int) -> float:
    """A number strictly between 0 and 1."""
    return ((seed >> 11) + 0.5) / (1 << 53)


def length_distribution(model: str) -> tuple[float, float]:
    """Median (tokens) and sigma (of the natural logarithm) of the lengths of a model's answers.

    They differ by model, because some models write long answers and others short ones: the median is 120 to 320 and
    sigma 0.6 to 0.9, by a hash of the name.
    """
    seed = seed_of(model.lower(), "length")
    return 120.0 + 200.0 * _unit(seed), 0.6 + 0.3 * _unit(seed_of(model.lower(), "spread"))


def drawn_output_tokens(text: str | bytes, model: str, salt: int = 0) -> int:
    """The length of the answer of `model` to this prompt if the request does not set it (at least 1). `salt` separates
    the choices of one request (`n`)."""
    median, sigma = length_distribution(model)
    normal = _STANDARD_NORMAL.inv_cdf(_unit(seed_of(text, f"{model.lower()}/{salt}")))
    return max(1, round(median * math.exp(sigma * normal)))


def requested_output_tokens(params: Any, names: Sequence[str]) -> int | None:
    """The length that a request sets: an int, or a mapping {model: int} looked up under `names`.

    None without a matching entry. Raises ValueError for a value of another form.
    """
    if isinstance(params, Mapping):
        params = next((params[name] for name in names if name in params), None)
    if params is None:
        return None
    if isinstance(params, bool) or not isinstance(params, int) or params < 1:
        raise ValueError("emulate_output_tokens must be a positive integer or an object {model: integer}")
    return params


def model_names(profile: EngineProfile, *served: str) -> list[str]:
    """The names under which a request may set a length: the served name, the profile's, its model's with quantisation
    and (last) without. The last one is used for drawing lengths, so that quantised and other copies of a model agree.
    """
    model = profile.name.partition("@")[0]
    return [*served, profile.name, model, _QUANTIZED.sub("", model)]


class Answer:
    """The text of one answer, one piece a token.

    `tokens` is its length. `escaped` gives pieces as they stand inside a JSON string, `raw` as text.
    """

    __slots__ = ("_offset", "_pieces", "tokens")

    def __init__(self, seed: int, tokens: int, pieces: Sequence[str] | None = None) -> None:
        self._offset = seed % len(_CIRCLE)
        self._pieces = pieces
        self.tokens = tokens

    def piece(self, index: int) -> str:
        if self._pieces is not None:
            return self._pieces[index] if index < len(self._pieces) else ""
        if index < len(OPENING):
            return OPENING[index]
        return _CIRCLE[(self._offset + index) % len(_CIRCLE)]

    def raw(self, start: int, stop: int) -> str:
        return "".join([self.piece(index) for index in range(start, stop)])

    def escaped(self, start: int, stop: int) -> bytes:
        if self._pieces is None:
            # No piece of the text needs escaping: nearly all chunks take this path.
            if stop - start == 1:
                if start < len(OPENING):
                    return _OPENING_BYTES[start]
                return _CIRCLE_BYTES[(self._offset + start) % len(_CIRCLE)]
            return self.raw(start, stop).encode()
        return orjson.dumps(self.raw(start, stop))[1:-1]


def embedding(text: str | bytes, dimensions: int, model: str = "") -> list[float]:
    """A unit vector that depends only on the text and the model."""
    data, key = encoded(text), blake2b(model.encode(), digest_size=32).digest()
    counters = (number.to_bytes(4, "big") for number in range(-(-dimensions // 16)))
    digests = (blake2b(data + counter, key=key, digest_size=64).digest() for counter in counters)
    numbers = (int.from_bytes(digest[at : at + 4], "big") for digest in digests for at in range(0, 64, 4))
    values = [(number + 0.5) / 2**31 - 1.0 for number in islice(numbers, dimensions)]
    norm = math.sqrt(sum(value * value for value in values))
    return [value / norm for value in values]


def base64_floats(values: Sequence[float]) -> str:
    """An embedding in the `encoding_format` base64: little-endian floats of four bytes."""
    return base64.b64encode(struct.pack(f"<{len(values)}f", *values)).decode()
