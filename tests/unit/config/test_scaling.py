"""The section `scaling` of the fleet file."""

from __future__ import annotations

import pytest

from router.config import ConfigError, loads
from router.scaling.pools import scaling_pools

FLEET = """\
models: [{name: llama-3.1-8b}, {name: mine}]
instances:
  - {name: a, kind: vllm, url: "http://a", hardware: l4, serves: {llama-3.1-8b: m}}
  - {name: b, kind: emulated, profile: llama-3.1-8b@l4, serves: {llama-3.1-8b: m}}
  - {name: c, kind: vllm, url: "http://c", hardware: a40, serves: {llama-3.1-8b: m}}
discovery:
  - {kubernetes: {selector: app=x}, instance: {kind: vllm, hardware: l4, serves: {llama-3.1-8b: m}}}
scaling:
  actuator: processes
  pools:
    - name: small
      instance: {kind: vllm, hardware: l4, max_concurrency: 4, usd_per_hour: 0.7, serves: {llama-3.1-8b: m}}
      min_instances: 0
      max_instances: 8
      command: [serve, "{port}"]
    - {name: big, instance: {kind: ollama, hardware: 2xl4, serves: {mine: m}}, profile: llama-3.1-8b@2xl4, command: [x, "{port}"]}
"""


def test_pools_as_scalers_see_them() -> None:
    config = loads(FLEET)
    small, big = scaling_pools(config)
    assert (small.name, small.model, small.profile.name) == ("small", "llama-3.1-8b", "llama-3.1-8b@l4")
    assert (small.concurrency, small.gpus, small.usd_per_hour) == (4, 1, 0.7)
    assert (small.min_instances, small.max_instances, small.cooldown_s) == (0, 8, 300.0)
    # Without max_concurrency: an engine of fixed slots takes what its profile has.
    assert (big.model, big.profile.name, big.gpus) == ("mine", "llama-3.1-8b@2xl4", 2)
    assert big.concurrency == big.profile.slots


def test_instances_of_the_same_model_and_hardware_count_in_a_pool() -> None:
    config = loads(FLEET)
    pool = config.scaling.pools[0]
    assert [each.name for each in config.instances if pool.has(each)] == ["a", "b"]
    made = pool.instance.at("small-0", "http://127.0.0.1:1")
    assert pool.has(made)
    assert made.usd_per_hour == 0.7


# What is replaced in the good file, by what, the path of the problem, and (part of) the reason.
MISTAKES = [
    ("scaler: x", "scaling.scaler", "'queue', 'concurrency'"),
    ("max_instances: 0", "scaling.pools[0].max_instances", "greater than or equal to 1"),
    ("max_instances: 4097", "scaling.pools[0].max_instances", "less than or equal to 4096"),
    ("min_instances: 9", "scaling.pools[0]", "min_instances is greater than max_instances"),
    ("cooldown_s: -1", "scaling.pools[0].cooldown_s", "greater than or equal to 0"),
    ("maximum: 3", "scaling.pools[0].maximum", "unknown key"),
    ('command: [serve, "--port"]', "scaling.pools[0]", "command needs {port}"),
    ("command: null", "scaling.pools[0].command", "is missing"),
    ("name: big", "scaling.pools[1].name", "another pool is named 'big'"),
]


@pytest.mark.parametrize(("text", "path", "reason"), MISTAKES)
def test_mistakes_in_a_pool(text: str, path: str, reason: str) -> None:
    key = text.partition(":")[0]
    lines = FLEET.splitlines()
    at = lines.index("    - name: small")
    if key == "scaler":
        lines.insert(at - 1, f"  {text}")
    elif key == "name":
        lines[at] = f"    - {text}"
    else:
        kept = [line for line in lines if not line.startswith(f"      {key}:")]
        lines = [*kept[: at + 1], f"      {text}", *kept[at + 1 :]]
    with pytest.raises(ConfigError) as error:
        loads("\n".join(lines))
    assert path in str(error.value)
    assert reason in str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("{mine: m}", "{yours: m}", "scaling.pools[1].instance.serves.yours: unknown model 'yours'"),
        ("{mine: m}", "{mine: m, llama-3.1-8b: m}", "a pool's instance serves one model"),
        ("hardware: 2xl4, serves: {mine", "serves: {mine", "a pool's instance needs its hardware"),
        (
            "hardware: 2xl4, serves: {mine",
            "hardware: l4, serves: {llama-3.1-8b",
            "pool 'small' has this model",
        ),
        ("name: big", "name: {big: 1}", "scaling.pools[1].name: must be text"),
        ("hardware: 2xl4", "hardware: [2xl4]", "scaling.pools[1].instance.hardware: must be text"),
        ("actuator: processes", "actuator: kubernetes", "scaling.pools[0].deployment: is missing"),
        ("profile: llama-3.1-8b@2xl4", "profile: llama", "must be MODEL@HARDWARE"),
        ("profile: llama-3.1-8b@2xl4", "deployment: x", "unknown profile 'mine-q4@2xl4'"),
    ],
)
def test_mistakes_between_parts(old: str, new: str, reason: str) -> None:
    with pytest.raises(ConfigError) as error:
        scaling_pools(loads(FLEET.replace(old, new)))
    assert reason in str(error.value)


def test_a_deployment_needs_pods_that_are_found() -> None:
    small = FLEET[: FLEET.index("    - {name: big")].replace("actuator: processes", "actuator: kubernetes")
    fleet = small.replace("command:", "deployment: vllm-l4\n      command:")
    assert loads(fleet).scaling.pools[0].deployment == "vllm-l4"
    with pytest.raises(ConfigError, match="needs an entry of discovery"):
        loads(fleet.replace("hardware: l4, serves", "hardware: a40, serves"))
