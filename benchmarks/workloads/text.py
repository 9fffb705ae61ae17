"""The text that is sent for a request: made up, lengthened or cut to its `prompt_tokens`, as the emulator counts tokens.

Made-up text is distinct from its first bytes on, so that no two requests share a prefix by accident, except where `prefix_hashes`
says so. A `salt` changes all made-up text and no length: runs that share an engine do not warm each other's cache.
"""

from __future__ import annotations

from hashlib import blake2b

from backends.emulator.text import BYTES_PER_TOKEN, count_tokens
from benchmarks.workloads.format import PREFIX_BLOCK_TOKENS, WorkloadRequest

_SENTENCES = (
    "The first train of the morning leaves before the bakery on the corner opens.",
    "A map of the harbour hangs beside the door, and nobody remembers who drew it.",
    "When the river rises, the lower road is closed and the ferry runs every hour.",
    "Her notes on the experiment fill two folders, one for results and one for doubts.",
    "The committee met in spring, agreed on little, and postponed the rest to autumn.",
    "Three of the old clocks still keep time, though each of them shows another hour.",
    "He bought apples, a pound of nails and a lamp, and forgot what he had come for.",
    "In the valley the snow stays until April, on the southern slope until March.",
    "The library keeps the letters in a cabinet that is opened twice a year.",
    "Every repair was written down with the date, the part and the reason it broke.",
    "A long queue formed at the counter because the second clerk was at lunch.",
    "The bridge was measured again after the storm and had not moved at all.",
)
_WORDS = " ".join(_SENTENCES).split(" ")


def _filler() -> bytes:
    """About 64 KiB of plain text whose sentences stand in an order that does not repeat soon."""
    pieces: list[str] = []
    size, step = 0, 0
    while size < 1 << 16:
        digest = blake2b(step.to_bytes(4, "big"), digest_size=16).digest()
        sentence = _SENTENCES[digest[0] % len(_SENTENCES)].split(" ")
        sentence[digest[1] % len(sentence)] = _WORDS[digest[2] * 7 % len(_WORDS)]
        text = " ".join(sentence) + " "
        pieces.append(text)
        size += len(text)
        step += 1
    return "".join(pieces).encode()


_FILLER = _filler()
_TWICE = _FILLER * 2


def _digest(*parts: str) -> bytes:
    return blake2b("\x1f".join(parts).encode(), digest_size=16).digest()


def _made_up(key: bytes, size: int) -> bytes:
    """Exactly `size` bytes of ASCII that depend on `key`, unlike those of any other key from the start."""
    start = int.from_bytes(key[:4], "big") % len(_FILLER)
    lead = key.hex().encode()[:16] + b" "
    if size <= len(_FILLER):
        return (lead + _TWICE[start : start + size])[:size]
    return (lead + _FILLER[start:] + _FILLER * (size // len(_FILLER) + 1))[:size]


def prompt_text(request: WorkloadRequest, seed: int | None = 0, salt: str = "") -> str:
    """The text to send: `count_tokens(text) == request.prompt_tokens`, always the same for one seed and salt. A prompt of
    that length is sent as it is, a longer one is cut at its end, a shorter one is kept whole, after made-up text for it to
    stand on."""
    size = request.prompt_tokens * BYTES_PER_TOKEN
    key = _digest("request", str(seed), salt, request.id)
    if request.prompt is not None:
        if count_tokens(request.prompt) == request.prompt_tokens:
            return request.prompt
        own = request.prompt.encode()
        if len(own) >= size:
            # Dots in place of a character that does not fit.
            cut = own[:size].decode("utf-8", "ignore")
            return cut + "." * (size - len(cut.encode()))
        return (_made_up(key, size - len(own) - 2) + b"\n\n" + own).decode()
    block_size = PREFIX_BLOCK_TOKENS * BYTES_PER_TOKEN
    blocks: list[bytes] = []
    left = size
    for block in request.prefix_hashes or ():
        if left <= 0:
            break
        blocks.append(_made_up(_digest("block", str(seed), salt, str(block)), min(block_size, left)))
        left -= block_size
    if left > 0:
        blocks.append(_made_up(key, left))
    return b"".join(blocks).decode()
