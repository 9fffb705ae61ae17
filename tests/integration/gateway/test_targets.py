"""Targets of quality and attainment: of the file, changed while the gateway runs, and read again."""

from __future__ import annotations

from tests.integration.gateway.live import bearer, key, live, vllm

KEYS = [key("one", quality=0.7), key("two", attainment=0.8), key("three")]
COST = {"quality": 0.5, "quality_slack": 0.02, "attainment": 0.9, "window_requests": 100}


ROOT = {"HEADWAY_ADMIN_KEY": "root"}
ADMIN = bearer("root")
TARGETS = "/admin/targets"


def by_key(answer):
    return {each["key"]: (each["quality"], each["attainment"]) for each in answer["targets"]}


async def test_targets_change_until_the_file_is_read_again(tmp_path):
    sections = {"auth": {"keys": KEYS}, "scheduling": {"cost": COST}}
    async with live(tmp_path, vllm("a"), environment=ROOT, **sections) as gw:
        asked = gw.gateway.runner.scheduler.policies["cost"]._targets  # what the policy really asks
        of_file = {None: (0.5, 0.9), "one": (0.7, 0.9), "two": (0.5, 0.8), "three": (0.5, 0.9)}
        status, answer = await gw.get(TARGETS, headers=ADMIN)
        assert (status, by_key(answer)) == (200, of_file)
        assert {each["window_requests"] for each in answer["targets"]} == {100}
        assert not any(each["changed"] for each in answer["targets"])
        assert (asked("one").quality, asked("one").quality_slack) == (0.7, 0.02)
        assert asked("unknown").quality == 0.5

        # The fleet, and who has none of its own.
        status, answer = await gw.patch(TARGETS, {"attainment": 0.99}, headers=ADMIN)
        assert status == 200
        found = by_key(answer)
        assert found == {None: (0.5, 0.99), "one": (0.7, 0.99), "two": (0.5, 0.8), "three": (0.5, 0.99)}
        await gw.patch(TARGETS, {"key": "two"}, headers=ADMIN)  # changes nothing
        _, answer = await gw.patch(TARGETS, {"key": "one", "quality": None}, headers=ADMIN)
        assert by_key(answer)["one"] == (None, 0.99)
        assert [each["key"] for each in answer["targets"] if each["changed"]] == [None, "one"]
        assert (asked("one").quality, asked("three").attainment) == (None, 0.99)

        # An instance that is added is no new file.
        added = {"name": "z", "kind": "vllm", "url": "http://127.0.0.1:9", "serves": {"qwen2.5-7b": "x"}}
        assert (await gw.post("/admin/instances", added, headers=ADMIN))[0] == 201
        assert asked("three").attainment == 0.99

        gw.fleet["scheduling"]["cost"] = COST | {"quality": 0.55}
        assert (await gw.post("/admin/reload", {}, headers=ADMIN))[0] == 200
        _, answer = await gw.get(TARGETS, headers=ADMIN)
        assert by_key(answer) == of_file | {None: (0.55, 0.9), "two": (0.55, 0.8), "three": (0.55, 0.9)}
        assert not any(each["changed"] for each in answer["targets"])
        assert asked("two").quality == 0.55


async def test_what_cost_holds_is_told_and_what_is_no_target(tmp_path):
    async with live(tmp_path, vllm("a")) as gw:
        assert (await gw.get(TARGETS))[1]["targets"][0]["prices"] is None
        assert (await gw.chat(routing={"policy": "cost", "slo": {"e2e_ms": 60_000}}))[0] == 200
        (fleet,) = (await gw.get(TARGETS))[1]["targets"]
        prices = fleet["prices"]
        assert prices["wished_quality"] == prices["reachable_quality"] - 0.005  # half of the slack
        assert prices["reached_quality"] == prices["reachable_quality"]  # there is one model
        assert prices["attainment"] == 1.0
        assert prices["miss_usd"] >= prices["usual_answer_usd"]
        before = await gw.get(TARGETS)
        for body, expected in (
            ({"key": "nobody", "quality": 0.5}, 404),
            ({"quality": 1.5}, 400),
            ({"attainment": None}, 400),
            ({"attainment": "high"}, 400),
            ({"window_requests": 5}, 400),
        ):
            status, answer = await gw.patch(TARGETS, body)
            assert (status, bool(answer["error"]["message"])) == (expected, True), body
        assert await gw.get(TARGETS) == before
