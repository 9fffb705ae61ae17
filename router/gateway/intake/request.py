"""Builds the scheduler's request from a checked body.

Prompt text goes no further than this module: the scheduler gets token counts, hashes and features.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from typing import Any

from router.core.errors import invalid_request
from router.core.types import Need, Request
from router.gateway.fleet.rules import Rules
from router.request import body as bodies
from router.request.needs import needs_of
from router.request.prompt import (
    PROMPT_FIELDS,
    PromptFacts,
    bound_around,
    leading_chars,
    prompt_facts,
    prompt_texts,
    simple_chat_facts,
)
from router.request.routing_input import from_body, from_headers
from router.request.routing_params import KeyTerms, RoutingParams
from router.request.validation import LARGEST_INTEGER
from router.store.entries import MAX_PROMPT_CHARS
from router.store.records import RequestRecord


async def read_request(
    rules: Rules,
    terms: KeyTerms | None,
    headers: Mapping[bytes, bytes],
    api: str,
    body: dict[str, Any],
    record: RequestRecord,
    *,
    stream: bool = False,
    large: bool = False,
) -> tuple[Request, PromptFacts]:
    """The scheduler's request for an OpenAI-shaped body, and the facts of its prompt. Fills the request's columns of `record`.
    For a `large` body the event loop runs between the steps."""
    routing = body.pop("routing", None)
    texts = bodies.check(api, body)
    if texts is None:
        rules.fields.check_media(body)
    params = rules.routing_rules.merge(
        body.get("model"), terms, None if routing is None else from_body(routing), from_headers(headers)
    )
    around_bound = bound_around(api, body) if texts is None else None
    if large:
        await asyncio.sleep(0)
    if texts is not None:
        facts = simple_chat_facts(body["messages"], texts)
        needs: tuple[Need, ...] = ()
    else:
        facts = prompt_facts(api, body, around_bound)
        if "truncate_prompt_tokens" in body:
            facts = _truncated(rules, api, body, facts)
        needs = needs_of(api, body, truncates=facts.truncates)
    if large:
        await asyncio.sleep(0)
    record.policy = params.policy
    record.max_tokens = bodies.output_cap(body)
    record.max_cost_usd = params.max_cost_usd
    record.min_quality, record.on_miss, record.priority = params.min_quality, params.on_miss, params.priority
    record.features = facts.features
    if params.slo is not None:
        record.set_slo(params.slo)
    request = scheduler_request(
        rules, params, facts, record.id, record.arrived_at or 0.0, record.max_tokens, record.key_name
    )
    request.prompt_field = PROMPT_FIELDS[api]
    request.needs = needs
    request.client_streams = stream
    request.decodes = decodes = api != "embeddings"
    wanted: int = body.get("n") or 1
    made: int = body.get("best_of") or wanted
    request.choices = choices = (made if made > wanted else wanted) * facts.prompts
    if decodes:
        record.choices = choices
    # Engines cannot stream the best of several answers, nor these two. A scored prompt has no token to stream.
    request.engine_streams = engine_streams = (
        decodes
        and made <= wanted
        and record.max_tokens != 0
        and not (body.get("use_beam_search") or body.get("prompt_logprobs") is not None)
    )
    # Several choices have several first tokens. A non-streaming answer has none.
    request.hedges = engine_streams and choices == 1 and facts.longest_tokens is None
    client_session = body.get("prompt_cache_key")
    if not isinstance(client_session, str) or not client_session:
        session = headers.get(b"x-session-id")
        client_session = session.decode("latin-1") if session else None
    if client_session is not None:
        request.session = session_id(record.key_name, client_session)
    if request.check is not None and not _may_be_checked(rules, request, body):
        request.check = None
    record.prefix = request.prefix
    if stream and not engine_streams:
        raise invalid_request("An engine cannot stream this request; ask without stream.", "stream")
    record.prompt_tokens = request.prompt_tokens
    if rules.keep_prompts:
        record.prompt = leading_chars(prompt_texts(api, body), MAX_PROMPT_CHARS, "\n")
    return request, facts


def _truncated(rules: Rules, api: str, body: Mapping[str, Any], facts: PromptFacts) -> PromptFacts:
    """The facts after `truncate_prompt_tokens` (vLLM): a number of tokens, or -1 for what fits the model's context."""
    tokens = body.get("truncate_prompt_tokens")
    if type(tokens) is not int or tokens < -1:
        return facts  # the engine judges it
    if tokens >= 0:
        return facts.truncated(tokens, tokens)
    least, most = rules.least_context_tokens, rules.most_context_tokens
    if least is None:
        return facts
    room = 0 if api == "embeddings" else 1
    return facts.truncated(least - room, (LARGEST_INTEGER if most is None else most) - room)


def _may_be_checked(rules: Rules, request: Request, body: Mapping[str, Any]) -> bool:
    """Whether the answer is one text that is no verdict itself, and that its client does not get token by token."""
    if request.client_streams or not request.decodes or request.choices != 1:
        return False
    keys = [each.key for each in (rules.config.judge, rules.config.second_look) if each is not None]
    return not (body.get("tools") or body.get("functions") or request.key in keys)


def scheduler_request(
    rules: Rules,
    params: RoutingParams,
    facts: PromptFacts,
    request_id: str,
    arrived_at: float,
    max_tokens: int | None,
    key: str | None = None,
) -> Request:
    """The scheduler's request for a chat, for the gateway and the simulator. `arrived_at` is in seconds on the runner's
    clock."""
    working = None if key is None else rules.working.get(key)
    terms = None if working is None else working.terms
    request = Request(  # Python makes a dictionary of more than 15 keywords
        id=request_id,
        arrived_at=arrived_at,
        policy=params.policy,
        models=params.models,
        fallbacks=params.fallbacks,
        prompt_tokens=facts.tokens,
        prompt_tokens_bound=facts.tokens_bound,
        longest_prompt_tokens=facts.longest_tokens,
        max_tokens=max_tokens,
        slo=params.slo,
        hard=params.hard,
        max_cost_usd=params.max_cost_usd,
        min_quality=params.min_quality,
        priority=params.priority,
    )
    request.seed = params.seed
    request.key = key
    if terms is not None:
        request.owner, request.cache_salt = terms.owner, terms.cache_salt
    request.expires_at = arrived_at + rules.request_timeout_s
    request.check = rules.check
    request.prefix = facts.prefix if terms is None else salted(facts.prefix, terms.prefix_salt)
    request.features = facts.features
    return request


def session_id(key: str | None, client_session: str) -> str:
    """A per-key hash of the client's session id. The raw id is never logged, and no two keys share a hash."""
    scope = b"" if key is None else hashlib.sha256(key.encode()).digest()
    return hashlib.sha256(scope + client_session.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def salted(prefix: tuple[int, ...], salt: int) -> tuple[int, ...]:
    """Prefix hashes made specific to one key.

    Keys share no hash, so a prediction reveals nothing about the prompts of another key.
    """
    return tuple([block ^ salt for block in prefix]) if salt and prefix else prefix
