"""A replica that has served nothing predicts as one that has, once it has received that one's observations."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import orjson
import pytest

from predictors.learned.models import UNTRAINED, Models, load_models
from predictors.learned.text import prompt_features
from predictors.online.answer_lengths import AnswerCounted
from predictors.online.instance_events import AnswerEnded, AttemptLost, AttemptSent, FirstTokenCame
from predictors.online.learning import Learning
from predictors.online.observation import Codec
from predictors.online.predictor import OnlinePredictor
from predictors.online.prompt_caches import PromptCached
from predictors.online.qualities import AnswerJudged
from predictors.online.sharing import MOST_WAITING, ObservationCounts
from predictors.online.time_errors import TpotError, TtftCorrection, TtftError
from predictors.online.tree_times import TreeError
from router.core.interfaces import Option
from router.core.state import Instance
from router.core.types import Candidate, Price, Request, Slo
from tests.unit.predictors_online.attempts import sent
from tests.unit.predictors_online.virtual_engine import TRUTH, Run

CODEC = Codec(Learning(UNTRAINED).kinds)
WRONG = replace(TRUTH, per_token_s=3e-4, floor_s=3e-3)  # what the fleet file says of the engine
REQUEST = Request(
    "r",
    0.0,
    "x",
    ("m",),
    prompt_tokens=700,
    max_tokens=900,
    slo=Slo(0.5, 0.03, 6.0),
    features=prompt_features("Explain, in some detail, how tides come about.\nThen write a poem."),
)
PREDICTED = (
    "output_tokens_p50", "output_tokens_p90", "ttft_s_p50", "ttft_s_p95", "tpot_s", "e2e_s_p50",
    "e2e_s_p95", "p_miss", "quality",
)  # fmt: skip


def same_instance(profile: Any = WRONG) -> Instance:
    return Instance(
        "i",
        "vllm",
        {"m": Candidate("i", "m", "m", Price(0.1, 0.3), 32_768, 0.5, family="f")},
        profiles={} if profile is None else {"m": profile},
    )


def taught(
    models: Models, learns: Models | None = None, count: int = 150, profile: Any = WRONG
) -> tuple[OnlinePredictor, OnlinePredictor, float]:
    """A predictor that has served `count` requests, one (perhaps with other models) that has only received its
    observations, and a time after all of it (prefills of the last seconds slow down answers; here they were received seconds
    late)."""
    teacher, pupil = OnlinePredictor(models), OnlinePredictor(learns or models)
    teacher.sharing.begin()
    run = Run(teacher, profile)
    run.features = REQUEST.features
    instances = {"i": same_instance(profile)}
    for _ in range(count // 10):
        run.arrive(4.0, 10, REQUEST.slo)
        message = teacher.sharing.drain_outgoing(run.now, 2)
        assert message is not None
        pupil.sharing.receive(message, instances, run.now)
    return teacher, pupil, run.now + 120.0


def predicted(predictor: OnlinePredictor, at: float, profile: Any = WRONG) -> dict[str, float | None]:
    instance = same_instance(profile)
    request = replace(REQUEST, arrived_at=at, forecast=None)
    prediction = predictor.predict(request, instance.candidates["m"], instance, at)
    return {name: getattr(prediction, name) for name in PREDICTED}


@pytest.mark.parametrize("profile", [WRONG, None], ids=["wrong profile", "no profile"])
@pytest.mark.parametrize("models", [UNTRAINED, load_models()], ids=["without artifacts", "with artifacts"])
def test_who_only_received_predicts_as_who_served(models: Models, profile: Any) -> None:
    teacher, pupil, now = taught(models, profile=profile)
    fresh = predicted(OnlinePredictor(models), now, profile)
    mine, theirs = predicted(teacher, now, profile), predicted(pupil, now, profile)
    learned = [name for name in PREDICTED if mine[name] != pytest.approx(fresh[name], rel=0.1)]
    assert {"output_tokens_p90", "ttft_s_p95", "e2e_s_p95"} <= {*learned}  # there was something to learn
    # The latency model also goes by when things happened, and the pupil received them in bundles.
    close = 0.02 if models is UNTRAINED else 0.1
    for name in PREDICTED:
        assert theirs[name] == pytest.approx(mine[name], rel=close, abs=0.02 if name == "p_miss" else 0.0), (
            name
        )
    counts = pupil.sharing.counts
    assert counts.received == teacher.sharing.counts.sent > 550
    assert (counts.ignored, counts.unfit, counts.sent) == (0, 0, 0)
    assert pupil.coverage() == {}  # it made no predictions of its own


def test_what_depends_on_an_artifact_is_learned_only_where_it_serves() -> None:
    models = load_models()
    _, pupil, now = taught(models, UNTRAINED, count=50)
    assert pupil.sharing.counts.unfit > 50
    served, trained, now = taught(UNTRAINED, models, count=50)
    assert trained.sharing.counts.unfit == 0  # it received none
    plain, _, _ = taught(UNTRAINED, count=50)
    for name in ("output_tokens_p50", "ttft_s_p50", "tpot_s"):
        # What needs no artifact is learned all the same.
        assert predicted(pupil, now)[name] == pytest.approx(predicted(plain, now)[name], rel=0.15), name
    assert served.name == "physical"


def test_prompts_that_an_instance_holds_are_exchanged() -> None:
    teacher, pupil = OnlinePredictor(), OnlinePredictor()
    teacher.sharing.begin()
    instance = same_instance()
    request = replace(REQUEST, prefix=(1, 2**32 - 1, 3), session="0123abcd", prompt_tokens=3000)
    of = sent(teacher, request, instance, 0.0)
    teacher.observe_ttft(of, 0.2, 0.2)
    teacher.observe_end(of, 400, None, 3100, 0.01, 4.0)
    message = teacher.sharing.drain_outgoing(1.0, 2)
    assert message is not None
    pupil.sharing.receive(message, {"i": instance}, 4.0)
    for later in (request, replace(request, prompt_tokens=20_000), replace(request, session="other")):
        assert pupil.cached_tokens(later, "i") == teacher.cached_tokens(later, "i") > 0


def test_feedback_is_exchanged_but_not_what_every_replica_finds_in_the_records() -> None:
    teacher, pupil = OnlinePredictor(), OnlinePredictor()
    teacher.sharing.begin()
    instances = {"i": same_instance()}
    for predictor in (teacher, pupil):
        predictor.predict(REQUEST, instances["i"].candidates["m"], instances["i"], 0.0)
    assert REQUEST.features is not None
    teacher.observe_quality("m", REQUEST.features, 1.0, recorded=True)
    assert teacher.sharing.drain_outgoing(1.0, 2) is None
    for _ in range(10):
        teacher.observe_quality("m", REQUEST.features, 0.0)
        teacher.observe_quality("not in the fleet", REQUEST.features, 0.0)
    message = teacher.sharing.drain_outgoing(1.0, 2)
    assert message is not None
    pupil.sharing.receive(message, instances, 0.0)
    assert pupil.feedback_counts() == {"m": 10}
    assert pupil.sharing.counts.ignored == 10
    assert predicted(pupil, 0.0)["quality"] < 0.45


def test_nothing_is_kept_of_what_is_not_in_the_fleet() -> None:
    stranger = OnlinePredictor()
    message = CODEC.encode(
        "physical",
        [
            PromptCached(("elsewhere", "m"), (1,), None, 10.0),
            TtftError(("elsewhere", "m"), 0, 0.1, 0.0, 1.0, ()),
            TtftError(("i", "another"), 0, 0.1, 0.0, 1.0, ()),
        ],
    )
    stranger.sharing.receive(message, {"i": same_instance()}, 0.0)
    assert stranger.sharing.counts == ObservationCounts(ignored=3)
    assert stranger.stats.candidates == {}


GOOD = ["TtftError", ["i", "m"], 0, 0.1, 0.0, 1.0, []]


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"v": 3, "by": "physical"}',
        b'{"v": 3, "by": 5, "observations": []}',
        b'{"v": 1, "by": "physical", "observations": [["TtftError", ["i", "m"], 0, 0.1, 0.0, 1.0, []]]}',
        *(
            orjson.dumps({"v": 3, "by": "physical", "observations": [observation]})
            for observation in (
                [],
                "TtftError",
                None,
                {"kind": "TtftError"},
                ["unknown", ["i", "m"]],
                [["TtftError"], ["i", "m"]],
                GOOD[:-1],
                [*GOOD, 1],
                [*GOOD[:2], 99, *GOOD[3:]],
                [*GOOD[:2], 0.5, *GOOD[3:]],
                [*GOOD[:2], True, *GOOD[3:]],
                [*GOOD[:3], None, *GOOD[4:]],
                [*GOOD[:3], 1e9, *GOOD[4:]],
                [*GOOD[:3], "0.1", *GOOD[4:]],
                [*GOOD[:6], [0.1]],
                [*GOOD[:6], [0.1, 0.2, 0.3, 0.4, None]],
                ["TtftError", "i", *GOOD[2:]],
                ["TtftError", [1, "m"], *GOOD[2:]],
                ["TtftError", ["i"], *GOOD[2:]],
                ["TtftError", ["i" * 1000, "m"], *GOOD[2:]],
                ["TpotError", ["i", "m"], 0, 0.1, 0.0, 0.01, []],  # no time is zero
                ["AnswerCounted", ["i", "m"], 9, 9, 5, None, 1, "AAAA"],
                ["AnswerCounted", ["i", "m"], 9, 9, 5, None, 1, "not base64!"],
                ["AnswerCounted", ["i", "m"], 9, 9, -5, None, 1, None],
                ["PromptCached", ["i", "m"], [-1], None, 5.0],
                ["PromptCached", ["i", "m"], list(range(5000)), None, 5.0],
                ["AnswerJudged", "m", [1], [], [], 1.5],
            )
        ),
    ],
)
def test_what_is_malformed_is_counted_and_changes_nothing(bad: bytes) -> None:
    predictor = OnlinePredictor()
    before = predicted(predictor, 0.0)
    predictor.sharing.receive(bad, {"i": same_instance()}, 0.0)
    assert predictor.sharing.counts == ObservationCounts(ignored=1)
    assert predicted(predictor, 0.0) == before


def test_a_bad_observation_does_not_spoil_the_others() -> None:
    message = orjson.dumps({"v": 3, "by": "physical", "observations": [GOOD, ["oops"], GOOD]})
    assert CODEC.decode(message) == ("physical", [TtftError(("i", "m"), 0, 0.1, 0.0, 1.0, ())] * 2, 1)


def test_any_bytes_are_survived() -> None:
    predictor, rng = OnlinePredictor(), Random(5)
    good = orjson.dumps({"v": 3, "by": "physical", "observations": [GOOD] * 3})
    for _ in range(500):
        noisy = bytearray(good)
        for _ in range(rng.randint(1, 4)):
            noisy[rng.randrange(len(noisy))] = rng.randrange(256)
        predictor.sharing.receive(bytes(noisy), {"i": same_instance()}, 0.0)


def test_every_kind_is_read_as_it_was_written() -> None:
    of = "i", "m"
    written = [
        PromptCached(of, (1, 2**63), "s", 5.5),
        AttemptSent(of, 0.5, -0.1, 90.0, 10.0, 0.02),
        FirstTokenCame(of, 0.7, 0.5, -0.1, 90.0, 10.0),
        AnswerEnded(of, 7, None, 0.02, 0.1, 90.0, 0.0),
        AttemptLost(of, 2.5, False),
        TtftError(of, 1, 0.3, 0.1, 0.9, (0.1, 0.2, 0.3, 0.4, 0.5) * 3),
        TtftCorrection(of, 1, 0.5, 0.7),
        TpotError(of, 2, -0.3, 0.02, 0.03, ()),
        TreeError(of, 1, True, -0.3),
        AnswerCounted(of, 100, 120, 70, None, 1, None),
        AnswerJudged("m", (1, 2), (), (3,), 0.25),
    ]
    assert {type(each) for each in written} == {*Learning(UNTRAINED).kinds}
    assert CODEC.decode(CODEC.encode("physical", written)) == ("physical", written, 0)


def test_a_busy_fleet_sends_a_part_and_counts_the_rest() -> None:
    teacher, features = OnlinePredictor(), REQUEST.features
    teacher.sharing.begin()
    assert features is not None

    def sent(count: int, now: float, replicas: int = 2) -> int:
        """Observations sent of `count`."""
        before = teacher.sharing.counts.sent
        for _ in range(count):
            teacher.observe_quality("m", features, 0.5)
        teacher.sharing.drain_outgoing(now, replicas)
        return teacher.sharing.counts.sent - before

    assert sent(MOST_WAITING + 7, 10.0) == MOST_WAITING
    assert sent(500, 10.0) == 0  # all that may be sent at once was sent
    assert sent(500, 10.125) == 375  # what an eighth of a second allows
    assert sent(500, 10.25, replicas=4) == 125  # each of four sends so much less
    assert sent(500, 99.0, replicas=1) == 0  # nobody is there
    assert sent(500, 100.0) == 500
    assert teacher.sharing.counts.dropped == 7 + 500 + 125 + 375


def test_messages_hold_no_text_of_a_prompt() -> None:
    teacher = OnlinePredictor(load_models())
    teacher.sharing.begin()
    instance = same_instance()
    request = replace(REQUEST, features=prompt_features("the password is swordfish"), session=None)
    of = sent(teacher, request, instance, 0.0)
    teacher.predict_all(request, [Option(instance.candidates["m"], instance)], 0.0)
    teacher.observe_ttft(of, 0.2, 0.2)
    teacher.observe_end(of, 40, None, 31, 0.01, 4.0)
    assert request.features is not None
    teacher.observe_quality("m", request.features, 1.0)
    message = teacher.sharing.drain_outgoing(1.0, 2)
    assert b"swordfish" not in message
    assert {each[0] for each in orjson.loads(message)["observations"]} >= {
        "AttemptSent", "FirstTokenCame", "TtftError", "AnswerEnded", "AnswerCounted", "TpotError", "AnswerJudged",
    }  # fmt: skip
