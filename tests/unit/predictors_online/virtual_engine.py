"""One engine of the pure model under open-loop load in virtual time, with the counters of a router."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from backends.engine import Engine, Progress, Sequence
from predictors.online.predictor import OnlinePredictor
from router.core.interfaces import SentAttempt
from router.core.profile import EngineProfile
from router.core.state import Instance
from router.core.types import Candidate, LoadReport, Prediction, Price, PromptFeatures, Request, Slo
from tests.engine_profiles import profile

TRUTH = profile(
    "test",
    overhead_s=3e-3,
    floor_s=9e-3,
    per_token_s=9e-5,
    per_kv_token_s=8e-8,
    per_pair_s=4e-9,
    kv_capacity_tokens=120_000,
    max_seqs=128,
)


@dataclass(slots=True)
class Seen:
    """One request: what was predicted, what came. Times in seconds."""

    prediction: Prediction
    prompt_tokens: int
    arrived_at: float
    first_at: float | None = None
    tokens: int = 0
    ended_at: float | None = None

    @property
    def ttft_s(self) -> float:
        return self.first_at - self.arrived_at

    @property
    def tpot_s(self) -> float | None:
        assert self.ended_at is not None
        assert self.first_at is not None
        return (self.ended_at - self.first_at) / (self.tokens - 1) if self.tokens > 1 else None

    @property
    def e2e_s(self) -> float:
        return self.ended_at - self.arrived_at

    def missed(self, slo: Slo) -> bool:
        return not slo.met(self.ttft_s, self.tpot_s, self.e2e_s)


class Run:
    """Requests of one model at one instance, with a load report of the engine every two seconds."""

    def __init__(self, predictor: OnlinePredictor, profile: EngineProfile | None, seed: int = 7) -> None:
        self.rng = Random(seed)
        self.predictor = predictor
        self.engine = Engine(TRUTH, every_token=False)
        self.candidate = Candidate("i", "m", "m", Price(0.1, 0.3), 32_768, family="f")
        profiles = {} if profile is None else {"m": profile}
        self.instance = Instance("i", "vllm", {"m": self.candidate}, profiles=profiles)
        self.now = 0.0
        self.seen: list[Seen] = []
        self.features: PromptFeatures | None = None  # of every request
        self._open: dict[str, tuple[SentAttempt, Seen]] = {}
        self._reported_at = 0.0

    def arrive(self, rate_per_s: float, count: int, slo: Slo | None) -> list[Seen]:
        """Send `count` requests at Poisson times; returns them once all have ended."""
        first = len(self.seen)
        for _ in range(count):
            at = self.now + self.rng.expovariate(rate_per_s)
            self._until(at)
            self._send(slo)
        while self._open:
            until = self.engine.next_at()
            assert until is not None
            self._until(until)
        return self.seen[first:]

    def _send(self, slo: Slo | None) -> None:
        number = len(self.seen)
        prompt_tokens = max(4, min(8000, round(self.rng.lognormvariate(6.0, 1.0))))
        output_tokens = max(1, min(1000, round(self.rng.lognormvariate(5.0, 0.8))))
        request = Request(
            str(number),
            self.now,
            "x",
            ("m",),
            prompt_tokens=prompt_tokens,
            max_tokens=1000,
            slo=slo,
            features=self.features,
        )
        prediction = self.predictor.predict(request, self.candidate, self.instance, self.now)
        seen = Seen(prediction, prompt_tokens, self.now)
        self.seen.append(seen)
        attempt = SentAttempt(request, self.candidate, self.instance, prediction)
        self._open[request.id] = (attempt, seen)
        self.instance.dispatched(prompt_tokens)
        self.predictor.observe_dispatch(attempt, self.now)
        self.engine.submit(Sequence(request.id, prompt_tokens, output_tokens), self.now)

    def _until(self, at: float) -> None:
        while (step := self.engine.next_at()) is not None and step <= at:
            for progress in self.engine.advance(step):
                self._progress(progress)
        self.now = at
        if at - self._reported_at >= 2.0:
            self._reported_at = at
            instance, engine = self.instance, self.engine
            report = LoadReport(running=engine.running, waiting=engine.waiting, kv_usage=engine.kv_usage)
            instance.takes_report(report, at)
            self.predictor.observe_report(instance, at)

    def _progress(self, progress: Progress) -> None:
        attempt, seen = self._open[progress.seq_id]
        request, instance, predictor = attempt.request, self.instance, self.predictor
        expected_output = round(seen.prediction.output_tokens_mean or 0)
        if seen.first_at is None:
            seen.first_at = progress.at_s
            instance.first_token(request.prompt_tokens, expected_output)
            predictor.observe_ttft(attempt, seen.ttft_s, progress.at_s)
        seen.tokens += progress.new_tokens
        if progress.finished is not None:
            seen.ended_at = progress.at_s
            instance.released(request.prompt_tokens, expected_output, decoding=True)
            del self._open[request.id]
            predictor.observe_end(
                attempt, seen.tokens, request.max_tokens, request.prompt_tokens, seen.tpot_s, progress.at_s
            )
