"""Workload requests as the scheduler gets them, with what only the simulator knows: true lengths and quality."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from benchmarks.simulator.fleet import Fleet
from benchmarks.workloads.format import PREFIX_BLOCK_TOKENS, WorkloadError, WorkloadRequest
from predictors.learned.text import prompt_features
from router.core.errors import Refusal
from router.core.types import PREFIX_TOKENS, Request
from router.gateway.fleet.rules import Rules
from router.gateway.intake.request import scheduler_request
from router.request.prompt import PromptFacts
from router.request.routing_input import from_body
from router.request.routing_params import RoutingParams

_HASHED_BLOCKS = PREFIX_TOKENS // PREFIX_BLOCK_TOKENS
#: The most different routing parameters that are remembered.
_CACHED = 1000


class Arrival(NamedTuple):
    """One request and its truth. `output_tokens` and `quality` are by the fleet's model name."""

    request: Request
    output_tokens: Mapping[str, int]
    quality: Mapping[str, float]
    prefix_hashes: tuple[int, ...]


def arrivals(
    requests: Iterable[WorkloadRequest],
    fleet: Fleet,
    *,
    policy: str | None = None,
    model: str = "auto",
    slo: Mapping[str, float] | None = None,
) -> Iterator[Arrival]:
    """The workload's requests, understood as the gateway would: `routing` is its body field, `model` what all
    of them ask for. `policy` replaces theirs, `slo` (ms) is for those that have none. Raises WorkloadError
    naming the request for what the fleet refuses or the simulator cannot know."""
    rules = fleet.rules
    models = [each.name for each in fleet.config.models]
    merged: dict[str, RoutingParams] = {}  # by what a request says: most workloads repeat a few parameters
    for each in requests:
        said = repr(each.routing)
        params = merged.get(said)
        if params is None:
            if len(merged) >= _CACHED:
                merged.clear()
            params = merged[said] = _params(each, rules, policy, model, slo)
        hashes = each.prefix_hashes or ()
        tokens = each.prompt_tokens
        request = scheduler_request(
            rules,
            params,
            PromptFacts(
                tokens,
                tokens,
                hashes[:_HASHED_BLOCKS],
                features=None if each.prompt is None else prompt_features(each.prompt),
            ),
            each.id,
            each.arrival_s,
            each.max_tokens,
        )
        request.client_streams = rules.check is None  # no answer could be checked otherwise
        request.session = each.session
        lengths = each.output_tokens
        if lengths is None:
            raise WorkloadError(f"request {each.id}: no output_tokens, and the simulator needs true lengths")
        if isinstance(lengths, int):
            lengths = dict.fromkeys(models, lengths)
        else:
            for name in (*request.models, *request.fallbacks):
                if name not in lengths:
                    raise WorkloadError(f"request {each.id}: output_tokens says nothing of model {name}")
        yield Arrival(request, lengths, each.quality or {}, hashes)


def _params(
    request: WorkloadRequest, rules: Rules, policy: str | None, model: str, slo: Mapping[str, float] | None
) -> RoutingParams:
    """The request's routing parameters, merged as the gateway merges them."""
    routing: dict[str, Any] = dict(request.routing or {})
    if policy is not None:
        routing["policy"] = policy
    if slo and not routing.get("slo"):
        routing["slo"] = dict(slo)
    try:
        return rules.routing_rules.merge(model, None, from_body(routing) if routing else None)
    except Refusal as refusal:
        raise WorkloadError(f"request {request.id}: {refusal.message}") from None


def check(
    requests: Iterable[WorkloadRequest],
    fleet: Fleet,
    *,
    model: str = "auto",
    slo: Mapping[str, float] | None = None,
) -> int:
    """Read a workload through before anything runs; returns how many requests it has. Raises WorkloadError
    for what `arrivals` refuses, and for a model that no instance serves."""
    served = {name for each in fleet.config.instances for name in each.serves}
    count = 0
    for arrival in arrivals(requests, fleet, model=model, slo=slo):
        count += 1
        request = arrival.request
        if not served.intersection(request.models) and not served.intersection(request.fallbacks):
            raise WorkloadError(
                f"request {request.id} asks for {', '.join(request.models)}, which no instance of the fleet serves"
            )
    if not count:
        raise WorkloadError("the workload has no requests")
    return count
