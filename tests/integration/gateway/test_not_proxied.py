"""What engines and other gateways serve beside answers, Headway does not: it has no route that passes a path on. So what
is known against those routes (models that are pulled, created or pushed, adapters that are loaded, weights, profiles,
remote calls, files, keys of LiteLLM) does not reach an engine through it."""

from __future__ import annotations

import pytest

from tests.contract.backends.fakes import Exchange, FakeEngine
from tests.integration.gateway.live import bearer, key, live

PATHS = [
    "/api/pull", "/api/push", "/api/create", "/api/copy", "/api/delete", "/api/blobs/sha256:0",
    "/api/experimental/aliases", "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/tokenize",
    "/detokenize", "/invocations", "/start_profile", "/stop_profile", "/collective_rpc", "/sleep",
    "/wake_up", "/reset_prefix_cache", "/server_info", "/scale_elastic_ep", "/pooling", "/score", "/rerank",
    "/classify", "/generate", "/update_weights_from_disk", "/load_lora_adapter",
    "/load_lora_adapter_from_tensors", "/flush_cache", "/get_server_info", "/slots", "/props",
    "/lora-adapters", "/infill", "/apply-template", "/completion", "/embedding", "/models/load",
    "/v1/files", "/v1/batches", "/v1/fine_tuning/jobs", "/v1/images/generations",
    "/v1/audio/transcriptions", "/v1/realtime", "/v1/messages", "/key/generate", "/key/info",
    "/config/update", "/model/info", "/spend/logs", "/user/new", "/sso/key/generate",
    "/v1/chat/completions/../../api/pull", "/v1//../api/create", "//api/pull", "/api/%70ull",
    "/v1/models/%2e%2e%2f%2e%2e%2fapi%2ftags", "/ui/../admin/fleet", "/admin;x=/fleet",
]  # fmt: skip


@pytest.mark.parametrize("with_keys", [True, False])
async def test_no_other_route_reaches_an_engine(tmp_path, with_keys):
    asked = []

    async def play(exchange: Exchange) -> None:
        if exchange.path not in {"/health", "/metrics", "/v1/models"}:
            asked.append(exchange.path)
        await exchange.answer(200, b"{}")

    async with FakeEngine(play) as engine:
        instance = {"name": "a", "kind": "vllm", "url": engine.url, "serves": {"llama-3.1-8b": "x"}}
        auth = {"keys": [key("one", makes_keys=True)]} if with_keys else {}
        async with live(tmp_path, extra_instances=[instance], auth=auth) as gw:
            token = bearer("one")["Authorization"].encode()
            for path in PATHS:
                for method in (b"GET", b"POST", b"DELETE", b"OPTIONS", b"TRACE", b"PUT"):
                    head = b"%b %b HTTP/1.1\r\nhost: localhost\r\nauthorization: %b\r\n" % (
                        method,
                        path.encode(),
                        token,
                    )
                    body = b'{"model":"small","name":"small"}'
                    answer = await gw.raw(
                        head + b"connection: close\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
                    )
                    status = int(answer.split(b" ", 2)[1])
                    assert status in {400, 401, 404, 405}, (method, path, status)
                    assert b"access-control-" not in answer.lower()
    assert asked == []
