"""Members that operators forbid, and media that engines would fetch: on every API, before anything is sent."""

from __future__ import annotations

import asyncio
from copy import deepcopy

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from router.config.sections import LimitsConfig
from tests.integration.gateway.live import live, ollama, vllm

CHAT = {"model": "small", "max_tokens": 2, "messages": [{"role": "user", "content": "Hello"}]}
#: One good body of each API.
BODIES = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"model": "small", "max_tokens": 2, "prompt": "Hello"},
    "/v1/embeddings": {"model": "small", "input": "Hello"},
    "/v1/responses": {"model": "small", "max_output_tokens": 16, "input": "Hello"},
    "/api/chat": {"model": "small", "stream": False, "messages": [{"role": "user", "content": "Hello"}]},
    "/api/generate": {"model": "small", "stream": False, "prompt": "Hello"},
    "/api/embed": {"model": "small", "input": "Hello"},
    "/v1/routing/predict": CHAT,
}
FORBIDDEN = LimitsConfig().forbidden_fields


def word(answer, path):
    """The error's message, and its `param` where the API tells it."""
    error = answer["error"]
    return (error, None) if path.startswith("/api/") else (error["message"], error["param"])


async def test_forbidden_members_are_refused_on_every_api(tmp_path):
    async with live(tmp_path, vllm("a")) as gw:

        async def refused(path, name):
            status, answer = await gw.post(path, {**BODIES[path], name: {"a": 1}})
            message, param = word(answer, path)
            assert (status, name in message, param in {None, name}) == (400, True, True), (path, name)
            for outer in ("chat_template_kwargs", "extra_body", "litellm_params", "vllm_xargs"):
                inner = {outer: {"enable_thinking": False, name: "x"}}
                status, answer = await gw.post(path, {**BODIES[path], **inner})
                assert (status, f"{outer}.{name}" in str(answer)) == (400, True), (path, name)

        for path, body in BODIES.items():
            await asyncio.gather(*(refused(path, name) for name in FORBIDDEN))
            given = {**body, "priority": None}  # as some clients send what they do not mean
            assert (await gw.post(path, given))[0] in {200, 501} or path in {"/v1/embeddings", "/api/embed"}
        assert all(not row["attempts"] for row in await gw.rows() if row["outcome"] == "rejected_invalid")


@pytest.mark.parametrize("name", ["image_embeds", "audio_embeds", "prompt_embeds", "uuid"])
async def test_forbidden_members_of_parts_are_refused(tmp_path, name):
    """Tensors for vLLM to load, and the key of a picture in its cache, which may be another client's."""
    async with live(tmp_path, vllm("a")) as gw:
        part = {"type": "image_url", "image_url": None, name: "x"}
        messages = [{"role": "user", "content": [{"type": "text", "text": "x"}, part]}]
        status, _, answer = await gw.chat(messages=messages)
        assert (status, answer["error"]["param"]) == (400, f"messages[0].content[1].{name}")
        status, answer = await gw.post("/v1/routing/predict", {**CHAT, "messages": messages})
        assert status == 400
        assert not (await gw.rows())[0]["attempts"]


async def test_operators_choose_what_is_forbidden(tmp_path):
    async with live(tmp_path, vllm("a"), limits={"forbidden_fields": ["logit_bias", "template"]}) as gw:
        assert (await gw.chat(logit_bias={"1": 1}))[0] == 400
        assert (await gw.chat(logit_bias={}))[0] == 200  # as some clients send what they do not mean
        assert (await gw.chat(priority=0))[0] == 200
        status, answer = await gw.post(
            "/api/generate", {**BODIES["/api/generate"], "template": "{{ .Prompt }}"}
        )
        assert (status, "not allowed here" in answer["error"]) == (400, True)


#: Content with one piece of media, and how the 400 names it; by URL, as a file, and as data.
PARTS = [
    ("image_url", {"type": "image_url", "image_url": {"url": "URL"}}),
    ("image_url", {"type": "image_url", "image_url": "URL"}),
    ("image_url", {"image_url": "URL"}),
    ("image_url", {"type": "text", "text": "x", "image_url": {"url": "URL"}}),
    ("video_url", {"type": "video_url", "video_url": {"url": "URL"}}),
    ("audio_url", {"type": "audio_url", "audio_url": {"url": "URL"}}),
    ("file", {"type": "file", "file": {"file_url": "URL"}}),
    ("file_url", {"type": "input_file", "file_url": "URL"}),
    ("image", {"type": "image", "image": "URL"}),
    ("video", {"type": "video", "video": ["URL", "URL"]}),
    ("video_url", {"type": "video_url", "video_url": {"url": ["URL"]}}),
]
#: Media as base64 or by an id, for which some engines take a URL too.
OTHER_PARTS = [
    ("input_audio", {"type": "input_audio", "input_audio": {"data": "URL"}}),
    ("file", {"type": "file", "file": {"file_data": "URL"}}),
    ("file", {"type": "file", "file": {"file_id": "URL"}}),
]
DATA = "data:image/png;base64,iVBORw0KGgo="
LOCAL = ["file:///etc/passwd", " file:///etc/passwd", "/etc/passwd.png", "FILE:///x", "gopher://a", "", "a:b"]


def put(part, url):
    made = deepcopy(part)
    for name, value in made.items():
        if value == "URL":
            made[name] = url
        elif isinstance(value, dict):
            made[name] = {key: [DATA, url] if isinstance(each, list) else url for key, each in value.items()}
        elif isinstance(value, list):
            made[name] = [DATA, url]
    return made


@pytest.mark.parametrize("mode", ["allow", "data_only"])
async def test_what_engines_may_fetch(tmp_path, mode):
    async with live(tmp_path, vllm("a"), limits={"media_urls": mode}) as gw:

        async def status(part, role="user"):
            messages = [{"role": "user", "content": "x"}, {"role": role, "content": [part]}]
            got, answer = await gw.post("/v1/routing/predict", {**CHAT, "messages": messages})
            if part == PARTS[0][1] or got == 400:
                assert (await gw.chat(messages=messages))[0] == got
            return got, answer

        for name, part in PARTS:
            for role in ("user", "tool"):
                assert (await status(put(part, DATA), role))[0] == 200, part
            for url in ("https://example.com/a.png", "http://169.254.169.254/latest", "HTTP://a"):
                got, answer = await status(put(part, url))
                assert got == (200 if mode == "allow" else 400), (part, url)
                if got == 400:
                    assert answer["error"]["param"] == f"messages[1].content[0].{name}"
            for url in LOCAL:
                assert (await status(put(part, url)))[0] == 400, (part, url)
        for name, part in OTHER_PARTS:
            for text in (DATA, "iVBORw0KGgo=", "/9j/4AAQSkZJRg==", "file-abc123", "of May: 3/4.pdf"):
                assert (await status(put(part, text)))[0] == 200, (part, text)
            for url in (
                "https://example.com/a.pdf",
                "file:///etc/passwd",
                " http://a",
                "FI\nle:/etc",
                "gs://a/b",
            ):
                got, answer = await status(put(part, url))
                assert got == (200 if mode == "allow" and url.startswith("https:") else 400), (part, url)
                if got == 400:
                    assert answer["error"]["param"] == f"messages[1].content[0].{name}"


async def test_media_of_other_apis(tmp_path):
    async with live(tmp_path, vllm("a"), limits={"media_urls": "data_only"}) as gw:
        for url, expected in ((DATA, 200), ("http://169.254.169.254/", 400)):
            content = [{"type": "input_image", "image_url": url}]
            body = {**BODIES["/v1/responses"], "input": [{"role": "user", "content": content}]}
            assert (await gw.post("/v1/responses", body))[0] == expected
        images = {"messages": [{"role": "user", "content": "x", "images": ["http://169.254.169.254/"]}]}
        status, _ = await gw.post("/api/chat", {**BODIES["/api/chat"], **images})
        assert status == 200  # Ollama's images are base64: what is sent on is a data: URI of these letters


LONG = "word " * 4000
#: A prompt longer than the context, on each API that vLLM truncates.
TOO_LONG = {
    "/v1/chat/completions": {"max_tokens": 2, "messages": [{"role": "user", "content": LONG}]},
    "/v1/completions": {"max_tokens": 2, "prompt": [LONG, "short"]},
    "/v1/embeddings": {"input": LONG},
    "/v1/routing/predict": {"max_tokens": 2, "messages": [{"role": "user", "content": LONG}]},
}


@pytest.mark.parametrize("path", TOO_LONG)
async def test_a_truncated_prompt_counts_after_its_truncation(tmp_path, path):
    models = [{"name": "llama-3.1-8b", "context_tokens": 512}]
    async with live(tmp_path, ollama("o", "llama-3.1-8b"), vllm("a", max_model_len=512), models=models) as gw:
        body = {"model": "llama-3.1-8b", "routing": {"policy": "round_robin"}, **TOO_LONG[path]}
        whole = "input" in body
        for tokens, left in ((100, 100), (-1, 512 - (not whole))):
            status, answer = await gw.post(path, {**body, "truncate_prompt_tokens": tokens})
            assert status == 200, (tokens, answer)
            if path == "/v1/routing/predict":
                assert answer["prompt_tokens"] == left
                assert "cannot truncate a prompt" in [each["reason"] for each in answer["candidates"]]
            elif path != "/v1/completions":
                assert answer["usage"]["prompt_tokens"] == min(left, 511)
                assert (await gw.rows())[-1]["prompt_tokens"] == min(left, 511)
        for tokens in (600, None):
            status, answer = await gw.post(path, {**body, "truncate_prompt_tokens": tokens})
            assert (status, answer["error"]["code"]) == (400, "context_length_exceeded"), tokens
        status, answer = await gw.post(path, {**body, "truncate_prompt_tokens": True})
        assert status == 400


async def test_a_truncated_prompt_costs_what_is_left_of_it(tmp_path):
    models = [
        {
            "name": "llama-3.1-8b",
            "context_tokens": 512,
            "price": {"input_usd_per_mtok": 1e6, "output_usd_per_mtok": 0},
        }
    ]
    async with live(tmp_path, vllm("a", max_model_len=512), models=models) as gw:
        body = {"model": "llama-3.1-8b", **TOO_LONG["/v1/chat/completions"], "routing": {"max_cost_usd": 600}}
        for tokens in (50, -1):
            status, _, answer = await gw.chat(**body, truncate_prompt_tokens=tokens)
            assert status == 200, answer
            assert answer["headway"]["cost_usd"] == answer["usage"]["prompt_tokens"] == (tokens % 512)


@pytest.mark.parametrize("configured", [True, False])
async def test_a_configured_tokenizer_counts_the_prompt(tmp_path, configured):
    """100 tokens for it; the engine's own counts 1,050, and the context has 512."""
    words = Tokenizer(WordLevel({"?": 0}, "?"))
    words.pre_tokenizer = Whitespace()
    words.save(str(file := tmp_path / "tokenizer.json"))
    models = [{"name": "llama-3.1-8b", "context_tokens": 512}]
    given = {"a": {"tokenizer": str(file)} if configured else {}}
    body = {"model": "llama-3.1-8b", "messages": [{"role": "user", "content": ("w" * 41 + " ") * 100}]}
    async with live(tmp_path, vllm("a"), models=models, instance=given) as gw:
        assert (await gw.chat(**body))[0] == (200 if configured else 400)
        _, answer = await gw.post("/v1/routing/predict", body)
        assert not configured or 100 <= answer["prompt_tokens"] < 120
