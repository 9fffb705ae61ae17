"""Replicas of the router learn from each other: what is learned here is told, what others tell is learned.

What was heard goes through the same functions as what happened here, and is not told again. Lessons that depend on an
artifact (what the latency model's quantiles missed by, what the length model had said, boosted trees) are learned only
where the same artifacts serve. How well a replica's own predictions hold (`predictors.online.coverage`) stays its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from predictors.learned.latency.features import Estimate
from predictors.online import lessons
from predictors.online.lessons import Lesson
from predictors.online.observations import Observations
from predictors.online.pair import Pair
from router.core.state import Instance
from router.core.types import PromptFeatures

#: Lessons that wait at the most to be told; of more the newest.
MOST_WAITING = 512
#: Lessons a second that a replica is to hear of all others together. One takes some 50 microseconds to learn where the
#: latency model serves (it steps its network for most), so this is about a seventh of a core. Of a fleet so busy a part
#: tells as much as all.
HEARD_PER_S = 3000.0


class LessonCounts(NamedTuple):
    """Since the start. `dropped`: learned here, more than others should hear; `ignored`: malformed, of another version or
    of no instance here; `unfit`: of other artifacts than those in use."""

    told: int = 0
    dropped: int = 0
    heard: int = 0
    ignored: int = 0
    unfit: int = 0


class Sharing:
    """What a fleet's observations tell and hear."""

    def __init__(self, seen: Observations) -> None:
        self._seen = seen
        self._waiting: deque[Lesson] = deque(maxlen=MOST_WAITING)
        self._allowed = float(MOST_WAITING)  # lessons that may be told by now
        self._allowed_at = 0.0
        self._told = self._dropped = self._heard = self._ignored = self._unfit = 0
        self._learn: dict[type, Callable[[Any, _Heard], None]] = {
            lessons.Sent: self._sent,
            lessons.Began: self._began,
            lessons.Finished: self._finished,
            lessons.Lost: self._lost,
            lessons.Ttft: self._ttft,
            lessons.Corrected: self._corrected,
            lessons.Tpot: self._tpot,
            lessons.Tree: self._tree,
            lessons.Prompt: self._prompt,
            lessons.Answer: self._answer,
        }

    @property
    def counts(self) -> LessonCounts:
        return LessonCounts(self._told, self._dropped, self._heard, self._ignored, self._unfit)

    def begin(self) -> None:
        """From now on keep what is learned here, to be told."""
        self._seen.tell = self._keep

    def _keep(self, lesson: Lesson) -> None:
        self._dropped += len(self._waiting) == MOST_WAITING
        self._waiting.append(lesson)

    def news(self, now: float, replicas: int) -> bytes | None:
        """One message with what was learned here since the last one, as much of it as all `replicas` (this one too)
        should hear; None if there is nothing to tell, or nobody to tell it."""
        waiting = self._waiting
        if replicas < 2:
            waiting.clear()
        if not waiting:
            return None
        earned = (now - self._allowed_at) * HEARD_PER_S / (replicas - 1)
        self._allowed, self._allowed_at = min(self._allowed + earned, float(MOST_WAITING)), now
        over = max(len(waiting) - int(self._allowed), 0)
        told = list(waiting)[over:]  # the newest
        waiting.clear()
        self._dropped += over
        self._told += len(told)
        self._allowed -= len(told)
        return lessons.write(self._seen.models.name, told) if told else None

    def hear(self, message: bytes, instances: Mapping[str, Instance], now: float) -> None:
        """Learn what another replica has told. Of an instance or a model that is not in the fleet nothing is kept."""
        by, found, ignored = lessons.read(message)
        self._ignored += ignored
        fits = by == self._seen.models.name
        served: set[str] | None = None
        for lesson in found:
            known = True
            if isinstance(lesson, lessons.Judged):
                if served is None:
                    served = {model for each in instances.values() for model in each.candidates}
                known = lesson.model in served
                if known:
                    features = PromptFeatures(lesson.head, lesson.tail, lesson.counts)
                    self._seen.qualities.observe(lesson.model, features, lesson.quality)
            elif isinstance(lesson, lessons.Held):
                known = lesson.instance in instances
                if known:
                    self._seen.hold(lesson.instance, lesson.prefix, lesson.session, lesson.tokens)
            else:
                instance = instances.get(lesson.instance)
                candidate = None if instance is None else instance.candidates.get(lesson.model)
                known = candidate is not None
                if instance is not None and candidate is not None:
                    pair = self._seen.pair(candidate, instance)
                    self._learn[type(lesson)](lesson, _Heard(pair, instance, fits, now))
            self._heard += known
            self._ignored += not known

    # --- what happened at an instance, for the latency model ------------------------------------------
    def _sent(self, lesson: lessons.Sent, heard: _Heard) -> None:
        if heard.pair.track is not None:
            heard.pair.track.dispatched(
                heard.instance, _ttft_estimate(lesson, lesson.step_s), heard.now, own=False
            )

    def _began(self, lesson: lessons.Began, heard: _Heard) -> None:
        heard.pair.prefills.add(lesson.prompt_tokens - lesson.cached_tokens, heard.now)
        if heard.pair.track is not None:
            heard.pair.track.first_token(
                heard.instance, _ttft_estimate(lesson), lesson.waited_s, heard.now, own=False
            )

    def _finished(self, lesson: lessons.Finished, heard: _Heard) -> None:
        if heard.pair.track is not None:
            estimate = _NO_ESTIMATE._replace(
                tpot_s=lesson.expected_tpot_s,
                tpot_bias=lesson.tpot_bias,
                prompt_tokens=lesson.prompt_tokens,
                cached_tokens=lesson.cached_tokens,
            )
            heard.pair.track.ended(heard.instance, estimate, lesson.output_tokens, lesson.tpot_s, heard.now)

    def _lost(self, lesson: lessons.Lost, heard: _Heard) -> None:
        if heard.pair.track is not None:
            heard.pair.track.lost(heard.instance, lesson.waited_s, lesson.decoding, heard.now, own=False)

    # --- errors, lengths --------------------------------------------------------------------------------
    def _ttft(self, lesson: lessons.Ttft, heard: _Heard) -> None:
        told = self._told_by_models(lesson.quantiles, heard)
        heard.pair.learn_ttft(lesson.stratum, lesson.residual, (lesson.median, lesson.p95), told)

    def _corrected(self, lesson: lessons.Corrected, heard: _Heard) -> None:
        heard.pair.ttft.correct(lesson.stratum, lesson.taken, lesson.residual)

    def _tpot(self, lesson: lessons.Tpot, heard: _Heard) -> None:
        told = self._told_by_models(lesson.quantiles, heard)
        heard.pair.learn_tpot(lesson.stratum, lesson.residual, lesson.raw_s, lesson.actual_s, told)

    def _tree(self, lesson: lessons.Tree, heard: _Heard) -> None:
        if heard.fits:
            self._seen.trees.group(heard.pair.group_name).observe(lesson.time, lesson.queued, lesson.error)
        self._unfit += not heard.fits

    def _prompt(self, lesson: lessons.Prompt, heard: _Heard) -> None:
        heard.pair.lengths.observe_prompt(lesson.estimated_tokens, lesson.engine_tokens)

    def _answer(self, lesson: lessons.Answer, heard: _Heard) -> None:
        predicted = lesson.predicted
        if predicted is not None and not heard.fits:
            predicted = None
            self._unfit += 1
        heard.pair.lengths.observe_output(lesson.output_tokens, lesson.max_tokens, lesson.choices, predicted)

    def _told_by_models(self, quantiles: tuple[float, ...], heard: _Heard) -> tuple[float, ...] | None:
        if quantiles and not heard.fits:
            self._unfit += 1
            return None
        return quantiles or None


class _Heard(NamedTuple):
    """Of whom a lesson is, whether the artifacts that it was learned with serve here, and the time."""

    pair: Pair
    instance: Instance
    fits: bool
    now: float


#: Nothing expected; what a lesson tells takes its place.
_NO_ESTIMATE = Estimate(1.0, 1.0, 0, 0, 0.0, 0.0, 0, 0, 0.0, 0.0, 0.0, 0.0, 1.0)


def _ttft_estimate(lesson: lessons.Sent | lessons.Began, step_s: float = 1.0) -> Estimate:
    return _NO_ESTIMATE._replace(
        ttft_s=lesson.ttft_s,
        ttft_bias=lesson.ttft_bias,
        prompt_tokens=lesson.prompt_tokens,
        cached_tokens=lesson.cached_tokens,
        step_s=step_s,
    )
