"""A small world for scheduler tests: instances, a policy that takes the first option, a fixed predictor, a driver."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from random import Random
from typing import Any

from router.core.errors import Refusal
from router.core.events import Cancel, Dispatch, Ended, Event, Failure, FailureKind, Finish, Instruction
from router.core.interfaces import CheckedAnswer, Choice, Option, Policy, SentAttempt
from router.core.scheduler import Scheduler
from router.core.settings import SchedulerSettings
from router.core.settlement import Settlement
from router.core.state import Instance
from router.core.types import Candidate, EndedHow, Prediction, Price, Request


class First(Policy):
    """Takes the first option."""

    name = "first"
    predicts = False

    def __init__(self) -> None:
        self.taken_by: list[str] = []

    def choose(self, request: Request, options: Sequence[Option], rng: Random) -> Choice:
        reasons = [None if i == 0 else "not first" for i in range(len(options))]
        return Choice(0, [float(i) for i in range(len(options))], reasons)

    def placed(self, request: Request, options: Sequence[Option], choice: Choice) -> None:
        self.taken_by.append(options[choice.index].candidate.instance)


class Curious(Policy):
    """Has each answer checked, and asks somebody else if it is found poor."""

    name, predicts = "curious", True

    def choose(self, request: Request, options: Sequence[Option], rng: Random) -> Choice:
        index = rng.randrange(len(options))
        return Choice(index, [None] * len(options), [None] * len(options), check=request.check is not None)

    def reconsider(
        self, request: Request, answer: CheckedAnswer, options: Sequence[Option], rng: Random
    ) -> Choice | None:
        return self.choose(request, options, rng) if options and answer.score == 0.0 else None


class Fixed:
    """Predicts the same for everyone; `p_miss` by instance."""

    def __init__(self, p_miss: dict[str, float] | None = None, floor_s: float = 0.05) -> None:
        self.name = "fixed"
        self.p_miss = p_miss or {}
        self.floor_s = floor_s
        self.ttfts: list[float] = []
        self.ends: list[tuple[int, float | None]] = []
        self.bounds: list[int | None] = []  # of the lengths of complete answers
        self.losses: list[tuple[float, bool, int, float | None]] = []
        self.observed: list[
            tuple[str, str, int, float]
        ] = []  # what, of whom, a counter of the instance, when

    def predict(self, request: Request, candidate: Candidate, instance: Instance, now: float) -> Prediction:
        return Prediction(output_tokens_p50=100.0, ttft_s_p50=0.1, p_miss=self.p_miss.get(instance.name))

    def predict_all(self, request: Request, options: Sequence[Option], now: float) -> None:
        for option in options:
            option.prediction = self.predict(request, option.candidate, option.instance, now)

    def qualities(self, request: Request, candidates: Sequence[Candidate]) -> Sequence[float | None]:
        return [each.quality for each in candidates]

    def observe_dispatch(self, attempt: SentAttempt, now: float) -> None:
        self.observed.append(("dispatch", attempt.request.id, attempt.instance.in_flight, now))

    def observe_loss(
        self,
        attempt: SentAttempt,
        waited_s: float,
        decoding: bool,
        output_tokens: int,
        tpot_s: float | None,
        now: float,
    ) -> None:
        self.observed.append(("loss", attempt.request.id, attempt.instance.in_flight, now))
        self.losses.append((waited_s, decoding, output_tokens, tpot_s))

    def observe_report(self, instance: Instance, now: float) -> None:
        self.observed.append(("report", instance.name, instance.running, now))

    def observe_ttft(self, attempt: SentAttempt, engine_ttft_s: float, now: float) -> None:
        self.observed.append(("ttft", attempt.request.id, attempt.instance.awaiting_first_token, now))
        self.ttfts.append(engine_ttft_s)

    def observe_end(
        self,
        attempt: SentAttempt,
        output_tokens: int,
        max_tokens: int | None,
        prompt_tokens: Any,
        tpot_s: Any,
        now: float,
    ) -> None:
        self.observed.append(("end", attempt.request.id, attempt.instance.in_flight, now))
        self.ends.append((output_tokens, tpot_s))
        self.bounds.append(max_tokens)

    def forget(self, instances: Collection[str]) -> None:
        """Instances have left the fleet."""

    def observe_quality(self, model: str, features: Any, quality: float, *, recorded: bool = False) -> None:
        self.observed.append(("quality", model, int(recorded), quality))

    def receive(self, message: bytes, instances: Any, now: float) -> None:
        self.observed.append(("message", message.decode(), len(instances), now))

    def use(self, models: Any) -> None:
        self.name = models.name

    def ttft_floor_s(self, request: Any, candidate: Any, instance: Any) -> float:
        return self.floor_s


def instance(name: str, *models: str, slots: int | None = None, **candidate: Any) -> Instance:
    return Instance(
        name,
        "vllm",
        {m: Candidate(name, m, f"up/{m}", **candidate) for m in (models or ("m",))},
        max_concurrency=slots,
    )


def request(id: str = "r1", *, at: float = 0.0, **fields: Any) -> Request:
    values: dict[str, Any] = {
        "policy": "first",
        "models": ("m",),
        "prompt_tokens": 100,
        "prompt_tokens_bound": 400,
        "expires_at": at + 600,
    }
    return Request(id=id, arrived_at=at, **(values | fields))


class DrivenScheduler(Scheduler):
    """A scheduler whose driver keeps its promise: it answers each `Cancel` at once. What comes of that follows in the
    same list of instructions. `late`: a test answers itself."""

    late = False

    def handle(self, event: Event, now: float) -> list[Instruction]:
        out: list[Instruction] = []
        for instruction in super().handle(event, now):
            out.append(instruction)
            if isinstance(instruction, Cancel) and not self.late:
                ended = Ended(instruction.request_id, instruction.attempt, EndedHow.CANCELLED)
                out += self.handle(ended, now)
        return out


def scheduler(
    *instances: Instance, predictor: Fixed | None = None, policy: Policy | None = None, **settings: Any
) -> DrivenScheduler:
    return DrivenScheduler(
        instances,
        {"first": policy or First()},
        predictor or Fixed(),
        SchedulerSettings(**settings),
        Random(0),
    )


def failed(id: str = "r1", attempt: int = 1, kind: FailureKind = FailureKind.ERROR, **fields: Any) -> Ended:
    """An attempt has failed; `status` is the engine's."""
    failure = Failure(kind, fields.pop("message", "it broke"), fields.pop("status", None))
    return Ended(id, attempt, EndedHow.FAILED, failure=failure, **fields)


# --- what came out ------------------------------------------------------------------------------------
def dispatched(instructions: list[Instruction]) -> Dispatch:
    """The one `Dispatch` among them."""
    (found,) = [each for each in instructions if isinstance(each, Dispatch)]
    return found


def finished(instructions: list[Instruction]) -> Settlement:
    """The settlement of the one `Finish` among them."""
    (found,) = [each for each in instructions if isinstance(each, Finish)]
    return found.settlement


def refused(instructions: list[Instruction]) -> Refusal:
    """The refusal of the one `Finish` among them, which starts nothing else."""
    refusal = finished(instructions).refusal
    assert refusal is not None, instructions
    assert not any(isinstance(each, Dispatch) for each in instructions)
    return refusal


CHEAP = Price(1.0, 2.0)
