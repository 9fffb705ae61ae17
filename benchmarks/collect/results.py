"""What was seen, as the tables of `predictors.training.dataset`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from statistics import median
from typing import Any

from backends import KINDS
from benchmarks.collect.drive import Collection, Run, Sent
from benchmarks.datasets.groups import groups
from predictors.learned.text import prompt_features
from predictors.online.prefix_index import PrefixIndex
from predictors.training import dataset
from predictors.training.dataset import Answer, Attempt, Dataset, Prompt, State
from router.core.types import PREFIX_TOKENS, EndedHow
from router.request.prompt import PromptFacts, prompt_facts

#: (prompt id, model): whose answer.
AnswerKey = tuple[str, str]


def first_answers(collection: Collection) -> dict[AnswerKey, tuple[Run, Sent]]:
    """The first complete answer of each model to each prompt."""
    found: dict[AnswerKey, tuple[Run, Sent]] = {}
    for run in sorted(collection.runs, key=lambda run: run.start):
        for sent in sorted(run.sent, key=lambda sent: sent.at):
            if sent.reply.ended_how is EndedHow.OK and sent.reply.output_tokens:
                found.setdefault((sent.question.id, run.candidate.model), (run, sent))
    return found


def to_dataset(
    collection: Collection,
    about: Mapping[str, Any],
    *,
    source: str,
    keep_texts: bool,
    quality: Mapping[AnswerKey, float],
) -> Dataset:
    """The data set of a collection. `quality` are a judge's scores in [0, 1]; `about` is what the header tells
    of this source beside its name and rows. Without `keep_texts` only features of prompts are kept."""
    runs = [run for run in collection.runs if run.sent]
    questions = {sent.question.id: sent.question for run in runs for sent in run.sent}
    facts = {
        key: prompt_facts("chat", {"messages": [{"role": "user", "content": each.prompt}]})
        for key, each in questions.items()
    }
    group = groups({key: each.prompt for key, each in questions.items()})
    cached = _cached_tokens(runs, facts)
    attempts = [
        _attempt(run, _name(source, run), sent, facts[sent.question.id], cached[id(sent)])
        for run in runs
        for sent in sorted(run.sent, key=lambda sent: sent.at)
    ]
    return Dataset(
        prompts=tuple(
            Prompt(
                key,
                group[key],
                source,
                prompt_features(each.prompt),
                each.task,
                each.prompt if keep_texts else None,
            )
            for key, each in questions.items()
        ),
        answers=tuple(
            Answer(
                prompt=key[0],
                model=key[1],
                family=run.candidate.family,
                output_tokens=sent.reply.output_tokens,
                capped=sent.reply.capped,
                quality=quality.get(key),
                quality_kind="judged" if key in quality else None,
                at_s=round(run.started_at_s + sent.at - run.start, 6),
            )
            for key, (run, sent) in first_answers(collection).items()
        ),
        runs=tuple(_run(run, source) for run in runs),
        attempts=tuple(attempts),
        states=tuple(
            State(_name(source, run), _since(run, at), report.running, report.waiting, report.kv_usage)
            for run in runs
            for at, report in run.reports
        ),
        about={"sources": [{"name": source, "rows": len(attempts), **about}]},
    )


def _name(source: str, run: Run) -> str:
    """Unlike any other's, also where sets that were collected at other times are joined."""
    started = datetime.fromtimestamp(run.started_at_s, UTC)
    return f"{source} {run.engine.name} {run.candidate.model} {run.level.name} {started:%Y%m%dT%H%M%S.%f}"


def _run(run: Run, source: str) -> dataset.Run:
    engine, model = run.engine, run.candidate.model
    return dataset.Run(
        id=_name(source, run),
        source=source,
        instance=engine.name,
        model=model,
        kind=engine.kind,
        family=run.candidate.family,
        hardware=engine.hardware,
        level=run.level.name,
        speed=engine.speed,
        profile=engine.profiles.get(model),
        started_at_s=round(run.started_at_s, 6),
        fixed_slots=KINDS[engine.kind].fixed_slots,
    )


def _since(run: Run, at: float) -> float:
    """Seconds within the run; a clock's digits beyond a microsecond say nothing."""
    return round(at - run.start, 6)


def _attempt(run: Run, name: str, sent: Sent, facts: PromptFacts, cached_tokens: int) -> Attempt:
    reply = sent.reply
    return Attempt(
        run=name,
        model=run.candidate.model,
        dispatched_s=_since(run, sent.at),
        # An engine that gave no answer gave no count: the gateway's own estimate replaces it.
        prompt_tokens=reply.prompt_tokens or facts.tokens,
        first_token_s=None if reply.first_token_at is None else _since(run, reply.first_token_at),
        ended_s=None if reply.ended_at is None else _since(run, reply.ended_at),
        output_tokens=reply.output_tokens,
        max_tokens=sent.max_tokens,
        cached_tokens=cached_tokens,
        ended_how=reply.ended_how.value,
        prompt=sent.question.id,
        session=sent.question.session,
    )


def _cached_tokens(runs: Sequence[Run], facts: Mapping[str, PromptFacts]) -> dict[int, int]:
    """By request: the tokens that a gateway would have believed to be in the engine's prefix cache. It looks
    when it dispatches, and believes in what a first token has shown to be prefilled."""
    events = []
    for run in runs:
        for sent in run.sent:
            events.append((sent.at, run.engine.name, sent, False))
            if sent.reply.first_token_at is not None:
                events.append((sent.reply.first_token_at, run.engine.name, sent, True))
    index, found = PrefixIndex(), {}
    for _, engine, sent, prefilled in sorted(events, key=lambda event: event[0]):
        prompt = facts[sent.question.id]
        if prefilled:
            index.add(engine, prompt.prefix)
        else:
            matched = index.matched_blocks(engine, prompt.prefix)
            share = matched / len(prompt.prefix) if matched else 0.0
            found[id(sent)] = round(min(prompt.tokens, PREFIX_TOKENS) * share)
    return found


def summary(collection: Collection) -> list[dict[str, Any]]:
    """One row a run: how many requests ended how, and medians of what users wait for."""
    rows = []
    for run in collection.runs:
        ends = [each.reply.ended_how for each in run.sent]
        waits = [
            each.reply.first_token_at - each.at for each in run.sent if each.reply.first_token_at is not None
        ]
        whole = [
            each.reply.ended_at - each.at
            for each in run.sent
            if each.reply.ended_at is not None and each.reply.ended_how is EndedHow.OK
        ]
        rows.append(
            {
                "instance": run.engine.name,
                "model": run.candidate.model,
                "level": run.level.name,
                "requests": len(ends),
                **{how.value: ends.count(how) for how in (EndedHow.OK, EndedHow.FAILED, EndedHow.CANCELLED)},
                "ttft_s_p50": median(waits) if waits else None,
                "e2e_s_p50": median(whole) if whole else None,
                "states": len(run.reports),
            }
        )
    return rows
