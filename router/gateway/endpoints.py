"""The hot endpoints: generation and embeddings, OpenAI's and Ollama's.

The server calls `HotPaths` for them, without ASGI; everything else (models, routing, operations) is FastAPI's.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from router.core.errors import Refusal
from router.core.quoting import cut
from router.core.refusals import draining, internal_error, method_not_allowed
from router.core.types import Outcome
from router.gateway.codecs.codec import ApiCodec
from router.gateway.codecs.ollama.answer import refusal_body
from router.gateway.codecs.ollama.codec import OLLAMA_ROUTES, OllamaCodec, OllamaRoute
from router.gateway.codecs.openai import OpenAICodec, openai_error
from router.gateway.codecs.responses.codec import ResponsesCodec
from router.gateway.codecs.responses.request import responses_to_chat
from router.gateway.fleet.rules import Rules
from router.gateway.http.client_request import ClientRequest
from router.gateway.http.request_body import ClientGone, check_encoding, is_small
from router.gateway.intake.callers import RawHeaders, caller_terms
from router.gateway.intake.request import read_request
from router.gateway.keys.admission import KeyReservation
from router.gateway.relay.answer import respond_refusal
from router.gateway.relay.relay import CheckAnswer, Relay
from router.gateway.service import Gateway
from router.logs import current_request
from router.request import body as bodies
from router.request.routing_params import KeyTerms
from router.request.validation import MAX_NAME_CHARS
from router.store.records import RequestRecord

logger = logging.getLogger("headway")


#: Each path and its API: the name of OpenAI's (the `api` of records), or Ollama's route.
ROUTES: dict[str, str | OllamaRoute] = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/embeddings": "embeddings",
    "/v1/responses": "responses",
    **OLLAMA_ROUTES,
}

#: Without a usage event this codec keeps nothing of a request.
_OPENAI = OpenAICodec(False)


class HotPaths:
    """Serves the requests of one gateway on the hot paths. `sample` sees each relay before its start, `check` is that of
    relays."""

    def __init__(
        self,
        gateway: Gateway,
        sample: Callable[[Relay], None] | None = None,
        check: CheckAnswer | None = None,
    ) -> None:
        self._gateway = gateway
        self._sample = sample
        self._check = check

    async def __call__(self, client: ClientRequest) -> Callable[[], None] | None:
        """Serve one request, up to its last step, which is returned: there the relay takes over. This waits only if the body
        is still arriving or large, if limits are shared with other replicas, or if a tokenizer counts the prompt."""
        if client.method != b"POST":
            refusal = method_not_allowed()
            said = refusal_body(refusal, "") if client.path.startswith("/api/") else openai_error(refusal)
            client.respond(405, b"content-type: application/json\r\nallow: POST\r\n", said)
            return None
        gateway, route = self._gateway, ROUTES[client.path]
        rules = gateway.fleet.rules
        codec: ApiCodec
        if isinstance(route, str):
            api, codec = route, _OPENAI
        else:
            api, codec = route.name, OllamaCodec(route.endpoint, "")
        now = time.time()
        record = RequestRecord(
            id=gateway.new_request_id(now), received_at=now, api=api, arrived_at=gateway.runner.clock()
        )
        current_request.set(record.id)
        headers = client.by_name
        extra: list[tuple[bytes, bytes]] = []
        reservation: KeyReservation | None = None
        if rules.refuse_when_full and gateway.store.full:
            refusal = unrecorded()
            record.outcome, record.error_code = refusal.outcome, refusal.code
            gateway.metrics.record(record)  # the room that is left is for the rows of requests under way
            respond_refusal(client, codec, refusal, record.id, extra)
            return None
        gateway.store.writer.arrived()
        try:
            # The caller, and a request and a slot of its key's limits.
            terms = self._authenticate(rules, client.headers, headers, record)
            if gateway.tracing is not None:  # a caller without a key must not join anybody's trace
                record.trace = gateway.tracing.begin(headers)
            if gateway.draining:
                raise draining()
            account = None if record.key_name is None else rules.working[record.key_name].account
            if account is not None:  # before any work is done for it
                try:
                    reservation = await gateway.budget_admission.enter(account, record.received_at, extra)
                except Refusal:
                    if not is_small(headers):
                        raise  # a small body is read, so that record and answer name the model
            # The body, checked as JSON.
            if b"content-encoding" in headers:
                check_encoding(headers)
            data = client.body_here(rules.max_body_mb)
            if data is None:
                data = await client.body(headers.get(b"content-length"), rules.max_body_mb)
            large = len(data) > bodies.SMALL_BYTES
            body = await bodies.parse_large_json(data) if large else bodies.parse_json(data)
            del data
            asked = body.get("model")
            record.model_requested = cut(asked, MAX_NAME_CHARS) if isinstance(asked, str) else None
            rules.fields.check_names(body)
            # The body as OpenAI's chat, completion or embedding; the codec answers in the form of the client's API.
            if route == "responses":
                translated = responses_to_chat(body)
                codec = ResponsesCodec(translated, record.id)
                body, stream, api = translated.body, translated.stream, translated.api
            elif isinstance(route, str):
                stream = body.get("stream") is True and api != "embeddings"
                options = body.get("stream_options")
                include_usage = isinstance(options, dict) and options.get("include_usage") is True
                if stream and include_usage:
                    codec = OpenAICodec(True)
            else:
                if not asked and isinstance(asked := body.get("name"), str):  # the older spelling
                    record.model_requested = cut(asked, MAX_NAME_CHARS)
                codec = OllamaCodec(route.endpoint, asked if isinstance(asked, str) else "")
                translated = route.translate(body)
                body, stream, api = translated.body, translated.stream, translated.api
                names = rules.routing_rules.names_for(terms)
                body["model"] = names.spelled(body["model"])
                if translated.load is not None:
                    if reservation is None and account is not None:
                        reservation = await gateway.budget_admission.enter(account, record.received_at, extra)
                    names.resolve(body["model"])
                    self._ended(record, reservation, Outcome.OK)
                    lines = b"content-type: application/json\r\nx-request-id: %b\r\n" % record.id.encode()
                    loaded = OllamaCodec(route.endpoint, body["model"]).loaded(translated.load)
                    client.respond(200, lines, loaded)
                    return None
            if large:  # the translation and what follows are two turns of the event loop
                await asyncio.sleep(0)
            # The scheduler's request, paid by its key, with its tokens counted.
            request, facts = await read_request(
                rules, terms, headers, api, body, record, stream=stream, large=large
            )
            if account is not None:
                tokens = request.prompt_tokens + (request.max_tokens or 0) * request.choices
                if reservation is None:
                    reservation = await gateway.budget_admission.enter(
                        account, record.received_at, extra, tokens
                    )
                quote = gateway.runner.scheduler.quote(request) if account.budgeted else None
                await gateway.budget_admission.hold(reservation, tokens, quote, extra)
            if gateway.tokens.may_count(request):
                await gateway.tokens.count(request, api, body, facts)
                record.prompt_tokens = request.prompt_tokens
            if large:
                await asyncio.sleep(0)
            if client.left:
                raise ClientGone
            relay = Relay(gateway, client, api, body, codec, request, record, extra, reservation, self._check)
            if self._sample is not None:
                self._sample(relay)
            return relay.start
        except Refusal as refusal:
            if record.slo_ttft_s or record.slo_tpot_s or record.slo_e2e_s:
                record.slo_met = False
            self._ended(record, reservation, refusal.outcome, refusal.code)
            respond_refusal(client, codec, refusal, record.id, extra)
            return None
        except (ClientGone, asyncio.CancelledError):
            if client.left:
                self._ended(record, reservation, Outcome.CLIENT_CANCELLED)
                client.gone()
            else:
                self._ended(record, reservation, Outcome.BACKEND_ERROR, "shutdown")
                respond_refusal(client, codec, draining(), record.id, extra)
            return None
        except Exception:
            self._ended(record, reservation, Outcome.BACKEND_ERROR, "internal_error")
            logger.exception("request %s failed inside the gateway", record.id)
            respond_refusal(client, codec, internal_error(), record.id, extra)
            return None

    def _ended(
        self,
        record: RequestRecord,
        reservation: KeyReservation | None,
        outcome: Outcome,
        code: str | None = None,
    ) -> None:
        """A request has ended before it was submitted."""
        record.outcome, record.error_code = outcome, code
        record.e2e_s = self._gateway.runner.clock() - (record.arrived_at or 0.0)
        if reservation is not None:
            reservation.cancel()
        self._finish(record)

    def _finish(self, record: RequestRecord) -> None:
        self._gateway.finish(record)

    def _authenticate(
        self, rules: Rules, raw: RawHeaders, headers: dict[bytes, bytes], record: RequestRecord
    ) -> KeyTerms | None:
        client_id = headers.get(b"x-request-id")
        if client_id is not None:
            record.client_request_id = client_id[:256].decode("latin-1")
        retries = headers.get(b"x-stainless-retry-count")
        if retries is not None and retries.isdigit():
            record.retry_count = min(int(retries), 1_000_000) if len(retries) < 10 else None
        terms = caller_terms(rules, raw, headers)
        record.key_name = None if terms is None else terms.name
        return terms


def unrecorded() -> Refusal:
    """The 503 for a new request while records cannot be kept."""
    return Refusal(
        503,
        "server_overloaded",
        "The database is away, and no more records can be kept until it is back.",
        Outcome.REJECTED_OVERLOAD,
        retry_after_s=5,
    )
