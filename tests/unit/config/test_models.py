"""What a fleet file means once it is read."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from backends.engine import profiles
from router.config import ConfigError, FleetConfig, ScalingConfig, load, loads, parse_instance, with_instances
from router.core.types import Price, Slo

ROOT = Path(__file__).resolve().parents[3]
FLEETS = sorted((ROOT / "fleets").glob("*.yaml"))

SMALL = """
models:
  - name: llama
    family: llama
    context_tokens: 8000
    quality: 0.5
    price: {input_usd_per_mtok: 1, output_usd_per_mtok: 2}
    slo: {ttft_ms: 1500, tpot_ms: 62.5}
  - name: qwen
instances:
  - name: real
    kind: vllm
    url: https://host:8000/
    hardware: a100-80g
    serves:
      llama: {name: org/llama, context_tokens: 16000, quantization: fp8, quality: 0.4}
      qwen: {name: org/qwen, context_tokens: 4000, price: {input_usd_per_mtok: 3, output_usd_per_mtok: 4}}
  - {name: sim, kind: emulated, emulates: ollama, speed: 2.5, profile: llama-3.1-8b@l4, serves: {llama: "llama:8b"}}
"""


@pytest.mark.parametrize("path", FLEETS, ids=lambda path: path.name)
def test_shipped_fleets_load(path: Path) -> None:
    config = load(path)
    assert config.instances
    for instance in config.instances:
        assert config.candidates(instance)
        for model in instance.serves:
            profile = instance.profile_name(model)
            assert profile is None or profile in profiles.names()


def test_there_are_shipped_fleets() -> None:
    assert {path.name for path in FLEETS} >= {"example.yaml", "demo.yaml", "compose.yaml"}


def test_defaults_are_the_documented_ones() -> None:
    config = loads("models: [{name: llama}]")
    assert (config.server.host, config.server.port, config.server.workers) == ("127.0.0.1", 8080, 1)
    assert config.store.url == "sqlite+aiosqlite:///headway.db"
    assert (config.store.retain_days, config.store.max_mb, config.store.keep_prompts) == (30, 2048, False)
    assert config.state.url == "memory://"
    assert (config.defaults.policy, config.defaults.slo) == ("latency", None)
    assert config.defaults.on_miss == "best_effort"
    limits = config.limits
    assert (limits.request_timeout_s, limits.idle_timeout_s, limits.connect_timeout_s) == (600, 60, 5)
    assert (limits.max_body_mb, limits.max_queue, limits.max_attempts) == (32, 512, 3)
    assert (config.scheduling.confidence, config.scheduling.explore) == (0.9, 0.01)
    assert (config.scheduling.hedge.enabled, config.scheduling.hedge.max_share) == (False, 0.03)
    cost = config.scheduling.cost
    assert (cost.quality, cost.quality_slack) == (None, 0.01)
    assert (cost.attainment, cost.window_requests) == (0.95, 500)
    probes = config.probes
    assert (probes.interval_s, probes.timeout_s, probes.eject_after, probes.return_after) == (2, 2, 3, 2)


def test_candidates_take_the_instance_before_the_model() -> None:
    config = loads(SMALL)
    real = config.candidates(config.instances[0])
    assert real["llama"].upstream_model == "org/llama"
    assert real["llama"].price == Price(1, 2)
    assert real["llama"].context_tokens == 8000  # never more than the model's own
    assert (real["llama"].quality, real["llama"].quantization, real["llama"].family) == (0.4, "fp8", "llama")
    assert real["qwen"].price == Price(3, 4)
    assert (real["qwen"].context_tokens, real["qwen"].quality, real["qwen"].family) == (4000, None, None)


def test_slo_is_in_seconds() -> None:
    assert loads(SMALL).models[0].slo.slo() == Slo(ttft_s=1.5, tpot_s=0.0625)


def test_profiles_and_protocols() -> None:
    real, sim = loads(SMALL).instances
    assert (real.protocol, real.hardware_name) == ("vllm", "a100-80g")
    assert real.profile_name("qwen") == "qwen@a100-80g"
    assert (sim.protocol, sim.hardware_name, sim.profile_name("llama")) == ("ollama", "l4", "llama-3.1-8b@l4")
    assert sim.speed == 2.5
    assert real.url == "https://host:8000"


def test_an_emulated_instance_with_two_models_has_a_profile_for_each() -> None:
    text = SMALL.replace('{llama: "llama:8b"}', "{llama: l, qwen: {name: q, profile: qwen2.5-7b@l4}}")
    sim = loads(text).instances[1]
    assert (sim.profile_name("llama"), sim.profile_name("qwen")) == ("llama-q4@l4", "qwen2.5-7b@l4")


@pytest.mark.parametrize(
    ("kind", "quantization", "profile"),
    [
        ("vllm", "null", "llama@l4"),
        ("vllm", "bf16", "llama@l4"),
        ("openai", "Q8_0", "llama-q8@l4"),
        ("ollama", "null", "llama-q4@l4"),
        ("ollama", "q4_K_M", "llama-q4@l4"),
        ("ollama", "fp16", "llama@l4"),
    ],
)
def test_weights_choose_the_profile(kind: str, quantization: str, profile: str) -> None:
    served = f"{{llama: {{name: l, quantization: {quantization}}}}}"
    row = f"{{name: a, kind: {kind}, url: 'http://h', hardware: l4, serves: {served}}}"
    (instance,) = loads(f"models: [{{name: llama}}]\ninstances: [{row}]").instances
    assert instance.profile_name("llama") == profile


def test_a_model_is_found_by_name_and_alias() -> None:
    config = loads(SMALL.replace("family: llama", "aliases: [small]"))
    assert config.model("small") is config.model("llama") is config.models[0]
    assert config.model("other") is None
    assert config.instance("sim") is config.instances[1]
    assert config.instance("other") is None


def test_parts_are_frozen() -> None:
    config = loads(SMALL)
    with pytest.raises(ValidationError):
        config.server.port = 1  # type: ignore[misc]


def test_an_instance_validates_from_json() -> None:
    instance = parse_instance({"name": "x", "kind": "ollama", "url": "http://h:1", "serves": {"qwen": "q"}})
    assert instance.serves["qwen"].name == "q"
    fleet = loads(SMALL)
    assert with_instances(fleet, (*fleet.instances, instance)).instances[-1] is instance


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "instance: must be a mapping"),
        ({"name": "x", "kind": "vllm", "serves": {"qwen": "q"}}, "instance: url is missing"),
        (
            {"name": "x", "kind": "vllm", "url": "http://h", "serves": {"qwen": "q"}, "api_key": "hunter2"},
            "instance: api_key: the file must not contain a secret: use api_key_env",
        ),
        (
            {"name": "x", "kind": "vllm", "url": "http://h", "serves": {"qwen": 3}},
            "instance: serves.qwen: must",
        ),
    ],
)
def test_an_instance_that_does_not_validate(data: object, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_instance(data)
    assert str(caught.value).startswith(message)
    assert "hunter2" not in str(caught.value)


def test_a_new_instance_must_fit_the_fleet() -> None:
    fleet = loads(SMALL)
    stranger = parse_instance({"name": "x", "kind": "vllm", "url": "http://h", "serves": {"lama": "q"}})
    with pytest.raises(ConfigError, match="unknown model 'lama'"):
        with_instances(fleet, [stranger])
    with pytest.raises(ConfigError, match="another instance is named 'real'"):
        with_instances(fleet, [*fleet.instances, fleet.instances[0]])


def test_only_what_refers_to_instances_is_checked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = loads(SMALL)
    monkeypatch.setattr(FleetConfig, "model_validate", None)
    whole = with_instances(fleet, fleet.instances[:1])
    assert [each.name for each in whole.instances] == ["real"]
    assert all(
        getattr(whole, name) is getattr(fleet, name)
        for name in FleetConfig.model_fields
        if name != "instances"
    )
    pool = {"name": "real", "instance": {"kind": "vllm", "hardware": "l4", "serves": {"qwen": "q"}}}
    scaling = ScalingConfig.model_validate({"pools": [pool]})
    with pytest.raises(ConfigError, match="an instance is named 'real' too"):
        with_instances(fleet.model_copy(update={"scaling": scaling}), fleet.instances)


def test_a_model_without_a_profile_has_that_of_its_engine() -> None:
    """An adapter in an engine that batches. Ollama loads each model by itself."""
    text = """
models: [{name: llama-3.1-8b}, {name: adapter}]
instances:
  - {name: v, kind: vllm, url: "http://a", hardware: l4, serves: {adapter: a, llama-3.1-8b: {name: b, quantization: awq}}}
  - {name: o, kind: ollama, url: "http://b", hardware: l4, serves: {adapter: a, llama-3.1-8b: b}}
"""
    vllm, ollama = loads(text, "fleet.yaml").instances
    found = {model: profile.name for model, profile in vllm.engine_profiles(profiles.find).items()}
    assert found == dict.fromkeys(("adapter", "llama-3.1-8b"), "llama-3.1-8b-int4@l4")
    assert [*ollama.engine_profiles(profiles.find)] == ["llama-3.1-8b"]


@pytest.mark.parametrize("emulates", ["vllm", "ollama"])
def test_a_model_without_a_profile_has_that_of_its_emulated_instance(emulates: str) -> None:
    text = f"""
models: [{{name: fast}}, {{name: dear}}]
instances:
  - name: e
    kind: emulated
    emulates: {emulates}
    profile: llama-3.1-8b@l4
    serves: {{fast: a, dear: {{name: b, profile: llama-3.1-8b@h100-80g}}}}
"""
    (instance,) = loads(text, "fleet.yaml").instances
    found = {model: profile.name for model, profile in instance.engine_profiles(profiles.find).items()}
    assert found == {"fast": "llama-3.1-8b@l4", "dear": "llama-3.1-8b@h100-80g"}


def test_an_emulated_instance_may_name_a_profile_for_each_model_only() -> None:
    text = """
models: [{name: llama-3.1-8b}]
instances: [{name: e, kind: emulated, serves: {llama-3.1-8b: {name: b, profile: llama-3.1-8b-fp8@l4}}}]
"""
    (instance,) = loads(text, "fleet.yaml").instances
    assert (instance.hardware_name, instance.profile_name("llama-3.1-8b")) == ("l4", "llama-3.1-8b-fp8@l4")
