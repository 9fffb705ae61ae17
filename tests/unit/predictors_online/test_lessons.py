"""A replica that has served nothing predicts as one that has, once it has heard what that one learned."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import orjson
import pytest

from predictors.learned.models import UNTRAINED, Models, load_models
from predictors.learned.text import prompt_features
from predictors.online import lessons
from predictors.online.predictor import OnlinePredictor
from predictors.online.sharing import MOST_WAITING
from router.core.interfaces import Option
from router.core.state import Instance
from router.core.types import Candidate, Price, Request, Slo
from tests.unit.predictors_online.virtual_engine import TRUTH, Run

WRONG = replace(TRUTH, per_token_s=3e-4, floor_s=3e-3)  # what the fleet is told of the engine
REQUEST = Request(
    "asked",
    0.0,
    "x",
    ("m",),
    prompt_tokens=700,
    max_tokens=900,
    slo=Slo(0.5, 0.03, 6.0),
    features=prompt_features("Explain, in some detail, how tides come about.\nThen write a poem."),
)
TOLD = (
    "output_tokens_p50",
    "output_tokens_p90",
    "ttft_s_p50",
    "ttft_s_p95",
    "tpot_s",
    "e2e_s_p50",
    "e2e_s_p95",
    "p_miss",
    "quality",
)


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
    """A predictor that has served `count` requests, one (with other models, if told) that has heard of them only, and
    a time after all of it (prefills of the last seconds slow down answers; here they were heard of seconds late)."""
    teacher, pupil = OnlinePredictor(models), OnlinePredictor(learns or models)
    teacher.sharing.begin()
    run = Run(teacher, profile)
    run.features = REQUEST.features
    instances = {"i": same_instance(profile)}
    for _ in range(count // 10):
        run.arrive(4.0, 10, REQUEST.slo)
        message = teacher.sharing.news(run.now, 2)
        assert message is not None
        pupil.sharing.hear(message, instances, run.now)
    return teacher, pupil, run.now + 120.0


def asked(predictor: OnlinePredictor, at: float, profile: Any = WRONG) -> dict[str, float | None]:
    instance = same_instance(profile)
    request = replace(REQUEST, arrived_at=at, outlook=None)
    told = predictor.predict(request, instance.candidates["m"], instance, at)
    return {name: getattr(told, name) for name in TOLD}


@pytest.mark.parametrize("profile", [WRONG, None], ids=["wrong profile", "no profile"])
@pytest.mark.parametrize("models", [UNTRAINED, load_models()], ids=["without artifacts", "with artifacts"])
def test_who_only_heard_predicts_as_who_served(models: Models, profile: Any) -> None:
    teacher, pupil, now = taught(models, profile=profile)
    fresh = asked(OnlinePredictor(models), now, profile)
    mine, theirs = asked(teacher, now, profile), asked(pupil, now, profile)
    learned = [name for name in TOLD if mine[name] != pytest.approx(fresh[name], rel=0.1)]
    assert {"output_tokens_p90", "ttft_s_p95", "tpot_s"} <= {*learned}  # there was something to learn
    # The latency model goes by when things happened, too, and the pupil heard of them in bundles.
    close = 0.02 if models is UNTRAINED else 0.1
    for name in TOLD:
        assert theirs[name] == pytest.approx(mine[name], rel=close, abs=0.02 if name == "p_miss" else 0.0), (
            name
        )
    counts = pupil.sharing.counts
    assert counts.heard == teacher.sharing.counts.told > 700
    assert (counts.ignored, counts.unfit, counts.told) == (0, 0, 0)
    assert pupil.coverage() == {}  # how well its own predictions hold it has not seen


def test_what_depends_on_an_artifact_is_learned_only_where_it_serves() -> None:
    models = load_models()
    _, pupil, now = taught(models, UNTRAINED, count=50)
    assert pupil.sharing.counts.unfit > 50
    served, heard, now = taught(UNTRAINED, models, count=50)
    assert heard.sharing.counts.unfit == 0  # it was told of none
    plain, _, _ = taught(UNTRAINED, count=50)
    for name in ("output_tokens_p50", "ttft_s_p50", "tpot_s"):
        # What needs no artifact is learned all the same.
        assert asked(pupil, now)[name] == pytest.approx(asked(plain, now)[name], rel=0.15), name
    assert served.name == "physical"


def test_prompts_that_an_instance_holds_are_heard_of() -> None:
    teacher, pupil = OnlinePredictor(), OnlinePredictor()
    teacher.sharing.begin()
    instance = same_instance()
    request = replace(REQUEST, prefix=(1, 2**32 - 1, 3), session="0123abcd", prompt_tokens=3000)
    prediction = teacher.predict(request, instance.candidates["m"], instance, 0.0)
    of = request, instance.candidates["m"], instance, prediction
    teacher.observe_dispatch(*of, 0.0)
    teacher.observe_ttft(*of, 0.2, 0.2)
    teacher.observe_end(*of, 400, 3100, 0.01, 4.0)
    message = teacher.sharing.news(1.0, 2)
    assert message is not None
    pupil.sharing.hear(message, {"i": instance}, 4.0)
    for later in (request, replace(request, prompt_tokens=20_000), replace(request, session="other")):
        assert pupil.cached_tokens(later, "i") == teacher.cached_tokens(later, "i") > 0


def test_feedback_is_heard_of_but_not_what_every_replica_finds_in_the_records() -> None:
    teacher, pupil = OnlinePredictor(), OnlinePredictor()
    teacher.sharing.begin()
    instances = {"i": same_instance()}
    for predictor in (teacher, pupil):
        predictor.predict(REQUEST, instances["i"].candidates["m"], instances["i"], 0.0)
    assert REQUEST.features is not None
    teacher.observe_quality("m", REQUEST.features, 1.0, recorded=True)
    assert teacher.sharing.news(1.0, 2) is None
    for _ in range(10):
        teacher.observe_quality("m", REQUEST.features, 0.0)
        teacher.observe_quality("not in the fleet", REQUEST.features, 0.0)
    message = teacher.sharing.news(1.0, 2)
    assert message is not None
    pupil.sharing.hear(message, instances, 0.0)
    assert pupil.feedback_counts() == {"m": 10}
    assert pupil.sharing.counts.ignored == 10
    quality = asked(pupil, 0.0)["quality"]
    assert quality is not None
    assert quality < 0.45


def test_nothing_is_kept_of_who_is_not_in_the_fleet() -> None:
    teacher, pupil, _ = taught(load_models(), count=10)
    stranger = OnlinePredictor(load_models())
    teacher.sharing._keep(lessons.Held("i", (1,), None, 10.0))
    message = lessons.write(
        teacher.name,
        [
            lessons.Held("elsewhere", (1,), None, 10.0),
            lessons.Ttft("elsewhere", "m", 0, 0.1, 0.0, 1.0, ()),
            lessons.Ttft("i", "another", 0, 0.1, 0.0, 1.0, ()),
        ],
    )
    stranger.sharing.hear(message, {"i": same_instance()}, 0.0)
    assert stranger.sharing.counts == (0, 0, 0, 3, 0)
    assert stranger._seen.pairs == {}
    assert pupil.sharing.counts.heard > 0


GOOD = ["ttft", "i", "m", 0, 0.1, 0.0, 1.0, []]


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"v": 1, "by": "physical"}',
        b'{"v": 1, "by": 5, "lessons": []}',
        b'{"v": 2, "by": "physical", "lessons": [["ttft", "i", "m", 0, 0.1, 0.0, 1.0, []]]}',
        *(
            orjson.dumps({"v": 1, "by": "physical", "lessons": [lesson]})
            for lesson in (
                [],
                "ttft",
                None,
                {"kind": "ttft"},
                ["unknown", "i", "m"],
                [["ttft"], "i", "m"],
                GOOD[:-1],
                [*GOOD, 1],
                [*GOOD[:3], 99, *GOOD[4:]],
                [*GOOD[:3], 0.5, *GOOD[4:]],
                [*GOOD[:3], True, *GOOD[4:]],
                [*GOOD[:4], None, *GOOD[5:]],
                [*GOOD[:4], 1e9, *GOOD[5:]],
                [*GOOD[:4], "0.1", *GOOD[5:]],
                [*GOOD[:7], [0.1]],
                [*GOOD[:7], [0.1, 0.2, 0.3, 0.4, None]],
                ["ttft", 1, *GOOD[2:]],
                ["ttft", "i" * 1000, *GOOD[2:]],
                ["tpot", "i", "m", 0, 0.1, 0.0, 0.01, []],  # no time is zero
                ["answer", "i", "m", 5, None, 1, "AAAA"],
                ["answer", "i", "m", 5, None, 1, "not base64!"],
                ["answer", "i", "m", -5, None, 1, None],
                ["held", "i", [-1], None, 5.0],
                ["held", "i", list(range(5000)), None, 5.0],
                ["judged", "m", [1], [], [], 1.5],
            )
        ),
    ],
)
def test_what_is_malformed_is_counted_and_changes_nothing(bad: bytes) -> None:
    predictor = OnlinePredictor()
    before = asked(predictor, 0.0)
    predictor.sharing.hear(bad, {"i": same_instance()}, 0.0)
    assert predictor.sharing.counts == (0, 0, 0, 1, 0)
    assert asked(predictor, 0.0) == before


def test_a_bad_lesson_does_not_spoil_the_others() -> None:
    message = orjson.dumps({"v": 1, "by": "physical", "lessons": [GOOD, ["oops"], GOOD]})
    assert lessons.read(message) == ("physical", [lessons.Ttft("i", "m", 0, 0.1, 0.0, 1.0, ())] * 2, 1)


def test_any_bytes_are_survived() -> None:
    predictor, rng = OnlinePredictor(), Random(5)
    good = orjson.dumps({"v": 1, "by": "physical", "lessons": [GOOD] * 3})
    for _ in range(500):
        noisy = bytearray(good)
        for _ in range(rng.randint(1, 4)):
            noisy[rng.randrange(len(noisy))] = rng.randrange(256)
        predictor.sharing.hear(bytes(noisy), {"i": same_instance()}, 0.0)


def test_every_kind_comes_back_as_it_was_told() -> None:
    teacher, _, _ = taught(load_models(), count=10)
    told: list[lessons.Lesson] = [
        lessons.Corrected("i", "m", 1, 0.5, 0.7),
        lessons.Tree("i", "m", 1, True, -0.3),
        lessons.Lost("i", "m", 2.5, False),
        lessons.Prompt("i", "m", 100, 120),
        lessons.Finished("i", "m", 7, None, 0.02, 0.1, 90.0, 0.0),
        lessons.Held("i", (1, 2**63), "s", 5.5),
        lessons.Judged("m", (1, 2), (), (3,), 0.25),
    ]
    assert lessons.read(lessons.write(teacher.name, told)) == (teacher.name, told, 0)


def test_a_busy_fleet_tells_a_part_of_it_and_counts_the_rest() -> None:
    teacher, features = OnlinePredictor(), REQUEST.features
    teacher.sharing.begin()
    assert features is not None

    def learned(count: int, now: float, replicas: int = 2) -> int:
        """Lessons told of `count`."""
        before = teacher.sharing.counts.told
        for _ in range(count):
            teacher.observe_quality("m", features, 0.5)
        teacher.sharing.news(now, replicas)
        return teacher.sharing.counts.told - before

    assert learned(MOST_WAITING + 7, 10.0) == MOST_WAITING
    assert learned(500, 10.0) == 0  # all that may be told at once has been
    assert learned(500, 10.125) == 375  # what an eighth of a second allows
    assert learned(500, 10.25, replicas=4) == 125  # each of four tells so much less
    assert learned(500, 99.0, replicas=1) == 0  # nobody is there
    assert learned(500, 100.0) == 500
    assert teacher.sharing.counts.dropped == 7 + 500 + 125 + 375


def test_messages_hold_no_text_of_a_prompt() -> None:
    teacher = OnlinePredictor(load_models())
    teacher.sharing.begin()
    instance = same_instance()
    request = replace(REQUEST, features=prompt_features("the password is swordfish"), session=None)
    prediction = teacher.predict(request, instance.candidates["m"], instance, 0.0)
    teacher.predict_all(request, [Option(instance.candidates["m"], instance)], 0.0)
    of = request, instance.candidates["m"], instance, prediction
    teacher.observe_dispatch(*of, 0.0)
    teacher.observe_ttft(*of, 0.2, 0.2)
    teacher.observe_end(*of, 40, 31, 0.01, 4.0)
    assert request.features is not None
    teacher.observe_quality("m", request.features, 1.0)
    message = teacher.sharing.news(1.0, 2)
    assert message is not None
    assert b"swordfish" not in message
    assert {lesson[0] for lesson in orjson.loads(message)["lessons"]} == {
        "sent", "began", "ttft", "finished", "prompt", "answer", "tpot", "judged",
    }  # fmt: skip
