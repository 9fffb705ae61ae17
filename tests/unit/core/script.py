"""A random driver: it does all that a gateway may do to a scheduler, in any order, and keeps its promises."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple

import policies
from router.core.events import (
    Allow,
    Arrived,
    Cancel,
    Check,
    Checked,
    Dispatch,
    DrainChanged,
    Ended,
    Event,
    Failure,
    FailureKind,
    Finish,
    FirstToken,
    FleetChanged,
    GivenUp,
    Granted,
    Instruction,
    Left,
    LoadReported,
    Metered,
    PeerLoadReported,
    PeerObserved,
    PeerTurned,
    PredictorsChanged,
    Probed,
    QualityReported,
    Reserve,
    TargetsChanged,
    Tick,
)
from router.core.money.meter import TokenMeter, Verdict
from router.core.money.reservation import Funding
from router.core.scheduler import Scheduler
from router.core.settings import SchedulerSettings
from router.core.state import Instance
from router.core.types import (
    AnswerCheck,
    Candidate,
    EndedHow,
    LoadReport,
    Prediction,
    Price,
    PromptFeatures,
    Request,
    Slo,
    Targets,
)
from router.decision_log import compared
from tests.unit.core.ledger import Attempt, Ledger
from tests.unit.core.worlds import Curious, Fixed, instance

PRICES = {"a": Price(1.0, 2.0), "b": Price(4.0, 12.0), "c": Price(0.2, 0.4), "d": Price(2.0, 0.0)}
TOKEN_USD = 12e-6  # the most expensive one
PROMPT_TOKENS = 100


class Wild(Fixed):
    """Predicts anything, the same for the same request and candidate."""

    def predict(self, request: Request, candidate: Candidate, instance: Instance, now: float) -> Prediction:
        rng = Random(f"{request.id} {candidate.instance} {candidate.model}")
        tokens = rng.choice([1.0, 40.0, 3000.0])
        waited_s = now - request.arrived_at
        first_s = waited_s + rng.choice([0.05, 0.3, 2.0])
        p_miss = None if request.slo is None else rng.choice([0.0, 0.05, 0.2, 0.95, 1.0])
        if rng.random() < 0.1:
            return Prediction(p_miss=p_miss)
        return Prediction(
            output_tokens_p50=tokens,
            output_tokens_p90=2 * tokens,
            output_tokens_mean=1.2 * tokens,
            ttft_s_p50=first_s,
            ttft_s_p95=2 * first_s - waited_s,
            tpot_s=0.02,
            e2e_s_mean=first_s + 0.02 * tokens,
            e2e_s_p50=first_s + 0.02 * tokens,
            e2e_s_p95=rng.choice([first_s + 0.04 * tokens, float("inf")]),
            quality=candidate.quality,
            cost_usd=candidate.price.cost_usd(request.prompt_tokens, tokens),
            p_miss=p_miss,
            engine_ttft_s=first_s - waited_s,
        )

    def qualities(self, request: Request, candidates: Sequence[Candidate]) -> Sequence[float | None]:
        return [each.quality for each in candidates]


def fleet() -> list[Instance]:
    found = [
        instance("a", "m", slots=2, price=PRICES["a"], quality=0.5, context_tokens=4000),
        instance("b", "m", "n", slots=1, price=PRICES["b"], quality=0.9),
        instance("c", "m", "n", slots=3, price=PRICES["c"], quality=None, context_tokens=500),
        instance("d", "n", price=PRICES["d"], quality=0.6),
    ]
    found[1].fixed_slots = True
    return found


#: Everything that a request may bring, each with what it mostly has first.
SLOS = (
    *(Slo(ttft_s=3.0), Slo(ttft_s=3.0), None, Slo(e2e_s=8.0)),
    *(Slo(ttft_s=1.0, tpot_s=0.05, e2e_s=30.0), Slo(tpot_s=0.01)),
)
#: What comes from operators, clients and other replicas.
NEWS: tuple[Event, ...] = (
    PeerLoadReported({}, frozenset("b")),
    PeerObserved(b"an observation"),
    PeerTurned("round_robin", {"m": ("b", "m")}),
    TargetsChanged({None: Targets(attainment=0.8)}),
    QualityReported("m", PromptFeatures((), (), ()), 0.5),
    PredictorsChanged(SimpleNamespace(name="others")),
)
MODELS = ((("m",), ()), (("m", "n"), ()), (("n",), ("m",)))
CHECKED: dict[str, Any] = {"client_streams": False, "check": AnswerCheck(3.0, Price(), 0, 0, 0.5)}
WHOLE = {"engine_streams": False, "client_streams": False}
MORE: tuple[dict[str, Any], ...] = (
    *(
        {},
        {},
        {},
        {},
        {},
        {"max_tokens": 200},
        {"max_tokens": 3900},
        {"choices": 3},
        {"decodes": False, **WHOLE},
    ),
    *({"hedges": False}, {"seed": 7}, {"prefix": (1, 2)}, {"session": "s"}, {"max_tokens": 1}),
    *({"client_streams": False}, {"client_streams": False, "max_tokens": 60}),
    *(CHECKED, CHECKED, CHECKED, CHECKED | {"max_tokens": 60}),
)


class Logged(NamedTuple):
    """One event and what came of it; `text` is that as it was at the time."""

    event: Event
    now: float
    instructions: list[Instruction]
    text: str


class Answer:
    """What an engine gives in one attempt, as far as its money reaches. `waiting`: an event waits for money."""

    def __init__(self, request: Request, sent: Dispatch) -> None:
        self.meter: TokenMeter | None = None
        if request.engine_streams and (sent.bound.paid_tokens is not None or sent.allowance is not None):
            self.meter = TokenMeter(request, sent.candidate, sent.bound, sent.allowance)
        self.most_tokens = sent.bound.max_tokens
        self.tokens = 0
        self.waiting = False

    def one_more(self, *, again: bool = False) -> Verdict:
        """One more token; `again`: the one that waited."""
        meter = self.meter
        if not again:
            self.tokens += 1
        if meter is None:
            return Verdict.PASS
        if not again:
            meter.count(self.tokens, None)
        verdict = meter.judge(complete=False, finished=False)
        self.waiting = verdict is Verdict.WAIT
        return verdict


class Script:
    """Drives a scheduler at random, but as a runner would: its timer rings in time, attempts end once, no token passes that
    is not paid for. `log` keeps the events and the instructions.

    `late`: a `Cancel` is not always answered at once, and the attempt may end otherwise before it is."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.all = fleet()
        self.policies = (*rng.sample(sorted(policies.POLICIES), 4), "curious")
        self.settings = SchedulerSettings(
            confidence=0.8,
            max_queue=rng.choice([0, 2, 12]),
            eject_after=2,
            return_after=1,
            hedge_share=rng.choice([0.0, 0.03, 1.0, 1.0]),
            hedge_worth=100.0,
            explore=rng.choice([0.0, 0.3]),
        )
        self.s = self.build(self.all)
        self.ledger = Ledger(self.s)
        self.late = rng.random() < 0.3
        self.timeout_s = rng.choice([5.0, 600.0])
        self.now = 0.0
        self.answers: dict[tuple[str, int], Answer] = {}
        self.asked: list[Reserve] = []
        self.checks: list[Check] = []
        self.log: list[Logged] = []

    def build(self, instances: Sequence[Instance]) -> Scheduler:
        """A scheduler as this one was at the start."""
        every = policies.create_all(policies.PolicySettings(cached_tokens=lambda request, name: 50.0))
        every["curious"] = Curious()
        return Scheduler(instances, every, Wild(), self.settings, Random(0))

    def again(self) -> tuple[Scheduler, list[tuple[Event, float, str]]]:
        """A scheduler as this one was at the start, and all that was said to this one: event, time, instructions as text."""
        instances = {each.name: each for each in fleet()}
        told = []
        for event, now, _, text in self.log:
            here: Event = event
            # Instances hold what is under way, so each scheduler has its own.
            if isinstance(event, FleetChanged):
                here = event._replace(instances=tuple(instances[each.name] for each in event.instances))
            told.append((here, now, text))
        return self.build(list(instances.values())), told

    def run(self, steps: int) -> None:
        actions = (
            self.arrive,
            self.wait,
            self.grow,
            self.end,
            self.watch,
            self.grant,
            self.rate,
            self.leave,
            self.reload,
        )
        for _ in range(steps):
            (action,) = self.rng.choices(actions, (18, 30, 20, 10, 6, 12, 4, 3, 2))
            action()
        self.finish()

    # --- events and instructions ---------------------------------------------------------------------
    def tell(self, event: Event) -> None:
        instructions = self.s.handle(event, self.now)
        self.log.append(Logged(event, self.now, instructions, compared(instructions)))
        self.ledger.take(event, self.now, instructions)
        for instruction in instructions:
            self.carry_out(instruction)

    def carry_out(self, instruction: Instruction) -> None:
        name = instruction.request_id
        match instruction:
            case Dispatch():
                self.answers[name, instruction.attempt] = Answer(
                    self.ledger.entries[name].request, instruction
                )
            case Cancel() if not self.late or self.rng.random() < 0.5:
                self.acknowledge(name, instruction.attempt)
            case Reserve():
                self.asked.append(instruction)
            case Allow():
                answer = self.answers.get((name, instruction.attempt))
                if answer is not None and answer.meter is not None:
                    answer.meter.allow(instruction.allowance)
                    if answer.waiting:
                        self.judge(name, instruction.attempt, answer, answer.one_more(again=True))
            case Check():
                self.checks.append(instruction)
            case Finish():
                settlement = instruction.settlement
                if settlement.reserved_usd:
                    slack_usd = len(settlement.attempts) * TOKEN_USD
                    assert settlement.cost_usd <= settlement.reserved_usd + slack_usd
                if settlement.overrun_usd is not None:
                    assert settlement.overrun_usd <= len(settlement.attempts) * TOKEN_USD

    def ended(self, name: str, number: int, how: EndedHow, **more: Any) -> None:
        tokens = self.answers.pop((name, number)).tokens
        self.tell(Ended(name, number, how, tokens, PROMPT_TOKENS, **more))

    def acknowledge(self, name: str, number: int) -> None:
        """Answer a `Cancel`; where that is late, the attempt may have ended otherwise."""
        how = self.rng.choice([EndedHow.OK, *[EndedHow.CANCELLED] * 3]) if self.late else EndedHow.CANCELLED
        sent = self.answers[name, number].tokens > 0 or self.rng.random() < 0.7
        self.ended(name, number, how, sent=sent)

    # --- requests ------------------------------------------------------------------------------------
    def arrive(self) -> None:
        choice, models, more = self.rng.choice, self.rng.choice(MODELS), self.rng.choice(MORE)
        request = Request(
            id=f"r{self.ledger.arrived}",
            arrived_at=self.now,
            policy="curious" if "check" in more else choice(self.policies),
            models=models[0],
            fallbacks=models[1],
            prompt_tokens=PROMPT_TOKENS,
            prompt_tokens_bound=choice([PROMPT_TOKENS, 400]),
            slo=choice(SLOS),
            hard=choice([False, False, True]),
            max_cost_usd=choice([None, None, None, 1e-3, 2e-3, 1.0]),
            min_quality=choice([*[None] * 8, 0.55, 0.95]),
            priority=choice([0, 0, 1, 2]),
            key=choice([None, "x", "y"]),
            expires_at=self.now + self.timeout_s,
            **more,
        )
        funding = None
        if self.rng.random() < 0.5:
            quote = self.s.quote(request)
            left_usd = choice([None, quote.least_usd, 2 * quote.least_usd, 1.0])
            reserved_usd = min(choice([quote.least_usd, quote.first_usd]), left_usd or 1.0)
            step_usd = choice([0.1, 1.0]) * quote.step_usd
            funding = Funding(reserved_usd, left_usd, step_usd, min(quote.most_usd, 1.0))
        self.tell(Arrived(request, funding))

    def attempts(self, *, cancelled: bool = False) -> list[Attempt]:
        return [each for each in self.ledger.attempts() if each.cancelled is cancelled]

    def grow(self) -> None:
        """An engine gives some tokens."""
        entries = self.ledger.entries
        found = [each.sent for each in self.attempts() if entries[each.sent.request_id].request.decodes]
        if not found:
            return
        sent = self.rng.choice(found)
        name, number = sent.request_id, sent.attempt
        for _ in range(self.rng.choice([1, 5, 60, 300])):
            answer = self.answers.get((name, number))
            if answer is None or answer.waiting or answer.tokens == answer.most_tokens:
                return
            self.judge(name, number, answer, answer.one_more())

    def answer(self, sent: Dispatch) -> Answer:
        return self.answers[sent.request_id, sent.attempt]

    def judge(self, name: str, number: int, answer: Answer, verdict: Verdict) -> None:
        """Pass a token on, or not; as the gateway does, report it first and its cost then."""
        entry, meter = self.ledger.entries[name], answer.meter
        if verdict in (Verdict.PASS, Verdict.PASS_LAST) and entry.decoding is None:
            self.tell(FirstToken(name, number))
        if (name, number) not in self.answers:
            return
        if verdict in (Verdict.STOP, Verdict.PASS_LAST):
            self.ended(name, number, EndedHow.OK, truncated=True, out_of_money=meter.by_money)
        elif meter is not None and meter.report_usd is not None:
            cost_usd, meter.report_usd = meter.report_usd, None
            self.tell(Metered(name, number, cost_usd))

    def end(self) -> None:
        if self.rng.random() < 0.5 and (found := self.attempts(cancelled=True)):
            sent = self.rng.choice(found).sent
            self.acknowledge(sent.request_id, sent.attempt)
            return
        if not (found := [each for each in self.attempts() if not self.answer(each.sent).waiting]):
            return
        sent = self.rng.choice(found).sent
        name, number = sent.request_id, sent.attempt
        entry = self.ledger.entries[name]
        kind = self.rng.choice([*[None] * 6, FailureKind.ERROR, FailureKind.ERROR, *FailureKind])
        if kind is None:
            if entry.decoding == number or not entry.request.decodes:
                self.ended(name, number, EndedHow.OK)
            return
        if kind in (FailureKind.ERROR, FailureKind.TOO_LARGE) or entry.decoding != number:
            self.ended(name, number, EndedHow.FAILED, failure=Failure(kind, "no", 400))

    def grant(self) -> None:
        """The budgets answer a request for money, which may have ended meanwhile."""
        if self.asked:
            wanted = self.asked.pop(self.rng.randrange(len(self.asked)))
            granted_usd = self.rng.choice([0.0, 0.0, 0.3, 1.0, 1.0]) * wanted.usd
            left_usd = max(granted_usd, self.rng.choice([0.0, 2.0]) * wanted.usd)
            known = granted_usd or self.rng.random() < 0.5
            self.tell(Granted(wanted.request_id, granted_usd, left_usd if known else None))

    def rate(self) -> None:
        """An answer is checked, whose request may have ended meanwhile."""
        if self.checks:
            check = self.checks.pop(self.rng.randrange(len(self.checks)))
            score = self.rng.choice([None, 0.0, 0.0, 1.0])
            self.tell(Checked(check.request_id, check.attempt, score))

    def leave(self) -> None:
        if self.ledger.entries:
            name = self.rng.choice(sorted(self.ledger.entries))
            self.tell(self.rng.choice([Left(name), Left(name), GivenUp(name, "internal_error")]))

    # --- the fleet -----------------------------------------------------------------------------------
    def watch(self) -> None:
        name = self.rng.choice("abcd")
        if self.rng.random() < 0.6:
            self.tell(Probed(name, self.rng.random() < 0.9))
        else:
            running, waiting = self.rng.randrange(5), self.rng.choice([None, 0, 2, 6])
            self.tell(LoadReported(name, LoadReport(running=running, waiting=waiting, kv_usage=0.5)))

    def reload(self) -> None:
        if self.rng.random() < 0.3:
            self.tell(self.rng.choice(NEWS))
        elif self.rng.random() < 0.5:
            name = self.rng.choice("ad")
            self.tell(DrainChanged(name, not next(each for each in self.all if each.name == name).draining))
        else:
            names = self.rng.choice(["abcd", "abcd", "abc", "bd"])
            self.tell(FleetChanged(tuple(each for each in self.all if each.name in names), self.settings))
            self.timeout_s = self.rng.choice([5.0, 600.0])

    def wait(self) -> None:
        until = self.now + self.rng.choice([0.01, 0.05, 0.2, 0.5, 2.5])
        for _ in range(1000):
            at = self.s.wake_at
            if at is None or at > until:
                self.now = until
                return
            self.now = max(self.now, at)
            self.tell(Tick())
            again = self.s.wake_at
            assert again is None or again > self.now, "the timer rings again at once"
        raise AssertionError("the timer rings without end")

    def finish(self) -> None:
        """Bring all to its end."""
        while self.ledger.entries:
            if found := self.attempts(cancelled=True):
                self.acknowledge(found[0].sent.request_id, found[0].sent.attempt)
            elif self.asked and self.rng.random() < 0.5:
                self.grant()
            elif self.checks and self.rng.random() < 0.5:
                self.rate()
            elif (
                (found := self.attempts()) and self.ledger.waiting and not self.answer(found[0].sent).waiting
            ):
                self.ended(found[0].sent.request_id, found[0].sent.attempt, EndedHow.OK)
            else:
                self.tell(Left(min(self.ledger.entries)))
        while self.asked:
            self.grant()
        self.ledger.is_closed()
