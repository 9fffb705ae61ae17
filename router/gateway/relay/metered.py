"""Meters a stream event by event (`router.core.money.meter`), so that no event passes that is not paid for.

An engine may ignore the bound that it was given, and may put several tokens into one event. The tokens of an event are, by
the first source that it has: the engine's own usage so far (a vLLM is asked for it), its list of log probabilities or
token ids, else its text (`tokens_of_text`). The event that goes beyond what is paid for is counted but not passed on. All
later events are ignored, so the outcome does not depend on how the bytes were split into reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

from backends.engine_numbers import counted, sound_usage
from backends.sse_events import chunk_of
from router.compiled import compiled_init
from router.core.interfaces import Batch, Collector
from router.core.money.meter import TokenMeter, Verdict
from router.gateway.relay.event_tokens import choice_tokens, choices_of, ended_in, index_of, tokens_of_each
from router.gateway.relay.metered_template import MeteredTemplate, metered_template


class _Rest(NamedTuple):
    """What waits for money: the events of a batch from byte `at` on; the first one has been counted. `reported` is the usage
    in the last event that had one."""

    batch: Batch
    at: int
    reported: object


@compiled_init
@dataclass(slots=True, eq=False)
class MeteredStream:
    """The events of one attempt under its meter.

    `hide_usage` takes the usage that only the router asked for out of the events. With a `collector` what is paid for goes
    to it, and the batches have no data. `usage` is what is known of it so far, `stopped` says that the answer ends here,
    `waiting` that the rest waits for money: `go_on` then gives it.
    """

    meter: TokenMeter
    choices: int
    hide_usage: bool
    collector: Collector | None = None
    usage: Mapping[str, Any] | None = None
    stopped: bool = False
    _by_choice: dict[int, int] = field(default_factory=dict)  # tokens
    _events: dict[int, int] = field(default_factory=dict)  # events with tokens in them, by choice
    _ended: set[int] = field(default_factory=set)  # choices that have come to their end
    _per_choice: bool = False  # the usage of an event is that of its choice, as vLLM's is
    _final: Mapping[str, Any] | None = None  # the engine's own usage of the whole answer
    _passed: int = 0  # tokens
    _template: MeteredTemplate | None = None  # how the events of the last batch are written
    _rest: _Rest | None = None

    @property
    def waiting(self) -> bool:
        """Whether an event waits for money."""
        return self._rest is not None

    def take(self, batch: Batch) -> Batch:
        """The part of a batch that is paid for."""
        return self._take(batch, 0, None)

    def go_on(self) -> Batch:
        """The part of what waited that the present allowance pays for."""
        assert self._rest is not None  # noqa: S101 (the caller saw `waiting`)
        (batch, at, reported), self._rest = self._rest, None
        return self._take(batch, at, reported, counted_first=True)

    def _take(self, batch: Batch, at: int, reported: object, *, counted_first: bool = False) -> Batch:
        meter, data, collector = self.meter, batch.data, self.collector
        size, before = len(data), self._passed
        kept: list[bytes] = []
        while at < size:
            template = None if counted_first else self._template
            if template is not None and data.startswith(template.head, at):
                run, usage, end = self._take_run(template, data, at)
                if end > at:
                    if collector is None:
                        kept.append(run)
                    else:
                        collector.take_texts(template.field, run)
                    reported = usage or reported
                    at = end
                    continue
            end = data.index(b"\n\n", at) + 2
            event, began, at = data[at : end - 2], at, end
            payload = chunk_of(event)
            if payload is None:
                if event and collector is None:
                    kept.append(data[began:end])
                continue
            usage, choices = payload.get("usage"), choices_of(payload)
            ended = ended_in(choices)
            if not counted_first:
                if ended:
                    self._ended |= ended
                self._count(choices, usage)
            counted_first = False
            complete = len(self._ended) >= self.choices
            if usage is not None and (sound := sound_usage(usage)) is not None:
                reported = sound
                self._final = sound if complete and not self._per_choice else None
            verdict = meter.judge(complete=complete, finished=self.choices == 1 and bool(ended))
            if verdict is Verdict.WAIT:
                self._rest = _Rest(batch, began, reported)
                break
            if verdict is Verdict.STOP:
                self.stopped = True
                break
            self._passed = meter.tokens
            if self.choices == 1:
                self._template = metered_template(event, choices, usage)
            if collector is not None:
                collector.take_event(payload, len(event))
            elif usage is not None and self.hide_usage:
                del payload["usage"]
                kept.append(b"data: %b\n\n" % orjson.dumps(payload))
            else:
                kept.append(data[began:end])
            if verdict is Verdict.PASS_LAST:
                self.stopped = True
                break
        ended_early = self.stopped or self._rest is not None
        # The usage may be of an event without choices.
        if not ended_early and batch.usage is not None and batch.usage != reported:
            self._final = batch.usage
        if self._final is not None and not ended_early:
            self.usage = self._final
            prompt, output = (counted(self._final, name) for name in ("prompt_tokens", "completion_tokens"))
            if meter.judge_total(prompt, output) is Verdict.WAIT:  # it was more than could be seen
                self._rest = _Rest(batch, size, reported)
                ended_early = True
        else:
            self._note_usage()
        data = b"".join(kept)
        passed = self._passed - before
        if ended_early:
            return Batch(data, passed)
        return Batch(data, passed, batch.usage, batch.finish_reason)

    def _take_run(self, template: MeteredTemplate, data: bytes, at: int) -> tuple[bytes, object, int]:
        """The events of this template from `at` on that surely pass (for a collector their texts), the usage of the last one,
        and where they end."""
        meter, choice = self.meter, template.choice
        usages: list[Any] = []
        count, events = self._by_choice.get(choice, 0), self._events.get(choice, 0)
        try:
            if template.end is None:
                texts = template.read(data, at)
                made = tokens_of_each(texts)
            else:
                texts, usages, ends = template.read_counted(data, at)
                tokens_of_each(texts)  # they are JSON
                made, last = [], count
                for number, usage in enumerate(usages, events + 1):
                    output = counted(usage, "completion_tokens")
                    if output is None or counted(usage, "prompt_tokens") != meter.prompt_tokens:
                        break
                    made.append(max(output, number) - last)
                    last = max(output, number)
        except ValueError:
            return b"", None, at
        others = meter.tokens - count
        passing = meter.passing(made, exact=bool(usages)) if made else 0
        if not passing:
            return b"", None, at
        self._by_choice[choice], self._events[choice] = meter.tokens - others, events + passing
        self._passed, self._final = meter.tokens, None
        if passing < len(texts):
            del texts[passing:]
        written = b"".join(texts)
        end = at + len(written) + passing * len(template.seam) if template.end is None else ends[passing - 1]
        usage = usages[passing - 1] if usages else None
        if self.collector is not None:
            return written, usage, end
        if usages and self.hide_usage:
            return template.without_usage(texts), usage, end
        return data[at:end], usage, end

    def _note_usage(self) -> None:
        prompt, output = self.meter.prompt_tokens, self.meter.tokens
        self.usage = (
            None
            if prompt is None
            else {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
        )

    def _count(self, choices: Sequence[Mapping[str, Any]], usage: Any) -> None:
        """Count one event."""
        output = prompt = None
        if usage is not None:
            output, prompt = counted(usage, "completion_tokens"), counted(usage, "prompt_tokens")
        by_choice, events = self._by_choice, self._events
        for choice in choices:
            at = index_of(choice)
            made = choice_tokens(choice)
            by_choice[at] = by_choice.get(at, 0) + made
            if made:
                self._final = None
            events[at] = events.get(at, 0) + (made > 0)
        total = sum(by_choice.values())
        seen = sum(events.values())
        if output is not None:
            if output < seen and self.choices > 1:
                self._per_choice = True
            if len(self._ended) >= self.choices and not self._per_choice:
                total = output  # the end of the answer
            elif len(choices) == 1 and self._per_choice:
                at = index_of(choices[0])
                total += max(output, events[at]) - by_choice[at]
                by_choice[at] = max(output, events[at])
            elif choices:
                more = max(output, seen) - total
                by_choice[index_of(choices[-1])] += more
                total += more
        self.meter.count(total, prompt, seen if output is None else None)
