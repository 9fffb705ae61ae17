"""Facts of a prompt: token counts and prefix hashes. The text itself goes no further.

Without the engine's tokenizer the estimate is one token for four UTF-8 bytes (English text in the Llama 3 and Qwen 2.5
vocabularies has 4.2 to 4.6; the predictors learn the true ratio of each model).

The upper bound does not depend on what is recognized as text: an engine may write any field of a body into its prompt. A
byte-level BPE token covers at least one byte. So the bound is the bytes of the JSON that is sent, without the data of
images, plus what a chat template adds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple
from zlib import crc32

from predictors.learned.text import prompt_features
from router.compiled import compiled_init
from router.core.raw_json import LongText, Signs, json_bytes, measured
from router.core.types import PREFIX_TOKENS, PromptFeatures

BYTES_PER_TOKEN = 4
#: Upper bound of the tokens that a chat template adds once.
TEMPLATE_TOKENS = 64
#: Tokens of one image. Estimate: Qwen2.5-VL uses one for 28 x 28 pixels, so 1024 is an image of about 1024 x 768. Upper
#: bound: it shrinks larger images to 12845056 pixels (`max_pixels` of its preprocessor_config.json). Others use fewer: Llama
#: 3.2 Vision 4 tiles of 1601, LLaVA-NeXT at most 2880, OpenAI's GPT-4o at most 1445.
IMAGE_TOKENS = 1024
IMAGE_TOKENS_BOUND = 12845056 // (28 * 28)
#: The most tokens of sound or video whose data is not in the request, so that its length is unknown. Qwen2.5-VL uses at
#: most 115200 for a video; contexts of models for media end at about this.
MEDIA_TOKENS_BOUND = 1 << 17
#: Prefix hashes: one for each leading block of this many bytes, up to a maximum.
PREFIX_BLOCK_BYTES = 1024
MAX_PREFIX_BLOCKS = PREFIX_TOKENS * BYTES_PER_TOKEN // PREFIX_BLOCK_BYTES

#: Of longer texts predictors get this many characters at both ends.
_MAX_SEEN_CHARS = 1 << 20

#: Fields of a message that chat templates print beside its content.
_ALSO_RENDERED = ("tool_calls", "function_call", "reasoning", "reasoning_content")
#: Fields of a message that are counted with its text, or are a word.
_TEXTS = frozenset({"content", "role"})
#: Types of parts that hold text, and fields that make an engine read a part as media whatever its type says (vLLM does).
_TEXT_PARTS = frozenset({"text", "refusal", "input_text", "output_text", "thinking"})
_IMAGE_MEMBERS = frozenset({"image_url", "image_pil", "image_embeds"})
_MEDIA_MEMBERS = _IMAGE_MEMBERS | {"input_audio", "audio_url", "audio_embeds", "video_url", "file"}
#: Members of such parts whose data is no text.
_DATA_MEMBERS = _MEDIA_MEMBERS | {"image", "audio", "video"}
#: The field of the prompt, by API.
PROMPT_FIELDS = {"chat": "messages", "completions": "prompt", "embeddings": "input"}
#: Templates print JSON with an indent (Llama 3.1: 4 spaces a level), which adds tokens for each member and bracket. In all
#: vocabularies in use a run of up to 16 spaces is one token.
_TOKENS_PER_BREAK = 9
#: Go, and with it Ollama, writes each of `<`, `>` and `&` in JSON as six characters.
_MORE_PER_ESCAPE = 5
#: Usual bytes of messages that are not prompt: once, for each message, and for escapes as a share of the text.
_USUAL_ENVELOPE_BYTES = 512
_USUAL_MESSAGE_BYTES = 64
_USUAL_ESCAPES = 1 / 8
#: Fields that no engine writes into a prompt. Values above this size count in the bound all the same.
_SMALL_BYTES = 64
_NOT_PROMPT = frozenset(
    "model stream stream_options max_tokens max_completion_tokens min_tokens n best_of use_beam_search temperature top_p"  # noqa: SIM905 (a list of thirty lines)
    " top_k min_p seed stop ignore_eos presence_penalty frequency_penalty repetition_penalty length_penalty logit_bias"
    " logprobs top_logprobs prompt_logprobs parallel_tool_calls skip_special_tokens user metadata echo dimensions"
    " encoding_format prompt_cache_key".split()
)


#: Fields that usually control sampling or processing: they count in the bound only.
_USUALLY_NOT_PROMPT = frozenset(
    "response_format structured_outputs guided_json guided_regex guided_choice guided_grammar tool_choice logits_processors"  # noqa: SIM905
    " stop_token_ids bad_words allowed_token_ids vllm_xargs cache_salt prediction".split()
)
#: Fields that are counted otherwise, by API.
_SEEN = {
    api: _USUALLY_NOT_PROMPT | ({name} if api == "chat" else {name, "suffix"})
    for api, name in PROMPT_FIELDS.items()
}


@compiled_init
class PromptFacts(NamedTuple):
    """`tokens`: best estimate. `tokens_bound`: upper bound. `prefix`: hashes of the leading blocks, each chained to those
    before it. `longest_tokens`: the longest of several prompts in one request, which must fit a context (None: one prompt).
    `prompts`: their number. `text_bytes` and `media`: the bytes of text and the number of images (or other media) in both
    counts. `media_bound`: the most tokens of the media, beside their bytes in `tokens_bound`. `most_tokens`: what the engine
    may leave of all prompts (None: it truncates none); `truncates`: by the estimate it truncates one.
    """

    tokens: int
    tokens_bound: int
    prefix: tuple[int, ...]
    text_bytes: int = 0
    media: int = 0
    media_bound: int = 0
    longest_tokens: int | None = None
    prompts: int = 1
    features: PromptFeatures | None = None  # for predictors; None: no text, or several prompts
    most_tokens: int | None = None
    truncates: bool = False

    def truncated(self, least: int, most: int) -> PromptFacts:
        """The facts if the engine truncates each prompt: to `least` tokens or, at another engine, to more, up to `most`."""
        if self.tokens_bound <= least:
            return self
        longest, most_tokens = self.longest_tokens or self.tokens, most * self.prompts
        return self._replace(
            tokens=min(self.tokens, most_tokens),
            tokens_bound=min(self.tokens_bound, most_tokens),
            longest_tokens=None if self.longest_tokens is None and least == most else min(longest, least),
            most_tokens=most_tokens,
            truncates=longest > least,
        )


@compiled_init
class ChatParts(NamedTuple):
    """A chat's texts (JSON where a template prints JSON), its number of images (or other media), the bytes of the images'
    data and of the data of all media, and the most tokens of all media. `marks` stand for the media in hashes: the number of
    texts before each, and what tells it from others."""

    texts: list[str]
    media: int
    image_bytes: int
    media_bytes: int
    media_bound: int
    marks: list[tuple[int, str]]


def prompt_facts(api: str, body: Mapping[str, Any], around_bound: int | None = None) -> PromptFacts:
    """Facts of a checked body: a chat's `messages` (and `tools`), a completion's `prompt`, or an embedding's `input`.
    `around_bound` is the result of `bound_around` (None: it is computed here)."""
    if around_bound is None:
        around_bound = bound_around(api, body)
    prompt = body[PROMPT_FIELDS[api]]
    if api == "chat":
        parts = chat_parts(body)
        hidden = unseen_bytes(body, _SEEN[api]) - parts.media_bytes
        return _chat_facts(prompt, parts, hidden, around_bound)
    suffix = body.get("suffix")  # the text after the answer is also written into the prompt
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


def simple_chat_facts(messages: list[Any], texts: list[str]) -> PromptFacts:
    """Facts of a simple chat (`router.request.body.check`) with these texts: nothing but its messages is written into the
    prompt."""
    return _chat_facts(messages, ChatParts(texts, 0, 0, 0, 0, []), 0, TEMPLATE_TOKENS)


def _chat_facts(messages: list[Any], parts: ChatParts, hidden: int, around_bound: int) -> PromptFacts:
    """`hidden` are bytes beside the JSON of the messages, which may be written into the prompt."""
    texts, media, image_bytes, _, media_bound, marks = parts
    size = _text_bytes(texts)
    sent = json_bytes(messages)
    usual = _USUAL_ENVELOPE_BYTES + _USUAL_MESSAGE_BYTES * len(messages) + int(size * _USUAL_ESCAPES)
    unseen = sent + hidden - size - usual  # in fields that usually hold no text
    unseen = max(0, unseen - _escaped_bytes(texts)) if unseen > 0 else 0
    return PromptFacts(
        _usual_tokens(size) + unseen // BYTES_PER_TOKEN + media * IMAGE_TOKENS,
        around_bound + sent - image_bytes + media_bound,
        _prefix(_marked(texts, marks) if marks else texts, size),
        size,
        media,
        media_bound,
        features=prompt_features(_joined(texts)),
    )


def bound_around(api: str, body: Mapping[str, Any]) -> int:
    """Upper bound of the tokens of a checked body beside the JSON of its prompt: every other field as JSON, however a
    template prints it, and what the template adds (for each message less than its JSON's punctuation)."""
    prompt = PROMPT_FIELDS[api]
    bound = 8 if api != "chat" else TEMPLATE_TOKENS
    for name, value in body.items():
        if name not in _NOT_PROMPT:
            if name != prompt:
                bound += len(name) + 4 + _bound_of_json(value)
        elif name != "model" and isinstance(value, (str, list, dict)):
            size = json_bytes(value)
            bound += size if size > _SMALL_BYTES else 0
    if api == "chat":
        for message in body[prompt]:
            if len(message) == 2 and "content" in message and "role" in message:
                continue
            for name, value in message.items():
                if name not in _TEXTS and isinstance(value, (dict, list)) and value:
                    bound += _bound_of_json(value) - json_bytes(value)
    return bound


def unseen_bytes(body: Mapping[str, Any], seen: Collection[str]) -> int:
    """Bytes of fields that may be written into a prompt, except those in `seen`, which the caller has counted."""
    size = 0
    for name, value in body.items():
        if name not in seen and name not in _NOT_PROMPT:
            size += len(name) + json_bytes(value)
    return size


def prompt_texts(api: str, body: Mapping[str, Any]) -> list[str]:
    """All text of a checked body; empty for token ids."""
    if api == "chat":
        return chat_parts(body).texts
    prompt = body[PROMPT_FIELDS[api]]
    if isinstance(prompt, str):
        return [prompt]
    return prompt if isinstance(prompt[0], str) else []


def chat_parts(body: Mapping[str, Any]) -> ChatParts:
    """The texts and media of a chat."""
    messages = body["messages"]
    if len(messages) == 1 and isinstance(content := messages[0].get("content"), str) and "tools" not in body:
        return ChatParts([content], 0, 0, 0, 0, [])
    texts: list[str] = []
    marks: list[tuple[int, str]] = []
    media = image_bytes = media_bytes = media_bound = 0
    for message in messages:
        content = message.get("content")
        if isinstance(content, str):
            texts.append(content)
            if len(message) == 2 and "role" in message:
                continue
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
                    image_bytes += _image_bytes(part)
                    media_bound += _media_bound(part)
                    mark = "\0"
                    for data in _media_data(part):
                        media_bytes += len(data)
                        # Its size and its end: reading all of it would take too long.
                        mark += f"{len(data)} {data[-128:]}\0"
                    marks.append((len(texts), mark))
        for name in _ALSO_RENDERED:
            if name in message and (value := message[name]):
                texts += _printed(value)
    if tools := body.get("tools"):
        texts += _printed(tools)
    return ChatParts(texts, media, image_bytes, media_bytes, media_bound, marks)


def _printed(value: Any) -> list[str]:
    """JSON as text; its long strings follow separately."""
    if isinstance(value, str):
        return [value]
    data, long, _ = measured(value)
    return [data.decode(), *long]


def _media_data(part: Mapping[str, Any]) -> Iterator[str]:
    """The strings of a part's media: base64 or URLs, so as many bytes as characters."""
    for name in sorted(_DATA_MEMBERS.intersection(part)):
        value = part[name]
        members = (
            value.values() if isinstance(value, dict) else value if isinstance(value, list) else (value,)
        )
        yield from (each for each in members if isinstance(each, str))


def _image_bytes(part: Mapping[str, Any]) -> int:
    """Bytes of an image's data, which an engine decodes and shrinks. For sound and video only the bytes bound the
    tokens."""
    image = part.get("image_url")
    url = image.get("url") if isinstance(image, dict) else image
    return len(url) if isinstance(url, str) and url.isascii() and url.startswith("data:image/") else 0


def _media_bound(part: Mapping[str, Any]) -> int:
    """The most tokens of a part with media: a constant for images, the bytes for other media that are in the request."""
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
    """Whether a field of a part is a URL from which an engine fetches the media."""
    if isinstance(value, dict):
        return any(map(_is_reference, value.values()))
    return isinstance(value, str) and value[:8].lower().startswith(("http://", "https://"))


def _bound_of_json(value: Any) -> int:
    """Upper bound of the tokens of JSON, however a template prints it."""
    data, long, size = measured(value)
    signs = Signs.total((Signs.of(data), *(text.signs for text in long)))
    return size + _TOKENS_PER_BREAK * signs.breaks + _MORE_PER_ESCAPE * signs.angles


def _text_bytes(texts: Iterable[str]) -> int:
    size = 0
    for text in texts:
        size += len(text) if text.isascii() else _encoded_bytes(text)
    return size


def _escaped_bytes(texts: Iterable[str]) -> int:
    """What the escapes of long texts add to the bytes of their JSON."""
    return sum(len(text.json) - 2 - _text_bytes([text]) for text in texts if isinstance(text, LongText))


def _encoded_bytes(text: str) -> int:
    """For a long text about the bytes as received, since encoding it would take too long. Most characters that are escaped there
    (six bytes) have three bytes in UTF-8."""
    if isinstance(text, LongText):
        return max(len(text), len(text.json) - 2 - 3 * text.signs.escapes)
    return len(text.encode())


def _usual_tokens(size: int) -> int:
    return max(1, -(-size // BYTES_PER_TOKEN))


def leading_chars(texts: Iterable[str], chars: int, between: str = "") -> str:
    """The first characters of joined texts, without joining all of them."""
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
    most = PREFIX_BLOCK_BYTES * MAX_PREFIX_BLOCKS
    data = leading_chars(texts, most).encode()
    hashes, value = [], 0
    for end in range(PREFIX_BLOCK_BYTES, min(len(data), most) + 1, PREFIX_BLOCK_BYTES):
        value = crc32(data[end - PREFIX_BLOCK_BYTES : end], value)
        hashes.append(value)
    return tuple(hashes)


def _marked(texts: list[str], marks: list[tuple[int, str]]) -> list[str]:
    """The texts with the marks of the media in their places: an engine reuses what follows an image only after the same image."""
    found, at = [], 0
    for place, mark in marks:
        found += texts[at:place]
        found.append(mark)
        at = place
    return found + texts[at:]


def _joined(texts: list[str]) -> str:
    """The text for predictors: of a very long text the beginning and the end."""
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
