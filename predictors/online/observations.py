"""What the serving predictor has seen: every attempt and report is told here, and learned from in its turn.

An attempt's TTFT is learned in order of dispatch, each as soon as it is known or overdue (those that come first are
the quick ones); its TPOT and its length when it ends. All that is kept of a (model, instance) is its `Pair`. What is
learned is handed to `tell` too, where other replicas of the router are to learn it (`predictors.online.sharing`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import exp, log

from predictors.analytic.physical import PrefillRate
from predictors.learned.latency.features import Track
from predictors.learned.models import Models
from predictors.learned.trees import TreeTimes, learn_no_ttft, learn_tpot, learn_ttft
from predictors.online.calibration import GroupCalibration, Trust
from predictors.online.coverage import Coverage
from predictors.online.lessons import (
    Answer,
    Began,
    Corrected,
    Finished,
    Held,
    Judged,
    Lesson,
    Lost,
    Prompt,
    Sent,
    Tpot,
    Tree,
    Ttft,
)
from predictors.online.model_lengths import LearnedLengths, Lengths
from predictors.online.outlook import Outlook
from predictors.online.pair import Open, Pair
from predictors.online.prediction import PhysicalPrediction
from predictors.online.prefix_index import PrefixIndex
from predictors.online.qualities import Qualities
from predictors.online.sessions import SessionIndex
from router.core.state import Instance
from router.core.types import PREFIX_TOKENS, Candidate, Prediction, PromptFeatures, Request

#: Prefill rates are averaged over about this long, in seconds at real speed.
_PREFILL_HORIZON_S = 10.0
#: Two events at one moment are this far apart.
_LEAST_S = 1e-6


class Observations:
    """What was learned of a fleet, and how it is. Pure: no clock, no I/O."""

    def __init__(self, models: Models, prefix_blocks: int) -> None:
        self.models = models
        #: Hears what is learned here (None: nobody does).
        self.tell: Callable[[Lesson], None] | None = None
        self.lengths = Lengths()
        self.prefixes = PrefixIndex(prefix_blocks)
        self.sessions = SessionIndex()
        self.qualities = Qualities(models.relevance)
        self.trees = TreeTimes(models.trees)
        self.pairs: dict[tuple[str, str], Pair] = {}  # by instance and model
        self.tracks: dict[str, Track] = {}
        self.open: dict[tuple[str, str], tuple[Pair, Open]] = {}  # by request and instance: hedges have two
        self._prefills: dict[str, PrefillRate] = {}
        self._coverage: dict[str, Coverage] = {}
        self._groups: dict[tuple[str, str], GroupCalibration] = {}

    def use(self, models: Models) -> None:
        """Take these models from now on. What was learned of the ones before is dropped, feedback too;
        the physical estimate's errors and lengths stay."""
        self.models = models
        self.tracks.clear()
        self._groups.clear()
        self.trees = TreeTimes(models.trees)
        self.qualities.use(models.relevance)
        for (instance, _), pair in list(self.pairs.items()):
            pair.track = None if models.latency is None else self.track(instance)
            pair.group = self._groups.setdefault(pair.group_name, GroupCalibration())
        for lengths in self.lengths.all():
            lengths.learned = LearnedLengths()

    # --- what is known -----------------------------------------------------------------------------
    def track(self, instance: str) -> Track:
        """The history of an instance, for the latency model."""
        track = self.tracks.get(instance)
        if track is None:
            track = self.tracks[instance] = Track(self.models.latency)
        return track

    def pair(self, candidate: Candidate, instance: Instance) -> Pair:
        """What is kept of a candidate: a new pair for a new one, and where the profile or the speed has changed."""
        pair = self.pairs.get((instance.name, candidate.model))
        profile = instance.profiles.get(candidate.model)
        if pair is None or pair.profile is not profile or pair.costs.speed != instance.speed:
            pair = self.pairs[instance.name, candidate.model] = self._new_pair(candidate, instance)
        return pair

    def _new_pair(self, candidate: Candidate, instance: Instance) -> Pair:
        self.qualities.serves(candidate)
        group = candidate.model, instance.hardware or instance.name
        return Pair(
            (instance.name, candidate.model),
            instance.profiles.get(candidate.model),
            instance.fixed_slots,
            instance.speed,
            self.lengths.of(candidate.model, candidate.family),
            self._prefills.setdefault(instance.name, PrefillRate(_PREFILL_HORIZON_S / instance.speed)),
            self._coverage.setdefault(instance.name, Coverage()),
            None if self.models.latency is None else self.track(instance.name),
            group,
            self._groups.setdefault(group, GroupCalibration()),
        )

    def cached_tokens(self, request: Request, instance: str) -> float:
        """Prompt tokens (as estimated) that the instance should hold in its prefix cache: as far as its hashes match,
        and where all of them do (or there are none), what it has seen of the request's session."""
        prefix, hashed_tokens = request.prefix, 0.0
        if prefix:
            matched = self.prefixes.matched_blocks(instance, prefix)
            if matched:
                hashed_tokens = min(request.prompt_tokens, PREFIX_TOKENS) * matched / len(prefix)
            if matched < len(prefix):
                return hashed_tokens
        if request.session is None:
            return hashed_tokens
        held_tokens = self.sessions.held_tokens(instance, request.session)
        return max(hashed_tokens, min(held_tokens, request.prompt_tokens - 1.0))

    def coverage(self) -> dict[str, dict[str, float | None]]:
        """By instance: share of actual values within predicted quantiles and mean absolute log errors."""
        return {
            instance: coverage.as_dict()
            for instance, coverage in self._coverage.items()
            if coverage.ttfts or coverage.outputs
        }

    def groups(self) -> dict[tuple[str, str], Trust]:
        """How the latency model does beside the physical estimate, by (model, hardware)."""
        if self.models.latency is None:
            return {}
        return {group: calibration.trust for group, calibration in self._groups.items()}

    def forget(self, instance: str) -> None:
        """Drop what was learned of an instance that left the fleet (lengths belong to models: they stay)."""
        self.prefixes.forget(instance)
        self.sessions.forget(instance)
        self.qualities.forget(instance)
        self._prefills.pop(instance, None)
        self._coverage.pop(instance, None)
        self.tracks.pop(instance, None)
        for key in [key for key in self.pairs if key[0] == instance]:
            del self.pairs[key]
        for attempt in [attempt for attempt in self.open if attempt[1] == instance]:
            del self.open[attempt]
        used = {pair.group_name for pair in self.pairs.values()}
        self.trees.keep(used)
        for group in [group for group in self._groups if group not in used]:
            del self._groups[group]

    # --- what happened -----------------------------------------------------------------------------
    def observe_dispatch(
        self, request: Request, candidate: Candidate, instance: Instance, prediction: Prediction, now: float
    ) -> None:
        """An attempt is on its way: from here on its lateness is known, too."""
        pair = self.pairs.get((candidate.instance, candidate.model))
        if pair is None or not isinstance(prediction, PhysicalPrediction):
            return
        known = prediction.estimate
        window = pair.ttft.window(known.ttft_stratum)
        entry = Open(prediction, now, (window.median, window.p95))
        self.open[request.id, candidate.instance] = pair, entry
        pair.open.append(entry)
        if pair.track is not None:
            pair.track.dispatched(instance, known, now)
            if self.tell is not None:
                self.tell(
                    Sent(
                        *pair.name,
                        known.ttft_s,
                        known.ttft_bias,
                        known.prompt_tokens,
                        known.cached_tokens,
                        known.step_s,
                    )
                )
        self._settle(pair, now)

    def observe_ttft(
        self,
        request: Request,
        candidate: Candidate,
        instance: Instance,
        prediction: Prediction,
        engine_ttft_s: float,
        now: float,
    ) -> None:
        """The first token came `engine_ttft_s` after the dispatch for which `prediction` was made."""
        opened = self.open.pop((request.id, candidate.instance), None)
        if opened is None:  # another predictor's, or the instance has been forgotten
            return
        self.hold(candidate.instance, request.prefix, request.session, request.prompt_tokens)
        pair, entry = opened
        known = entry.prediction.estimate
        engine_ttft_s = max(engine_ttft_s, _LEAST_S)
        entry.actual = residual = log(engine_ttft_s / known.ttft_s)
        tree_error = learn_ttft(entry.prediction.trees, engine_ttft_s)
        pair.prefills.add(known.prompt_tokens - known.cached_tokens, now)
        if pair.track is not None:
            pair.track.first_token(instance, known, engine_ttft_s, now)
        if entry.taken is not None:
            pair.ttft.correct(known.ttft_stratum, entry.taken, residual)
        if self.tell is not None:
            self._tell_first_token(request, pair, entry, engine_ttft_s, tree_error)
        self._settle(pair, now)

    def observe_end(
        self,
        request: Request,
        candidate: Candidate,
        instance: Instance,
        prediction: Prediction,
        output_tokens: int,
        prompt_tokens: int | None,
        tpot_s: float | None,
        now: float,
    ) -> None:
        """The attempt ended on its own: the engine's token counts and its mean time per output token."""
        opened = self.open.pop((request.id, candidate.instance), None)
        pair = self.pairs.get((candidate.instance, candidate.model))
        lengths = self.lengths.of(candidate.model, candidate.family) if pair is None else pair.lengths
        mine = prediction if isinstance(prediction, PhysicalPrediction) else None
        error = None
        if mine is not None and tpot_s is not None and tpot_s > 0.0:
            error = log(tpot_s / mine.estimate.tpot_s)
        if pair is not None and request.decodes:
            each_tokens = output_tokens / max(request.choices, 1) / lengths.prompt_ratio
            self._holds_answer(request, candidate.instance, each_tokens)
        if opened is not None:  # an answer without a first token
            opened[1].void = True
            self._lost(opened[0], instance, now - opened[1].dispatched_at, False, now)
            self._settle(opened[0], now)
        elif pair is not None and pair.track is not None and mine is not None:
            pair.track.ended(instance, mine.estimate, output_tokens, tpot_s, now)
            if self.tell is not None:
                of = mine.estimate
                self.tell(
                    Finished(
                        *pair.name,
                        output_tokens,
                        tpot_s,
                        of.tpot_s,
                        of.tpot_bias,
                        of.prompt_tokens,
                        of.cached_tokens,
                    )
                )
        name = candidate.instance, candidate.model
        if prompt_tokens is not None:
            lengths.observe_prompt(request.prompt_tokens, prompt_tokens)
            if self.tell is not None:
                self.tell(Prompt(*name, request.prompt_tokens, prompt_tokens))
        if not request.decodes or output_tokens < 1:
            return
        outlook: Outlook | None = request.outlook
        predicted = None if outlook is None else outlook.predicted.get(candidate.model)
        lengths.observe_output(output_tokens, request.max_tokens, request.choices, predicted)
        if self.tell is not None:
            self.tell(Answer(*name, output_tokens, request.max_tokens, max(request.choices, 1), predicted))
        if pair is None:
            return
        if prediction.output_tokens_p90 is not None:
            pair.coverage.saw_output(output_tokens <= prediction.output_tokens_p90)
        if mine is None or tpot_s is None or error is None:
            return
        stratum = mine.estimate.tpot_stratum
        told = mine.quantiles[1] if mine.quantiles is not None and pair.tpot_told(mine.estimate) else None
        pair.learn_tpot(stratum, error, mine.raw_tpot_s, tpot_s, told)
        tree_error = learn_tpot(mine.trees, tpot_s)
        if self.tell is not None:
            self.tell(Tpot(*name, stratum, error, mine.raw_tpot_s, tpot_s, tuple(told or ())))
            if tree_error is not None and mine.trees is not None:
                self.tell(Tree(*name, 1, mine.trees.queued, tree_error))
        if prediction.tpot_s is not None:
            pair.coverage.saw_tpot(log(tpot_s / prediction.tpot_s))

    def observe_loss(
        self,
        request: Request,
        candidate: Candidate,
        instance: Instance,
        prediction: Prediction,
        waited_s: float,
        decoding: bool,
        now: float,
    ) -> None:
        """An attempt gave no whole answer. Without a first token after `waited_s` its TTFT would have been
        longer, which is learned in its turn."""
        opened = self.open.pop((request.id, candidate.instance), None)
        pair = opened[0] if opened is not None else self.pairs.get((candidate.instance, candidate.model))
        if pair is None:
            return
        self._lost(pair, instance, waited_s, decoding, now)
        if opened is not None:
            entry = opened[1]
            entry.lost = True
            tree_error = learn_no_ttft(entry.prediction.trees, waited_s)
            if tree_error is not None:
                self._tell_tree(pair, entry, tree_error)
            entry.overdue_at = min(now, entry.overdue_at)
            self._settle(pair, now)

    def observe_report(self, instance: Instance, now: float) -> None:
        """The engine's own view of its load has come."""
        if self.models.latency is not None:
            self.track(instance.name).reported(instance, now)
        for model in instance.candidates:
            pair = self.pairs.get((instance.name, model))
            if pair is not None:
                self._settle(pair, now)

    def observe_quality(
        self, model: str, features: PromptFeatures, quality: float, *, recorded: bool = False
    ) -> None:
        """Feedback: an answer of `model` to such a prompt was judged `quality`, 0 to 1. `recorded`: it comes from the
        records, where every replica finds it."""
        self.qualities.observe(model, features, quality)
        if self.tell is not None and not recorded:
            self.tell(Judged(model, *features, quality))

    def hold(self, instance: str, prefix: Sequence[int], session: str | None, tokens: float) -> None:
        """The instance holds a prompt with these leading blocks, and so many tokens of a session (as prompts are
        estimated)."""
        if prefix:
            self.prefixes.add(instance, prefix)
        if session is not None:
            self.sessions.add(instance, session, tokens)

    def _holds_answer(self, request: Request, instance: str, answer_tokens: float) -> None:
        tokens = request.prompt_tokens + answer_tokens
        self.hold(instance, request.prefix, request.session, tokens)
        if self.tell is not None and request.session is not None:
            self.tell(Held(instance, (), request.session, tokens))  # the prefix has been told

    def _lost(self, pair: Pair, instance: Instance, waited_s: float, decoding: bool, now: float) -> None:
        if pair.track is not None:
            pair.track.lost(instance, waited_s, decoding, now)
            if self.tell is not None:
                self.tell(Lost(*pair.name, waited_s, decoding))

    def _tell_first_token(
        self, request: Request, pair: Pair, entry: Open, engine_ttft_s: float, tree_error: float | None
    ) -> None:
        tell, known = self.tell, entry.prediction.estimate
        if tell is None:
            return
        if request.prefix or request.session is not None:
            tell(Held(pair.name[0], tuple(request.prefix), request.session, request.prompt_tokens))
        tell(
            Began(
                *pair.name,
                engine_ttft_s,
                known.ttft_s,
                known.ttft_bias,
                known.prompt_tokens,
                known.cached_tokens,
            )
        )
        if entry.taken is not None and entry.actual is not None:
            tell(Corrected(*pair.name, known.ttft_stratum, entry.taken, entry.actual))
        if tree_error is not None:
            self._tell_tree(pair, entry, tree_error)

    def _tell_tree(self, pair: Pair, entry: Open, error: float) -> None:
        trees = entry.prediction.trees
        if self.tell is not None and trees is not None:
            self.tell(Tree(*pair.name, 0, trees.queued, error))

    def _settle(self, pair: Pair, now: float) -> None:
        """Learn from attempts in order of dispatch: those with a first token, and those that are overdue, which
        are taken as if it came now and corrected when it comes."""
        waiting = pair.open
        while waiting:
            entry = waiting[0]
            if entry.void:
                waiting.popleft()
            elif entry.actual is not None:
                waiting.popleft()
                self._learn(pair, entry, entry.actual, within=True)
            elif now >= entry.overdue_at:
                waiting.popleft()
                known = entry.prediction.estimate
                until = entry.overdue_at if entry.lost else now
                waited_s = max(until - entry.dispatched_at, _LEAST_S)
                if entry.lost and waited_s < known.ttft_s * exp(entry.physical[0]):
                    continue  # given up before anything could be expected: it tells nothing
                # The least that it can still become: to guess at more would feed on itself.
                entry.taken = log(waited_s / known.ttft_s)
                self._learn(pair, entry, entry.taken, within=False)
            else:
                return

    def _learn(self, pair: Pair, entry: Open, residual: float, *, within: bool) -> None:
        known, quantiles = entry.prediction.estimate, entry.prediction.quantiles
        told = quantiles[0] if quantiles is not None and pair.ttft_told(known) else None
        served = pair.learn_ttft(known.ttft_stratum, residual, entry.physical, told)
        if self.tell is not None:
            self.tell(Ttft(*pair.name, known.ttft_stratum, residual, *entry.physical, tuple(told or ())))
        pair.coverage.saw_ttft(residual <= served[0], residual <= served[1], residual - served[0])
