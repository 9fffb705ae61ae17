"""The admin API: the fleet, recorded requests, reload and scaling."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from predictors.online.predictor import OnlinePredictor
from router.config import InstanceConfig, parse_instance
from router.core.errors import unauthorized
from router.core.types import Outcome, Targets
from router.explain import describe
from router.gateway.fleet.batch_plan import batch_plan
from router.gateway.fleet.overlay import adding, draining, removing, targeting
from router.gateway.fleet.scaling import pools
from router.gateway.records import find_request
from router.gateway.routes.access import admin_router, not_found
from router.gateway.service import Gateway
from router.request.validation import says


class BatchPrompt(BaseModel):
    """A prompt of `tokens` tokens for a model of the fleet (null: any)."""

    model_config = ConfigDict(extra="forbid", strict=True)

    tokens: int = Field(ge=1, le=10_000_000)
    model: str | None = None


class Batch(BaseModel):
    """Prompts that are to be prefilled as early as possible, all of them."""

    model_config = ConfigDict(extra="forbid", strict=True)

    prompts: list[BatchPrompt] = Field(min_length=1, max_length=1000)


#: The id of the last request of a page.
_Cursor = Annotated[
    str, StringConstraints(pattern=r"^req_[0-9a-f]+$"), says("must be the next_cursor of the page before")
]


class RequestFilter(BaseModel):
    """Which recorded requests are listed."""

    since: float | None = Field(None, allow_inf_nan=False)
    outcome: Outcome | None = None
    policy: str | None = None
    model: str | None = None
    instance: str | None = None
    key: str | None = None
    limit: int = Field(100, ge=1, le=1000)
    cursor: _Cursor | None = None


class TargetChange(BaseModel):
    """`quality`: the target of mean quality (null: the policy's default). `attainment`: the target share of SLOs kept.
    Omitted fields stay unchanged."""

    model_config = ConfigDict(extra="forbid", strict=True)

    key: str | None = None
    quality: float | None = Field(None, ge=0, le=1, allow_inf_nan=False)
    attainment: float = Field(0.95, ge=0, le=1, allow_inf_nan=False)


def admin_routes(gateway: Gateway) -> APIRouter:
    """All of /admin. Each call needs the admin key; without one set it must come from a program on this machine."""

    router = admin_router()

    @router.get("/fleet")
    async def fleet() -> dict[str, Any]:
        """Instances with health, load and models; the state shared with other replicas; operators' changes over the fleet
        file."""
        scheduler = gateway.runner.scheduler
        now, coverage = gateway.runner.clock(), gateway.predictor.coverage()
        return {
            "models": [model.model_dump(mode="json") for model in gateway.config.models],
            "instances": [_instance(gateway, each, now, coverage) for each in gateway.config.instances],
            "queue_depth": scheduler.queue_depth,
            "live_requests": scheduler.live,
            "draining": gateway.draining,
            "replicas": gateway.state.health.replicas,
            "state": asdict(gateway.state.health),
            "observations": asdict(gateway.predictor.sharing.counts),
            "changes": _changes(gateway),
        }

    @router.post("/instances", status_code=201, responses={409: {}, 422: {}})
    async def add_instance(body: dict[str, Any]) -> dict[str, Any]:
        """Add one instance, written as in the fleet file."""
        added = parse_instance(body)
        if gateway.admin_key is None and (added.api_key_env or added.headers_env):
            # Otherwise any program on this machine could have our secrets sent to its own URL.
            raise unauthorized("An instance may use secrets only if the gateway has an admin key.")

        await gateway.changes.edit(adding(added))
        return _instance(gateway, added, gateway.runner.clock(), gateway.predictor.coverage())

    @router.delete("/instances/{name}")
    async def remove_instance(name: str, drain: bool = False) -> dict[str, Any]:
        """Remove an instance: at once, or with `drain=true` after its last request."""
        if gateway.config.instance(name) is None:
            raise not_found("There is no such instance")
        await gateway.changes.edit(draining(name) if drain else removing(name))
        return {"name": name, "draining" if drain else "removed": True}

    @router.get("/requests")
    async def requests(wanted: Annotated[RequestFilter, Query()]) -> dict[str, Any]:
        """Recorded requests, newest first."""
        page = await gateway.store.requests(**wanted.model_dump(mode="json"))
        return {"requests": page.requests, "next_cursor": page.next_cursor}

    @router.get("/requests/{request_id}")
    async def request(request_id: str) -> dict[str, Any]:
        """One request with every candidate and every attempt."""
        row = await find_request(gateway.store, gateway.state, request_id, any_key=True)
        if row is None:
            raise not_found("There is no such request")
        return await describe(gateway.store, row)

    @router.post("/reload", responses={422: {}})
    async def reload() -> dict[str, Any]:
        """Read the fleet file again. A bad file is refused and the old one stays. `needs_restart` names changed settings that
        apply only after a restart."""
        await gateway.changes.reload(everywhere=True)
        return {
            "instances": len(gateway.config.instances),
            "models": len(gateway.config.models),
            "needs_restart": gateway.changes.needs_restart(),
        }

    @router.get("/predictors")
    async def predictors() -> dict[str, Any]:
        """The artifacts in use (their data, commit, metrics and features), the accuracy of the latency model and of the
        physical estimate by model and hardware, and the weights of predicted lengths and feedback."""
        return _described(gateway.predictor)

    @router.get("/targets")
    async def targets() -> dict[str, Any]:
        """The targets of the policies for the fleet (`key` null) and each key, and the prices that `cost` uses for them
        now."""
        return _targets(gateway)

    @router.patch("/targets", responses={400: {}, 404: {}})
    async def change_targets(change: TargetChange) -> dict[str, Any]:
        """Change the targets of a key, or of the fleet (`key` null or omitted), until the fleet file is read again."""
        values = {name: getattr(change, name) for name in change.model_fields_set - {"key"}}
        if change.key is not None and change.key not in gateway.fleet.targets:
            raise not_found("There is no such key")
        await gateway.changes.edit(targeting(change.key, values))
        return _targets(gateway)

    @router.post("/plan/batch", responses={400: {}, 422: {}})
    async def plan_batch(batch: Batch) -> dict[str, Any]:
        """Which instance each prompt of a batch should go to under the present load, and when the last one would have its
        first token. Nothing is sent or reserved."""
        prompts = [(each.tokens, each.model) for each in batch.prompts]
        plan = batch_plan(prompts, gateway.runner.scheduler.instances.values())
        return await asyncio.to_thread(plan)

    @router.get("/scaling")
    async def get_scaling() -> dict[str, Any]:
        """How many instances each model needs, and what was last decided for each pool."""
        config, decision = gateway.config.scaling, gateway.decision
        return {
            "models": [asdict(each) for each in gateway.scaling()],
            "pools": pools(config, decision),
            "scaler": config.scaler if config.pools else None,
            "actuator": config.actuator if config.pools else None,
            "decided_at": None if decision is None else decision.observation.now_s,
            "decided_here": decision is not None and decision.here,
        }

    return router


def _described(predictor: OnlinePredictor) -> dict[str, Any]:
    """What was trained, and how well it predicts."""
    weights = predictor.latency_weights()
    return {
        "name": predictor.name,
        "artifacts": {kind: dict(about) for kind, about in predictor.models.about.items()},
        "latency": [
            {"model": group[0], "hardware": group[1], **accuracy.as_dict(), "weights": weights[group]}
            for group, accuracy in sorted(predictor.groups().items())
        ],
        "length_weight": predictor.length_weights(),
        "feedback": predictor.feedback_counts(),
    }


def _targets(gateway: Gateway) -> dict[str, Any]:
    changed = gateway.changes.overlay.targets
    read_prices = getattr(gateway.runner.scheduler.policies.get("cost"), "prices", None)
    prices: Mapping[str | None, Any] = {} if read_prices is None else read_prices()
    return {
        "targets": [
            {
                "key": key,
                **{name: getattr(targets, name) for name in Targets.__dataclass_fields__},
                "changed": bool(changed.get(key)),
                "prices": prices.get(key),
            }
            for key, targets in gateway.fleet.targets.items()
        ]
    }


def _changes(gateway: Gateway) -> dict[str, Any]:
    """The changes that apply over the fleet file here; `trouble`: why a newer change does not apply."""
    changes = gateway.changes
    overlay = changes.overlay
    return {
        "revision": overlay.revision,
        "reloads": overlay.reloads,
        "added": [each.name for each in overlay.added],
        "removed": sorted(overlay.removed),
        "draining": sorted(overlay.draining),
        "trouble": changes.trouble,
    }


def _instance(
    gateway: Gateway, config: InstanceConfig, now: float, coverage: Mapping[str, Any]
) -> dict[str, Any]:
    """`coverage` is the predictor's."""
    instance = gateway.runner.scheduler.instances[config.name]
    report, own = instance.report, instance.own
    return {
        "name": instance.name,
        "kind": config.kind,
        "url": config.url,
        "hardware": instance.hardware,
        "serves": {name: candidate.upstream_model for name, candidate in instance.candidates.items()},
        "healthy": instance.healthy,
        "ejected_for": sorted(instance.ejected_for),
        "draining": instance.draining,
        "ejections": instance.ejections,
        "in_flight": own.in_flight,
        "awaiting_first_token": own.awaiting_first_token,
        "elsewhere": {
            "in_flight": instance.elsewhere.in_flight,
            "awaiting_first_token": instance.elsewhere.awaiting_first_token,
        },
        "max_concurrency": instance.max_concurrency,
        "running": report.running,
        "waiting": report.waiting,
        "kv_usage": report.kv_usage,
        "report_age_s": None if instance.reported_at is None else round(now - instance.reported_at, 3),
        "prediction": coverage.get(instance.name),
    }
