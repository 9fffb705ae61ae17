"""Every registered policy in one scheduler, whatever happens in whatever order: `ledger` says what must hold."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import policies
from router.core.errors import invalid_request
from router.core.events import Arrived, Dispatch, Ended, Event, FirstToken, Left, LoadReported, Probed, Tick
from router.core.scheduler import Scheduler, SchedulerSettings
from router.core.state import Instance
from router.core.types import Candidate, EndedHow, LoadReport, Prediction, Price, Request, Slo
from tests.unit.core.ledger import Ledger
from tests.unit.core.worlds import Fixed, instance

PRICES = {"a": Price(1.0, 2.0), "b": Price(4.0, 12.0), "c": Price(0.0, 0.0), "d": Price(2.0, 0.0)}


class Wild(Fixed):
    """Predicts anything, the same for the same request and candidate."""

    def predict(self, request: Request, candidate: Candidate, instance: Instance, now: float) -> Prediction:
        rng = Random(f"{request.id} {candidate.instance} {candidate.model}")
        tokens = rng.choice([1.0, 40.0, 3000.0])
        waited_s = now - request.arrived_at
        first_s = waited_s + rng.choice([0.1, 2.0])
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
MODELS = ((("m",), ()), (("m", "n"), ()), (("n",), ("m",)))
MORE: tuple[dict[str, Any], ...] = (
    *({}, {}, {}, {"max_tokens": 200}, {"max_tokens": 3900}, {"choices": 3}, {"decodes": False}),
    *({"hedges": False}, {"seed": 7}, {"prefix": (1, 2)}, {"session": "s"}, {"max_tokens": 1}),
)


class Script:
    """Drives a scheduler at random, but as a runner would: its timer rings in time, attempts end once."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.all = fleet()
        self.policies = tuple(rng.sample(sorted(policies.POLICIES), 4))
        self.s = Scheduler(
            self.all,
            policies.create_all(policies.PolicySettings(cached_tokens=lambda request, name: 50.0)),
            Wild(),
            SchedulerSettings(
                confidence=0.8,
                max_queue=rng.choice([0, 2, 12]),
                eject_after=2,
                return_after=1,
                hedge_share=rng.choice([0.0, 0.03, 1.0, 1.0]),
                explore=rng.choice([0.0, 0.3]),
            ),
            Random(0),
        )
        self.ledger = Ledger(self.s)
        self.timeout_s = rng.choice([5.0, 600.0])
        self.now = 0.0

    def run(self, steps: int) -> None:
        actions = (self.arrive, self.wait, self.begin, self.end, self.watch, self.leave, self.reload)
        for _ in range(steps):
            (action,) = self.rng.choices(actions, (32, 26, 10, 20, 12, 4, 2))
            action()
        self.finish()

    def tell(self, event: Event) -> None:
        self.ledger.hear(event, self.now, self.s.handle(event, self.now))

    def attempts(self) -> list[Dispatch]:
        return [each for found in self.ledger.under_way.values() for each in found.values()]

    def arrive(self) -> None:
        choice, models = self.rng.choice, self.rng.choice(MODELS)
        request = Request(
            id=f"r{self.ledger.arrived}",
            arrived_at=self.now,
            policy=choice(self.policies),
            models=models[0],
            fallbacks=models[1],
            prompt_tokens=100,
            prompt_tokens_bound=400,
            slo=choice(SLOS),
            hard=choice([False, False, True]),
            max_cost_usd=choice([None, None, None, 2e-3, 8e-3, 1.0]),
            min_quality=choice([None, None, None, None, 0.55, 0.95]),
            priority=choice([0, 0, 1, 2]),
            key=choice([None, "x", "y"]),
            expires_at=self.now + self.timeout_s,
            **choice(MORE),
        )
        self.tell(Arrived(request))

    def begin(self) -> None:
        if found := [each for each in self.attempts() if each.request_id not in self.ledger.decoding]:
            sent = self.rng.choice(found)
            self.tell(FirstToken(sent.request_id, sent.attempt))

    def end(self) -> None:
        if not (found := self.attempts()):
            return
        sent = self.rng.choice(found)
        name = sent.request_id
        decodes = self.ledger.decoding.get(name) == sent.attempt
        tokens = int(self.rng.choice([0.0, 0.5, 1.0]) * (sent.paid_tokens or 50)) if decodes else 0
        how = self.rng.choice(["ok", "ok", "ok", "failed", "failed", "rejected", "broken"])
        if how == "ok":
            if decodes or not self.ledger.requests[name].decodes:
                self.tell(Ended(name, sent.attempt, EndedHow.OK, tokens, 100))
            return
        refused = how == "rejected" and not decodes
        self.tell(
            Ended(
                name,
                sent.attempt,
                EndedHow.FAILED,
                tokens,
                restartable=how
                == "failed",  # even if it decodes: an answer that is not streamed was not seen
                refusal=invalid_request("no") if refused else None,
                fault=how != "rejected",
            )
        )

    def leave(self) -> None:
        if self.ledger.requests:
            self.tell(Left(self.rng.choice(sorted(self.ledger.requests))))

    def watch(self) -> None:
        name = self.rng.choice("abcd")
        if self.rng.random() < 0.6:
            self.tell(Probed(name, self.rng.random() < 0.75))
        else:
            running, waiting = self.rng.randrange(5), self.rng.choice([None, 0, 2, 6])
            self.tell(LoadReported(name, LoadReport(running=running, waiting=waiting, kv_usage=0.5)))

    def wait(self) -> None:
        until = self.now + self.rng.choice([0.01, 0.2, 0.5, 2.5, 6.0])
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

    def reload(self) -> None:
        drained = self.rng.choice([None, "a", "d"])
        for each in self.all:
            each.draining = each.name == drained
        names = self.rng.choice(["abcd", "abcd", "abc", "bd"])
        self.s.set_instances(each for each in self.all if each.name in names)
        self.timeout_s = self.rng.choice([5.0, 600.0])

    def finish(self) -> None:
        while self.ledger.requests:
            if (found := self.attempts()) and self.ledger.waiting:
                sent = found[0]
                self.tell(FirstToken(sent.request_id, sent.attempt))
                self.tell(Ended(sent.request_id, sent.attempt, EndedHow.OK, 1, 100))
            else:
                self.tell(Left(min(self.ledger.requests)))
        self.ledger.is_closed()


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32), steps=st.integers(1, 150))
def test_whatever_happens_in_whatever_order(seed: int, steps: int) -> None:
    Script(Random(seed)).run(steps)
