"""Training data from the gateway's own records (docs/records.md): attempts, engine states, prompts, answers.

The engine-state log is what decisions saw of their candidates, taken back to the moment of each report. An
attempt that was cancelled or expired stays, as one that would have taken longer. Prompts are their features;
there is text only where the store keeps prompts. Rows that cannot be true are left out and counted in `about`.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from heapq import heappop, heappush
from operator import attrgetter
from pathlib import Path
from typing import Any

from sqlalchemy import RowMapping, Select, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from backends import KINDS
from backends.engine import profiles
from benchmarks.datasets.contents import with_source
from benchmarks.datasets.groups import groups
from predictors.learned.names import family_of
from predictors.learned.text import prompt_features
from predictors.online.prefix_index import PrefixIndex
from predictors.training.dataset import Answer, Attempt, Dataset, DatasetError, Prompt, Run, State
from router.config import FleetConfig
from router.core.types import PREFIX_TOKENS, EndedHow, Outcome, PromptFeatures
from router.store import explanations, tables
from router.store.database import StoreError, opened, parse_url
from router.store.explanations import Explanation, KeptDecision

SOURCE = "records"
_BATCH_REQUESTS = 500
#: Two views of one report may be this far apart: ages are rounded, and clocks differ.
_SAME_REPORT_S = 0.25
#: Outcomes of whole answers, and of answers that were cut.
_WHOLE = {Outcome.OK.value, Outcome.LATE.value}
_CUT = {
    Outcome.EXPIRED_MID_DECODE.value,
    Outcome.BUDGET_EXHAUSTED_MID_DECODE.value,
    Outcome.CLIENT_CANCELLED.value,
    Outcome.BACKEND_ERROR.value,
}
_HOW = {how.value for how in EndedHow}


def read_store(where: str | Path, *, since: float | None = None, fleet: FleetConfig | None = None) -> Dataset:
    """The records of a database file or URL, of requests received since a time (seconds since the epoch): one run an instance, its times in seconds since the first request. `fleet` has what the records lack: the
    instances' hardware, engine profiles and the models' families. Raises DatasetError."""
    try:
        url = str(where) if "://" in str(where) else f"sqlite+aiosqlite:///{where}"
        found = asyncio.run(_read(url, since, fleet))
    except StoreError as error:
        raise DatasetError(str(error)) from None
    return found.dataset()


async def _read(url: str, since: float | None, fleet: FleetConfig | None) -> _Reading:
    """Read a batch of requests at a time: one statement for all would keep its transaction open, and the database sorts
    millions of attempts before it gives the first."""
    found = _Reading(Path(parse_url(url).database or "").stem, fleet)
    requests, attempts, judged, explained = (
        tables.requests,
        tables.attempts,
        tables.feedback,
        tables.explanations,
    )
    received_at, of = requests.c.received_at, requests.c.id
    every = select(requests, explained.c.blob, explained.c.prompt).outerjoin(
        explained, explained.c.request_id == of
    )
    after = (since or 0.0, "")
    async with opened(url) as engine:
        while True:
            async with engine.connect() as connection:
                query = every.where(tuple_(received_at, of) > after).order_by(received_at, of)
                rows = await _rows(connection, query.limit(_BATCH_REQUESTS))
                ids = [row["id"] for row in rows]
                query = select(attempts).where(attempts.c.request_id.in_(ids)).order_by(attempts.c.number)
                for row in await _rows(connection, query):
                    found.attempts[row["request_id"]].append(row)
                for row in await _rows(connection, select(judged).where(judged.c.request_id.in_(ids))):
                    if (quality := _number(row["quality"], 0.0, 1.0)) is not None:
                        found.quality[row["request_id"]].append(quality)
            for row in rows:
                found.request(row)
            if len(rows) < _BATCH_REQUESTS:
                return found
            after = (rows[-1]["received_at"], ids[-1])


async def _rows(connection: AsyncConnection, query: Select[Any]) -> Sequence[RowMapping]:
    rows: Sequence[RowMapping] = (await connection.execute(query)).mappings().all()
    return rows


@dataclass(slots=True)
class _Reading:
    """Rows as they come: of each request first its `attempts` and `quality`, then `request`, in order of arrival."""

    name: str
    fleet: FleetConfig | None
    attempts: defaultdict[str, list[RowMapping]] = field(default_factory=lambda: defaultdict(list))
    quality: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    skipped: Counter[str] = field(default_factory=Counter)
    started_at_s: float | None = None
    made: defaultdict[str, list[Attempt]] = field(default_factory=lambda: defaultdict(list))
    states: defaultdict[str, list[State]] = field(default_factory=lambda: defaultdict(list))
    prompts: dict[str, Prompt] = field(default_factory=dict)
    answers: list[Answer] = field(default_factory=list)
    prefixes: PrefixIndex = field(default_factory=PrefixIndex)
    prefilled: list[tuple[float, str, tuple[int, ...]]] = field(default_factory=list)  # not yet in `prefixes`

    def request(self, row: RowMapping) -> None:
        """One request with all that belongs to it."""
        received_at = _number(row["received_at"], 0.0)
        if received_at is None:
            self.skipped["requests without a time"] += 1
            return
        if self.started_at_s is None:
            self.started_at_s = received_at
        explained = self._explained(row["blob"])
        for decision in explained["decisions"]:
            self._saw(decision, received_at - self.started_at_s)
        attempts = self.attempts.pop(row["id"], ())
        if explained["choices"] != 1:  # only the sum of their tokens is known
            self.skipped["requests for several choices"] += 1
            return
        prefix, prompt = explained["prefix"], self._prompt(explained["features"], row["prompt"])
        for attempt in attempts:
            self._attempt(row, attempt, prefix, prompt, self.started_at_s)
        if prompt is not None:
            self._answer(row, prompt, received_at)

    def dataset(self) -> Dataset:
        """All that was read."""
        runs = sorted(self.made)
        prompts = self.prompts.values()
        near = groups({prompt.id: prompt.text for prompt in prompts if prompt.text is not None})
        data = Dataset(
            tuple(replace(each, group=near.get(each.id, each.id)) for each in prompts),
            tuple(self.answers),
            tuple(map(self._run, runs)),
            tuple(each for run in runs for each in sorted(self.made[run], key=attrgetter("dispatched_s"))),
            tuple(each for run in runs for each in _distinct(self.states[run])),
        )
        tables = ("prompts", "answers", "runs", "attempts", "states")
        skipped = dict(sorted(self.skipped.items()))
        return with_source(data, SOURCE, "the operator's own", tables, skipped=skipped)

    def _explained(self, blob: bytes | None) -> Explanation:
        if blob is not None:
            try:
                return explanations.decode(blob)
            except (ValueError, KeyError, TypeError):
                self.skipped["explanations that cannot be read"] += 1
        return {"decisions": [], "prefix": [], "features": None, "choices": 1}

    def _saw(self, decision: KeptDecision, received_s: float) -> None:
        """The reports that a decision saw, at the moments at which they came."""
        after_s = _number(decision["decided_after_s"], 0.0)
        for candidate in decision["candidates"]:
            load = candidate["load"]
            if load is None or after_s is None or (age_s := _number(load["report_age_s"], 0.0)) is None:
                continue
            self.states[candidate["instance"]].append(
                State(
                    self._id(candidate["instance"]),
                    received_s + after_s - age_s,
                    _count(load["running"]),
                    _count(load["waiting"]),
                    _number(load["kv_usage"], 0.0, 1.0),
                )
            )

    def _prompt(self, features: PromptFeatures | None, text: str | None) -> str | None:
        """The id of a request's prompt; None where nothing is known of it."""
        if features is None:
            if not text:
                return None
            features = prompt_features(text)
        prompt = sha256(repr((features.head, features.tail, features.counts)).encode()).hexdigest()[:16]
        if prompt not in self.prompts:
            self.prompts[prompt] = Prompt(prompt, prompt, SOURCE, features, text=text or None)
        return prompt

    def _attempt(
        self, row: RowMapping, attempt: RowMapping, prefix: Sequence[int], prompt: str | None, start_s: float
    ) -> None:
        instance, model = attempt["instance"], attempt["model"]
        at = [_number(attempt[name], 0.0) for name in ("started_at", "first_token_at", "ended_at")]
        started_at, first_at, ended_at = at
        prompt_tokens, how = _count(row["prompt_tokens"]), attempt["ended_how"]
        if not instance or not model or started_at is None or prompt_tokens is None or how not in _HOW:
            self.skipped["attempts without instance, model, time, prompt tokens or end"] += 1
            return
        known = [each for each in at if each is not None]
        if known != sorted(known):
            self.skipped["attempts whose times run backwards"] += 1
            return
        cached_tokens = 0
        if prefix:
            # What a decision could expect of the cache had its first token by then.
            while self.prefilled and self.prefilled[0][0] <= started_at:
                self.prefixes.add(*heappop(self.prefilled)[1:])
            matched = self.prefixes.matched_blocks(instance, prefix)
            cached_tokens = min(prompt_tokens, PREFIX_TOKENS) * matched // len(prefix)
            if first_at is not None:
                heappush(self.prefilled, (first_at, instance, tuple(prefix)))
        self.made[instance].append(
            Attempt(
                self._id(instance),
                model,
                started_at - start_s,
                prompt_tokens,
                None if first_at is None else first_at - start_s,
                None if ended_at is None else ended_at - start_s,
                None if first_at is None and how != EndedHow.OK.value else _count(attempt["output_tokens"]),
                _count(row["max_tokens"]) or None,
                cached_tokens,
                how,
                prompt,
                row["key_name"],
            )
        )

    def _answer(self, row: RowMapping, prompt: str, received_at: float) -> None:
        """How long an answer was; of one that was cut, that it would have been longer."""
        tokens, outcome, model = _count(row["output_tokens"]), row["outcome"], row["model"]
        if not model or not tokens or outcome not in _WHOLE | _CUT:
            return
        judgements = self.quality.pop(row["id"], ())
        self.answers.append(
            Answer(
                prompt,
                model,
                self._family(model),
                tokens,
                outcome in _CUT or row["finish_reason"] == "length",
                math.fsum(judgements) / len(judgements) if judgements else None,
                "feedback" if judgements else None,
                received_at,
            )
        )

    def _run(self, instance: str) -> Run:
        model = Counter(attempt.model for attempt in self.made[instance]).most_common(1)[0][0]
        family, started_at_s = self._family(model), self.started_at_s
        run = Run(self._id(instance), SOURCE, instance, model, family=family, started_at_s=started_at_s)
        config = self.fleet.instance(instance) if self.fleet else None
        if config is None:
            return run
        profile = config.engine_profiles(profiles.find).get(model)
        return replace(
            run,
            kind=config.protocol,
            hardware=config.hardware_name,
            speed=config.speed,
            profile=None if profile is None else profile.name,
            profile_values=None if profile is None else asdict(profile),
            fixed_slots=KINDS[config.protocol].fixed_slots,
        )

    def _family(self, model: str) -> str | None:
        config = self.fleet.model(model) if self.fleet else None
        return (config.family if config else None) or family_of(model)

    def _id(self, instance: str) -> str:
        return f"{SOURCE}/{self.name}/{instance}"


def _distinct(states: Iterable[State]) -> list[State]:
    """Every report once, in order of time."""
    found: list[State] = []
    for state in sorted(states, key=lambda each: each.at_s):
        last = found[-1] if found else None
        if (
            last is None
            or state.at_s - last.at_s > _SAME_REPORT_S
            or (state.running, state.waiting, state.kv_usage) != (last.running, last.waiting, last.kv_usage)
        ):
            found.append(state)
    return found


def _number(value: Any, low: float = -math.inf, high: float = math.inf) -> float | None:
    """A finite number in [low, high]; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        return None
    return float(value) if math.isfinite(value) else None


def _count(value: Any) -> int | None:
    number = _number(value, 0.0, 1e12)
    return None if number is None else round(number)
