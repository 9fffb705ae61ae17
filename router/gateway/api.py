"""The hot endpoints: generation and embeddings, OpenAI's and Ollama's, as one raw ASGI application.

Everything else (models, routing, operations) is FastAPI's, to which unknown paths are handed on.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from router.core import hedging
from router.core.errors import Refusal, invalid_request
from router.core.types import Outcome, Request
from router.gateway import body as bodies
from router.gateway.answer import respond_refusal
from router.gateway.callers import RawHeaders, caller_terms
from router.gateway.fronts import Front, OpenAIFront, openai_error
from router.gateway.lease import Lease
from router.gateway.needs import needs_of
from router.gateway.ollama_endpoint import OLLAMA_ROUTES, OllamaFront, OllamaRoute, load_answer
from router.gateway.ollama_front import refusal_body
from router.gateway.prompt import PromptFacts, prompt_facts, prompt_texts
from router.gateway.quote import quote
from router.gateway.relay import Exchange, Relay
from router.gateway.responses_front import ResponsesFront
from router.gateway.responses_request import responses_to_chat
from router.gateway.rules import Rules
from router.gateway.server import Responder
from router.gateway.service import Gateway
from router.gateway.wish import KeyTerms, Wish, from_body, from_headers
from router.logs import current_request
from router.store.records import RequestRecord

logger = logging.getLogger("headway")

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
App = Callable[[dict[str, Any], Receive, Any], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class OpenAIRoute:
    """A path of OpenAI's API; `api` also stands in the records."""

    api: str

    @property
    def name(self) -> str:
        return self.api


ROUTES: dict[str, OpenAIRoute | OllamaRoute] = {
    "/v1/chat/completions": OpenAIRoute("chat"),
    "/v1/completions": OpenAIRoute("completions"),
    "/v1/embeddings": OpenAIRoute("embeddings"),
    "/v1/responses": OpenAIRoute("responses"),
    **OLLAMA_ROUTES,
}


class ClientGone(Exception):
    """The client left before its request was complete."""


class Api:
    """Raw ASGI in front of `other`."""

    def __init__(self, gateway: Gateway, other: App) -> None:
        self._gateway = gateway
        self._other = other

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST":
            route = ROUTES.get(scope["path"])
            if route is not None:
                await self._serve(route, scope, receive, send)
                return
        elif scope["type"] == "http" and scope["path"] in ROUTES:
            lines = b"content-type: application/json\r\nallow: POST\r\n"
            refusal = Refusal(405, "method_not_allowed", "Method Not Allowed", Outcome.REJECTED_INVALID)
            body = refusal_body(refusal, "") if scope["path"].startswith("/api/") else openai_error(refusal)
            Responder(send).whole(405, lines, b"" if scope["method"] == "HEAD" else body)
            return
        await self._other(scope, receive, send)

    async def _serve(
        self, route: OpenAIRoute | OllamaRoute, scope: dict[str, Any], receive: Receive, send: Send
    ) -> None:
        gateway = self._gateway
        rules = gateway.rules
        arrived_at = gateway.runner.clock()
        record = RequestRecord(
            id=gateway.new_request_id(), received_at=time.time(), api=route.name, arrived_at=arrived_at
        )
        current_request.set(record.id)
        headers: dict[bytes, bytes] = dict(scope["headers"])
        front: Front = OpenAIFront(False) if isinstance(route, OpenAIRoute) else OllamaFront(route.kind, "")
        responder = Responder(send)
        extra: list[tuple[bytes, bytes]] = []
        if rules.config.store.when_full == "refuse" and gateway.store.full:
            refusal = unrecorded()
            record.outcome, record.error_code = refusal.outcome, refusal.code
            gateway.metrics.record(record)  # what room there is for rows is for those under way
            respond_refusal(responder, front, refusal, record.id, extra)
            return
        gateway.store.writer.arrived()
        try:
            terms = self._authenticate(rules, scope["headers"], headers, record)
            if gateway.tracing is not None:  # whoever has no key is not let into anybody's trace
                record.trace = gateway.tracing.begin(headers)
            if gateway.draining:
                raise draining()
            data = await read_body(headers, receive, rules.config.limits.max_body_mb)
            body = bodies.parse_json(data)
            asked = body.get("model")
            record.model_requested = asked if isinstance(asked, str) else None
            rules.fields.check_names(body)
            if route.name == "responses":
                asked_response = responses_to_chat(body)
                front = ResponsesFront(asked_response, record.id)
                body, stream, api = asked_response.body, asked_response.stream, "chat"
            elif isinstance(route, OpenAIRoute):
                api = route.api
                stream = body.get("stream") is True and api != "embeddings"
                options = body.get("stream_options")
                include_usage = isinstance(options, dict) and options.get("include_usage") is True
                front = OpenAIFront(stream and include_usage)
            else:
                front = OllamaFront(route.kind, asked if isinstance(asked, str) else "")
                translated = route.translate(body)
                body, stream, api = translated.body, translated.stream, translated.api
                if translated.load is not None:
                    rules.wishes.names_for(terms).resolve(body["model"])
                    record.e2e_s = gateway.runner.clock() - arrived_at
                    gateway.finish(record)
                    lines = b"content-type: application/json\r\nx-request-id: %b\r\n" % record.id.encode()
                    responder.whole(200, lines, load_answer(route, translated))
                    return
            request, whole = await self._request(rules, terms, headers, api, body, stream, record)
            lease = await self._admit(rules, request, whole, record, extra)
        except Refusal as refusal:
            record.outcome, record.error_code = refusal.outcome, refusal.code
            record.e2e_s = gateway.runner.clock() - arrived_at
            if record.slo_ttft_s or record.slo_tpot_s or record.slo_e2e_s:
                record.slo_met = False
            gateway.finish(record)
            respond_refusal(responder, front, refusal, record.id, extra)
            return
        except ClientGone:
            record.outcome = Outcome.CLIENT_CANCELLED
            record.e2e_s = gateway.runner.clock() - arrived_at
            gateway.finish(record)
            return
        except BaseException as error:  # a fault of ours, or the shutdown
            record.outcome = Outcome.BACKEND_ERROR
            record.error_code = "internal_error" if isinstance(error, Exception) else "shutdown"
            record.e2e_s = gateway.runner.clock() - arrived_at
            gateway.finish(record)
            if not isinstance(error, Exception):
                raise
            logger.exception("request %s failed inside the gateway", record.id)
            respond_refusal(responder, front, internal_error(), record.id, extra)
            return
        exchange = Exchange(api, body, front, stream, whole, request, record, extra, lease)
        try:
            try:
                await Relay(gateway, exchange, responder).run(scope["state"]["connection"])
            finally:
                if lease is not None:
                    lease.settle(record)
        except Exception:
            logger.exception("request %s failed inside the gateway", record.id)
            if responder.started:
                responder.abort()
            else:
                respond_refusal(responder, front, internal_error(), record.id, extra)

    def _authenticate(
        self, rules: Rules, raw: RawHeaders, headers: dict[bytes, bytes], record: RequestRecord
    ) -> KeyTerms | None:
        client_id = headers.get(b"x-request-id")
        if client_id is not None:
            record.client_request_id = client_id.decode("latin-1")
        retries = headers.get(b"x-stainless-retry-count")
        if retries is not None and retries.isdigit():
            record.retry_count = min(int(retries), 1_000_000) if len(retries) < 10 else None
        terms = caller_terms(rules, raw, headers)
        record.key_name = None if terms is None else terms.name
        return terms

    async def _request(
        self,
        rules: Rules,
        terms: KeyTerms | None,
        headers: dict[bytes, bytes],
        api: str,
        body: dict[str, Any],
        stream: bool,
        record: RequestRecord,
    ) -> tuple[Request, bool]:
        """Understand an OpenAI-shaped body; also whether the engine can only answer it whole."""
        routing = body.pop("routing", None)
        bodies.check(api, body)
        rules.fields.check_media(body)
        wish = rules.wishes.merge(
            body.get("model"),
            terms,
            None if routing is None else from_body(routing),
            from_headers(headers.get),
        )
        facts = prompt_facts(api, body)
        request = build_request(rules, record, wish, api, body, facts, headers.get(b"x-session-id"))
        whole = api == "embeddings" or needs_whole(body)
        if whole and stream:
            raise invalid_request("An engine cannot stream this request; ask without stream.", "stream")
        await self._gateway.count_tokens(request, api, body)
        record.prompt_tokens = request.prompt_tokens
        if rules.config.store.keep_prompts:
            record.prompt = "\n".join(prompt_texts(api, body))
        return request, whole

    async def _admit(
        self,
        rules: Rules,
        request: Request,
        whole: bool,
        record: RequestRecord,
        headers: list[tuple[bytes, bytes]],
    ) -> Lease | None:
        """Take a request from the limits and budgets of its key; None without a key. Raises the 429s."""
        if record.key_name is None:
            return None
        gateway = self._gateway
        account = rules.accounts[record.key_name]
        quoted = None
        if account.budgeted:
            scheduler = gateway.runner.scheduler
            quoted = quote(
                request,
                gateway.tariffs.of(request),
                scheduler.usual_tokens,
                whole=whole,
                hedged=scheduler.settings.hedge_share > 0 and hedging.may(request),
            )
        tokens = request.prompt_tokens + (request.max_tokens or 0) * request.choices
        lease = await gateway.till.open(account, record.received_at, tokens, quoted, headers)
        request.left_usd = lease.left_usd
        return lease


def needs_whole(body: Mapping[str, Any]) -> bool:
    """Whether an engine can answer this only in one piece."""
    if body.get("prompt_logprobs") is not None or body.get("use_beam_search"):
        return True
    best_of: int = body.get("best_of") or 1
    return best_of > (body.get("n") or 1)


def build_request(
    rules: Rules,
    record: RequestRecord,
    wish: Wish,
    api: str,
    body: Mapping[str, Any],
    facts: PromptFacts,
    session: bytes | None,
) -> Request:
    """What the scheduler gets; the wishes are noted in the record. `session` is what the client's header says; the
    body's own word comes first."""
    record.policy = wish.policy
    record.max_tokens = bodies.output_cap(body)
    record.max_cost_usd = wish.max_cost_usd
    record.features = facts.features
    if wish.slo is not None:
        record.set_slo(wish.slo)
    told = body.get("prompt_cache_key")
    if not isinstance(told, str) or not told:
        told = session.decode("latin-1") if session else None
    choices: int = max(body.get("n") or 1, body.get("best_of") or 1) * facts.prompts
    decodes = api != "embeddings"
    request = rules.request(
        wish,
        facts,
        request_id=record.id,
        arrived_at=record.arrived_at or 0.0,
        max_tokens=record.max_tokens,
        key=record.key_name,
        decodes=decodes,
        choices=choices,
        needs=needs_of(api, body),
        # Several answers have several first tokens, an answer in one piece has none.
        hedges=decodes and choices == 1 and facts.longest_tokens is None and not needs_whole(body),
        session=told,
    )
    record.prefix = request.prefix
    return request


def internal_error() -> Refusal:
    """What a client is told of a fault of ours."""
    return Refusal(500, "internal_error", "The gateway failed on this request.", Outcome.BACKEND_ERROR)


def draining() -> Refusal:
    """What a new request is told while the gateway shuts down."""
    return Refusal(
        503, "no_instance", "The gateway is shutting down.", Outcome.REJECTED_NO_INSTANCE, retry_after_s=5
    )


def unrecorded() -> Refusal:
    """What a new request is told while its record could not be kept."""
    return Refusal(
        503,
        "server_overloaded",
        "The database is away, and no more records can be kept until it is back.",
        Outcome.REJECTED_OVERLOAD,
        retry_after_s=5,
    )


async def read_body(headers: dict[bytes, bytes], receive: Receive, max_body_mb: float) -> bytes:
    """The whole body; 413 as soon as it is known to be over the limit."""
    limit = int(max_body_mb * 1024 * 1024)
    length = headers.get(b"content-length")
    if length is not None and length.isdigit() and int(length) > limit:
        raise _too_large(max_body_mb)
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientGone
    first: bytes = message["body"]
    if not message["more_body"]:
        if len(first) > limit:
            raise _too_large(max_body_mb)
        return first
    parts, size = [first], len(first)
    while message["more_body"]:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        parts.append(message["body"])
        size += len(message["body"])
        if size > limit:
            raise _too_large(max_body_mb)
    return b"".join(parts)


def _too_large(max_body_mb: float) -> Refusal:
    return Refusal(
        413, "request_too_large", f"The body is larger than {max_body_mb:g} MiB.", Outcome.REJECTED_INVALID
    )
