"""What the router needs to know of a prompt: token counts and prefix hashes. Text goes no further.

Without the engine's tokenizer the estimate is one token for four UTF-8 bytes (English text in the Llama 3
and Qwen 2.5 vocabularies is at 4.2 to 4.6; the predictors learn the true ratio of each model).

The upper bound does not rest on what is recognised as text: an engine may write any member of a body into its
prompt. A byte-level BPE token covers at least one byte, so the bound is the bytes of the JSON that is sent, data of
images apart, and what a chat template adds to them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from zlib import crc32

from predictors.learned.text import prompt_features
from router.core.raw_json import LongText, Signs, json_bytes, measured
from router.core.types import PREFIX_TOKENS, PromptFeatures

BYTES_PER_TOKEN = 4
#: Upper bound of what a chat template adds once.
TEMPLATE_TOKENS = 64
#: Tokens of one image. A usual value: Qwen2.5-VL takes one for 28 x 28 pixels, so about 1024 x 768. The upper bound:
#: the 12845056 pixels (`max_pixels` of its preprocessor_config.json) to which it shrinks larger ones. Others take fewer:
#: Llama 3.2 Vision 4 tiles of 1601, LLaVA-NeXT at most 2880, OpenAI's GPT-4o at most 1445.
IMAGE_TOKENS = 1024
IMAGE_TOKENS_BOUND = 12845056 // (28 * 28)
#: Most tokens of sound or video whose data is not sent along: nobody knows how long it is. Qwen2.5-VL takes at most
#: 115200 for a video; contexts of models that take media end at about this.
MEDIA_TOKENS_BOUND = 1 << 17
#: Prefix hashes: one for each leading block of this many bytes, at most so many.
PREFIX_BLOCK_BYTES = 1024
MAX_PREFIX_BLOCKS = PREFIX_TOKENS * BYTES_PER_TOKEN // PREFIX_BLOCK_BYTES

#: Of several texts that are longer in all predictors see so many characters at both ends.
_MAX_SEEN_CHARS = 1 << 20

#: Members of a message that chat templates print beside its content.
_ALSO_RENDERED = ("tool_calls", "function_call", "reasoning", "reasoning_content")
#: Types of a content's parts that hold text, and the members that make an engine take a part for media whatever its type
#: says (vLLM does).
_TEXT_PARTS = frozenset({"text", "refusal", "input_text", "output_text", "thinking"})
_IMAGE_MEMBERS = frozenset({"image_url", "image_pil", "image_embeds"})
_MEDIA_MEMBERS = frozenset(
    {
        *_IMAGE_MEMBERS,
        "input_audio",
        "audio_url",
        "audio_embeds",
        "video_url",
        "file",
    }
)
#: Where a request's prompt stands, by API.
_PROMPT = {"chat": "messages", "completions": "prompt", "embeddings": "input"}
#: Templates print JSON with an indent (Llama 3.1: 4 spaces a level): more tokens for each member and bracket. A run of
#: spaces is one token up to 16 of them at least, in all vocabularies in use.
_TOKENS_PER_BREAK = 9
#: Go, and with it Ollama, writes each of `<`, `>` and `&` in JSON as six characters.
_MORE_PER_ESCAPE = 5
#: Bytes of messages that are not prompt, as they usually are: once, for each, and for escapes as a share of the text.
_USUAL_ENVELOPE_BYTES = 512
_USUAL_MESSAGE_BYTES = 64
_USUAL_ESCAPES = 1 / 8
#: Members that no engine writes into a prompt. Larger than so many bytes they count in the bound all the same.
_SMALL_BYTES = 64
_NOT_PROMPT = frozenset(
    "model stream stream_options max_tokens max_completion_tokens min_tokens n best_of use_beam_search temperature top_p"  # noqa: SIM905 (a list of thirty lines)
    " top_k min_p seed stop ignore_eos presence_penalty frequency_penalty repetition_penalty length_penalty logit_bias"
    " logprobs top_logprobs prompt_logprobs parallel_tool_calls skip_special_tokens user metadata echo dimensions"
    " encoding_format prompt_cache_key".split()
)


#: Members that bind the sampling, or tell what to do with the prompt, as a rule: they count in the bound only.
_USUALLY_NOT_PROMPT = frozenset(
    "response_format structured_outputs guided_json guided_regex guided_choice guided_grammar tool_choice logits_processors"  # noqa: SIM905
    " stop_token_ids bad_words allowed_token_ids vllm_xargs cache_salt prediction".split()
)
#: Members whose text is counted as such, and those; by API.
_SEEN = {
    api: _USUALLY_NOT_PROMPT | ({name} if api == "chat" else {name, "suffix"})
    for api, name in _PROMPT.items()
}


@dataclass(frozen=True, slots=True)
class PromptFacts:
    """`tokens`: best estimate; `tokens_bound`: upper bound; `prefix`: hashes of the leading blocks, each
    chained to those before it. `longest_tokens`: of several prompts in one request the longest, which is the
    one that must fit a context (None: there is only one), `prompts` how many there are. `text_bytes` and `media`: how
    much text, and how many images (or other media), both numbers count; `media_bound`: the most tokens that the media take,
    beside what their bytes are in `tokens_bound`."""

    tokens: int
    tokens_bound: int
    prefix: tuple[int, ...]
    text_bytes: int = 0
    media: int = 0
    media_bound: int = 0
    longest_tokens: int | None = None
    prompts: int = 1
    features: PromptFeatures | None = None  # what predictors see of it; None: no text, or several prompts


class ChatParts(NamedTuple):
    """A chat's texts (JSON where a template prints JSON), how many images (or other media) it holds, the bytes of
    the images' data, and the most tokens that all media take."""

    texts: list[str]
    media: int
    media_bytes: int
    media_bound: int


def prompt_facts(api: str, body: Mapping[str, Any], around_bound: int | None = None) -> PromptFacts:
    """Facts of a checked body: a chat's `messages` (and `tools`), a completion's `prompt`, or an embedding's
    `input`. `around_bound` is what `bound_around` says of it (None: not asked yet)."""
    if around_bound is None:
        around_bound = bound_around(api, body)
    prompt = body[_PROMPT[api]]
    if api == "chat":
        texts, media, media_bytes, media_bound = chat_parts(body)
        size = _text_bytes(texts)
        sent = json_bytes(prompt) - media_bytes
        written = sent + unseen_bytes(body, _SEEN[api])
        usual = _USUAL_ENVELOPE_BYTES + _USUAL_MESSAGE_BYTES * len(prompt) + int(size * _USUAL_ESCAPES)
        unseen = max(0, written - size - usual)  # in members that hold no text as a rule
        return PromptFacts(
            _usual_tokens(size) + unseen // BYTES_PER_TOKEN + media * IMAGE_TOKENS,
            around_bound + sent + media_bound,
            _prefix(texts, size),
            size,
            media,
            media_bound,
            features=prompt_features(_joined(texts)),
        )
    suffix = body.get("suffix")  # what the answer is to lead to is written into the prompt too
    more = [suffix] if api == "completions" and isinstance(suffix, str) else []
    hidden = unseen_bytes(body, _SEEN[api]) - _USUAL_ENVELOPE_BYTES
    unseen = max(0, hidden) // BYTES_PER_TOKEN  # may be written into each prompt
    if isinstance(prompt, str):
        texts = [prompt, *more]
        size = _text_bytes(texts)
        features = None if api == "embeddings" else prompt_features(_joined(texts))
        bound = around_bound + json_bytes(prompt)
        return PromptFacts(_usual_tokens(size) + unseen, bound, _prefix(texts, size), size, features=features)
    if isinstance(prompt[0], str):
        suffix_bytes = _text_bytes(more)
        sizes = [_text_bytes([text]) + suffix_bytes for text in prompt]
        tokens = [_usual_tokens(size) + unseen for size in sizes]
        return PromptFacts(
            sum(tokens),
            around_bound * len(prompt) + json_bytes(prompt),
            _prefix([*prompt, *more], sizes[0]) if len(prompt) == 1 else (),
            sum(sizes),
            longest_tokens=max(tokens),
            prompts=len(prompt),
        )
    if isinstance(prompt[0], int):
        return PromptFacts(len(prompt) + unseen, around_bound + len(prompt), ())
    lengths = [max(1, len(ids)) + unseen for ids in prompt]
    return PromptFacts(
        sum(lengths),
        around_bound * len(prompt) + sum(map(len, prompt)),
        (),
        longest_tokens=max(lengths),
        prompts=len(lengths),
    )


def bound_around(api: str, body: Mapping[str, Any]) -> int:
    """Upper bound of the tokens that a checked body brings beside the JSON of its prompt: every other member as JSON,
    however a template prints it, and what the template itself adds (for each message less than its JSON's signs)."""
    prompt = _PROMPT[api]
    bound = 8 if api != "chat" else TEMPLATE_TOKENS
    for name, value in body.items():
        if name not in _NOT_PROMPT:
            if name != prompt:
                bound += len(name) + 4 + _bound_of_json(value)
        elif isinstance(value, (str, list, dict)) and name != "model":
            size = json_bytes(value)
            bound += size if size > _SMALL_BYTES else 0
    if api == "chat":
        for message in body[prompt]:
            for name, value in message.items():
                if name != "content" and isinstance(value, (dict, list)) and value:
                    bound += _bound_of_json(value) - json_bytes(value)
    return bound


def unseen_bytes(body: Mapping[str, Any], seen: Collection[str]) -> int:
    """Bytes of the members that may be written into a prompt, but are not among those `seen` by who counted it."""
    return sum(
        len(name) + json_bytes(value)
        for name, value in body.items()
        if name not in seen and name not in _NOT_PROMPT
    )


def prompt_texts(api: str, body: Mapping[str, Any]) -> list[str]:
    """All text of a checked body; empty for token ids."""
    if api == "chat":
        return chat_parts(body).texts
    prompt = body[_PROMPT[api]]
    if isinstance(prompt, str):
        return [prompt]
    return prompt if isinstance(prompt[0], str) else []


def chat_parts(body: Mapping[str, Any]) -> ChatParts:
    """What stands in a chat."""
    messages = body["messages"]
    if len(messages) == 1 and isinstance(content := messages[0].get("content"), str) and "tools" not in body:
        return ChatParts([content], 0, 0, 0)
    texts: list[str] = []
    media = media_bytes = media_bound = 0
    for message in messages:
        content = message.get("content")
        if isinstance(content, str):
            texts.append(content)
        elif isinstance(content, list):
            for part in content:
                if isinstance(text := part.get("text"), str):
                    texts.append(text)
                kind = part.get("type", "text")
                if (
                    not isinstance(kind, str)
                    or kind not in _TEXT_PARTS
                    or not _MEDIA_MEMBERS.isdisjoint(part)
                ):
                    media += 1
                    media_bytes += _image_bytes(part)
                    media_bound += _media_bound(part)
        for name in _ALSO_RENDERED:
            if value := message.get(name):
                texts += _printed(value)
    if tools := body.get("tools"):
        texts += _printed(tools)
    return ChatParts(texts, media, media_bytes, media_bound)


def _printed(value: Any) -> list[str]:
    """JSON as text; its long strings by themselves, after the rest."""
    if isinstance(value, str):
        return [value]
    data, long, _ = measured(value)
    return [data.decode(), *long]


def _image_bytes(part: Mapping[str, Any]) -> int:
    """Bytes of an image's own data: an engine decodes them, and shrinks what is too large. Of sound and video nothing
    bounds the tokens but their bytes."""
    image = part.get("image_url")
    url = image.get("url") if isinstance(image, dict) else image
    return len(url) if isinstance(url, str) and url.isascii() and url.startswith("data:image/") else 0


def _media_bound(part: Mapping[str, Any]) -> int:
    """The most tokens of one part with media: of images a constant, of other media their bytes if those are here."""
    members = _MEDIA_MEMBERS.intersection(part)
    if (
        members
        and members <= _IMAGE_MEMBERS
        and str(part.get("type", "image")).startswith(("image", "input_image"))
    ):
        return IMAGE_TOKENS_BOUND
    if any(map(_is_reference, part.values())):
        return MEDIA_TOKENS_BOUND
    return max(IMAGE_TOKENS_BOUND, min(json_bytes(part), MEDIA_TOKENS_BOUND))


def _is_reference(value: Any) -> bool:
    """Whether a member of a part says where an engine is to fetch the media."""
    if isinstance(value, dict):
        return any(map(_is_reference, value.values()))
    return isinstance(value, str) and value[:8].lower().startswith(("http://", "https://"))


def _bound_of_json(value: Any) -> int:
    """Upper bound of the tokens of JSON, however a template prints it."""
    data, long, size = measured(value)
    signs = Signs.total((Signs.of(data), *(text.signs for text in long)))
    return size + _TOKENS_PER_BREAK * signs.breaks + _MORE_PER_ESCAPE * signs.angles


def _text_bytes(texts: Iterable[str]) -> int:
    return sum(len(text) if text.isascii() else _encoded_bytes(text) for text in texts)


def _encoded_bytes(text: str) -> int:
    """Of a long text as it came, escapes included: to encode it would take too long."""
    return len(text.json) - 2 if isinstance(text, LongText) else len(text.encode())


def _usual_tokens(size: int) -> int:
    return max(1, -(-size // BYTES_PER_TOKEN))


def leading_chars(texts: Iterable[str], chars: int, between: str = "") -> str:
    """The first characters of texts that are joined, without joining all of them."""
    start: list[str] = []
    for text in texts:
        start.append(text[:chars])
        chars -= len(text) + len(between)
        if chars < 0:
            break
    return between.join(start)


def _prefix(texts: list[str], size: int) -> tuple[int, ...]:
    if size < PREFIX_BLOCK_BYTES:
        return ()
    return _prefix_hashes(leading_chars(texts, PREFIX_BLOCK_BYTES * MAX_PREFIX_BLOCKS))


def _joined(texts: list[str]) -> str:
    """The texts as predictors see them: of very long ones the beginning and the end."""
    if len(texts) == 1:
        return texts[0]
    if sum(map(len, texts)) <= 2 * _MAX_SEEN_CHARS:
        return "\n".join(texts)
    end: list[str] = []
    room = _MAX_SEEN_CHARS
    for text in reversed(texts):
        end.append(text[-room:])
        room -= len(end[-1])
        if not room:
            break
    return "\n".join([leading_chars(texts, _MAX_SEEN_CHARS, "\n"), *reversed(end)])


def _prefix_hashes(text: str) -> tuple[int, ...]:
    data = text[: PREFIX_BLOCK_BYTES * MAX_PREFIX_BLOCKS].encode()
    hashes = []
    value = 0
    for end in range(
        PREFIX_BLOCK_BYTES, min(len(data), PREFIX_BLOCK_BYTES * MAX_PREFIX_BLOCKS) + 1, PREFIX_BLOCK_BYTES
    ):
        value = crc32(data[end - PREFIX_BLOCK_BYTES : end], value)
        hashes.append(value)
    return tuple(hashes)
