"""Every mistake in a fleet file is told with its line and its reason, all of them at once."""

import re
from pathlib import Path

import pytest

from backends import KINDS
from router.config import ConfigError, load, loads
from router.config.errors import dotted

FLEET = """\
server: {port: 8080}
auth:
  admin_key_env: ADMIN_KEY
  keys:
    - name: team-a
      sha256: AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA
      policy: price
store:
  url: sqlite+aiosqlite:///headway.db
state: {url: "memory://"}
defaults: {policy: latency}
limits:
  idle_timeout_s: 0.5
models:
  - name: llama
    aliases: [small]
    fallbacks: [qwen]
    quality: 0.5
    slo: {ttft_ms: 250.5}
  - name: qwen
instances:
  - name: a100-0
    kind: vllm
    url: http://10.0.0.3:8000
    serves: {llama: meta-llama/Llama}
    api_key_env: A100_KEY
  - name: sim-0
    kind: emulated
    profile: llama-3.1-8b@l4
    serves: {qwen: qwen}
"""


def test_a_good_file_has_no_error() -> None:
    config = loads(FLEET)
    assert [each.name for each in config.instances] == ["a100-0", "sim-0"]


IDLE, PROFILE = "idle_timeout_s: 0.5", "profile: llama-3.1-8b@l4"
# What is replaced in the good file, by what, the line of the problem, its path, and (part of) the reason.
MISTAKES = [
    ("port: 8080", "prt: 8080", 1, "server.prt", "unknown key (did you mean 'port'?)"),
    ("port: 8080", "port: '8080'", 1, "server.port", "must be a whole number"),
    ("port: 8080", "port: true", 1, "server.port", "must be a whole number"),
    ("port: 8080", "port: 70000", 1, "server.port", "less than or equal to 65535"),
    ("state: {", "stat: {", 10, "stat", "unknown key (did you mean 'state'?)"),
    ("server: {port: 8080}", "zzz: 1", 1, "zzz", "unknown key; known: server, auth"),
    ("server: {port: 8080}", "server: 8080", 1, "server", "must be a mapping"),
    ("AAAAAA", "A", 6, "auth.keys[0].sha256", "64 hexadecimal digits"),
    ("AAAAAA", "GAAAAA", 6, "auth.keys[0].sha256", "64 hexadecimal digits"),
    ("policy: price", "policy: prise", 7, "auth.keys[0].policy", "did you mean 'price'?"),
    ("policy: price", "locked: true", 5, "auth.keys[0]", "locked needs a policy"),
    ("policy: price", "key: sk-1", 7, "auth.keys[0].key", "use sha256"),
    ("policy: latency", "policy: fast", 11, "defaults.policy", "known: best_single, budget_online"),
    ("policy: latency", "on_miss: later", 11, "defaults.on_miss", "'best_effort' or 'reject'"),
    (IDLE, "idle_timeout_s: 0", 13, "limits.idle_timeout_s", "greater than 0"),
    (IDLE, "idle_timeout_s: .inf", 13, "limits.idle_timeout_s", "finite"),
    (IDLE, "idle_timeout_s: 1.0e+308", 13, "limits.idle_timeout_s", "less than or equal to 1000"),
    (IDLE, "max_queue: 1.5", 13, "limits.max_queue", "must be a whole number"),
    ("headway.db", "h.db\n  password_env: PW", 10, "store.password_env", "store.url names none"),
    ('"memory://"', '"memory://", password_env: PW', 10, "state.password_env", "state.url names none"),
    ("sqlite+aiosqlite:///", "sqlite:///", 9, "store.url", "must begin with sqlite+aiosqlite"),
    ("memory://", "memcached://x", 10, "state.url", "redis://"),
    ("aliases: [small]", "aliases: [qwen]", 16, "models[0].aliases[0]", "is the name of a model"),
    ("aliases: [small]", "aliases: [s, s]", 16, "models[0].aliases[1]", "already stands for 'llama'"),
    ("aliases: [small]", "aliases: [auto]", 16, "models[0].aliases[0]", "means any model"),
    ("aliases: [small]", "aliases: small", 16, "models[0].aliases", "must be a list"),
    ("name: qwen\n", "name: auto\n", 20, "models[1].name", "means any model"),
    ("fallbacks: [qwen]", "fallbacks: [qwem]", 17, "models[0].fallbacks[0]", "did you mean 'qwen'?"),
    ("fallbacks: [qwen]", "fallbacks: [llama]", 17, "models[0].fallbacks[0]", "its own fallback"),
    ("fallbacks: [qwen]", "fallbacks: [qwen, qwen]", 17, "models[0].fallbacks[1]", "listed twice"),
    ("quality: 0.5", "quality: 1.5", 18, "models[0].quality", "less than or equal to 1"),
    ("{ttft_ms: 250.5}", "{}", 19, "models[0].slo", "sets no target"),
    ("{ttft_ms: 250.5}", "{ttft: 1}", 19, "models[0].slo.ttft", "did you mean 'ttft_ms'?"),
    ("{ttft_ms: 250.5}", "{ttft_ms: -1}", 19, "models[0].slo.ttft_ms", "greater than 0"),
    ("name: qwen\n", "name: llama\n", 20, "models[1].name", "another model is named 'llama'"),
    ("name: qwen\n", "name: 'q wen'\n", 20, "models[1].name", "must match pattern"),
    ("name: qwen\n", "name: 3\n", 20, "models[1].name", "must be text"),
    ("kind: vllm", "kind: vlm", 23, "instances[0].kind", ", ".join(map(repr, KINDS)) + " or 'emulated'"),
    (
        "    api_key_env: A100_KEY",
        "    settings: {keep_alive: 5m}",
        26,
        "instances[0].settings.keep_alive",
        "unknown key",
    ),
    (
        "kind: vllm",
        "kind: ollama\n    settings: {keep_alive: '5'}",
        24,
        "instances[0].settings.keep_alive",
        "must be whole seconds, or a duration such as 30m",
    ),
    ("    kind: vllm\n", "", 22, "instances[0].kind", "is missing"),
    ("    url: http://10.0.0.3:8000\n", "", 22, "instances[0]", "url is missing"),
    ("http://10", "ftp://10", 24, "instances[0].url", "http://HOST"),
    ("http://10.0.0.3:8000", "10.0.0.3:8000", 24, "instances[0].url", "http://HOST"),
    ("http://10.0.0.3:8000", "http://10.0.0.3:x", 24, "instances[0].url", "is not a URL"),
    ("http://10.0.0.3:8000", "http://a?b=1", 24, "instances[0].url", "no query"),
    ("http://10.0.0.3:8000", "http://a..b", 24, "instances[0].url", "is not a URL"),
    ("http://10.0.0.3:8000", f"http://{'a' * 64}", 24, "instances[0].url", "is not a URL"),
    ("http://10.0.0.3:8000", "http://a/b c", 24, "instances[0].url", "must be ASCII without spaces"),
    ("http://10.0.0.3:8000", "http://${HOST}:8000", 24, "instances[0].url", "neither a name nor an address"),
    ("{llama: meta", "{lama: meta", 25, "instances[0].serves.lama", "did you mean 'llama'?"),
    ("{llama: meta-llama/Llama}", "{}", 25, "instances[0].serves", "at least 1"),
    ("meta-llama/Llama}", "{context_tokens: 1}}", 25, "instances[0].serves.llama.name", "is missing"),
    ("meta-llama/Llama}", "{name: x, qualty: 1}}", 25, "instances[0].serves.llama.qualty", "'quality'"),
    ("meta-llama/Llama}", "{name: x, profile: a@b}}", 25, "instances[0].serves.llama.profile", "emulated"),
    ("    api_key_env: A100_KEY", "    speed: 2", 22, "instances[0]", "speed is for kind: emulated"),
    (
        "api_key_env: A100_KEY",
        "headers_env: {Content-Length: A}",
        26,
        "instances[0].headers_env.Content-Length",
        "is written for each request",
    ),
    ("    api_key_env", "    api_key", 26, "instances[0].api_key", "use api_key_env"),
    (
        "meta-llama/Llama}",
        "{name: x, quantization: q9}}",
        25,
        "instances[0].serves.llama.quantization",
        "awq",
    ),
    ("name: sim-0", "name: a100-0", 27, "instances[1].name", "another instance is named 'a100-0'"),
    ("name: sim-0", "name: a/b", 27, "instances[1].name", "must match pattern"),
    ("    profile: llama-3.1-8b@l4\n", "", 27, "instances[1]", "needs a profile"),
    (PROFILE, "profile: qwen", 29, "instances[1].profile", "MODEL@HARDWARE"),
    (PROFILE, f"{PROFILE}\n    url: http://a", 27, "instances[1]", "has no url"),
    (PROFILE, f"{PROFILE}\n    speed: 0", 30, "instances[1].speed", "greater than 0"),
    ("limits:", "limits: &a\n  max_queue: 1\n  max_queue: 2", 14, "limits.max_queue", "first on line 13"),
    ("{port: 8080}", "{workers: 2}", 1, "server.workers", "state.url must be redis://"),
    ("port: 8080", "host: 'http://foo'", 1, "server.host", "without scheme and port (given: 'http://foo')"),
    ("port: 8080", "host: 'foo:80'", 1, "server.host", "without scheme and port"),
    ("port: 8080", "host: 10.0.0.300", 1, "server.host", "must be a name or an address"),
    ("port: 8080", "host: a..b", 1, "server.host", "must be a name or an address"),
    (IDLE, "forbidden_fields: [x, model]", 13, "limits.forbidden_fields[1]", "given: 'model'"),
    ("    url: http://10.0.0.3:8000\n", "", 22, "instances[0]", "(name: 'a100-0')"),
    ("limits:", "judge: {model: big, key: team-a}\nlimits:", 12, "judge.model", "unknown model 'big'"),
    ("limits:", "judge: {model: small, key: team}\nlimits:", 12, "judge.key", "did you mean 'team-a'?"),
    ("limits:", "judge: {model: small, key: team-a, share: 0}\nlimits:", 12, "judge.share", "greater than 0"),
    (
        "limits:",
        "second_look: {model: big, key: team-a}\nlimits:",
        12,
        "second_look.model",
        "unknown model 'big'",
    ),
    (
        "limits:",
        "second_look: {model: small, key: team-a, auc: 0.5}\nlimits:",
        12,
        "second_look.auc",
        "than 0.5",
    ),
    ("limits:", "server: {}\nlimits:", 12, "server", "given twice (first on line 1)"),
    ("http://10.0.0.3:8000", "http://a:0", 24, "instances[0].url", "http://HOST"),
    ("headway.db", "d" * 256, 9, "store.url", "a name of more than 255 bytes between two slashes"),
    ("    api_key_env", f"    ca_file: /etc/{'d' * 256}\n    api_key_env", 26, "instances[0].ca_file", "255"),
    ("limits:", f"ui: {{reports: {'d' * 256}}}\nlimits:", 12, "ui.reports", "255 bytes"),
    *(
        (
            "limits:",
            f"observability: {{traces: {{endpoint: '{endpoint}'}}}}\nlimits:",
            12,
            "observability.traces.endpoint",
            reason,
        )
        for endpoint, reason in (
            ("localhost:4318/v1/traces", "must be http://HOST"),
            ("grpc://localhost:4317", "must be http://HOST"),
            ("http://localhost:43180000/v1/traces", "is not a URL"),
            ("", "must be http://HOST"),
        )
    ),
]


@pytest.mark.parametrize(("old", "new", "line", "path", "reason"), MISTAKES)
def test_a_mistake_is_told_with_line_path_and_reason(
    old: str, new: str, line: int, path: str, reason: str
) -> None:
    assert old in FLEET
    with pytest.raises(ConfigError) as caught:
        loads(FLEET.replace(old, new, 1), "fleet.yaml")
    first = next(
        problem
        for problem in caught.value.problems
        if dotted(problem.path) == path and reason in problem.reason
    )
    assert first.line == line
    assert f"fleet.yaml:{line}: {path}: {first.reason}" in str(caught.value).splitlines()


@pytest.mark.parametrize("host", ["::", "::1", "fe80::1%eth0", "0.0.0.0", "localhost", "gateway-0.local"])
def test_a_host_to_listen_on(host: str) -> None:
    assert loads(FLEET.replace("port: 8080", f"host: '{host}'")).server.host == host


@pytest.mark.parametrize("field", ["model", "messages", "prompt", "input"])
def test_what_every_request_is_made_of_cannot_be_forbidden(field: str) -> None:
    with pytest.raises(ConfigError, match="part of every request"):
        loads(FLEET.replace("idle_timeout_s: 0.5", f"forbidden_fields: [{field}]"))


def test_all_problems_are_told_at_once_in_the_order_of_the_file() -> None:
    text = (
        FLEET.replace("port: 8080", "prt: 1")
        .replace("policy: price", "policy: prise")
        .replace("fallbacks: [qwen]", "fallbacks: [qwem]")
        .replace("profile: llama-3.1-8b@l4", "profile: 3")
    )
    with pytest.raises(ConfigError) as caught:
        loads(text, "f")
    lines = [line.split(": ")[0] for line in str(caught.value).splitlines()]
    assert lines == ["f:1", "f:7", "f:17", "f:29"]


@pytest.mark.parametrize(
    "text",
    [
        FLEET.replace("    api_key_env: A100_KEY", "    api_key: hunter2-hunter2"),
        FLEET.replace("A100_KEY", "hunter2-hunter2"),
        FLEET.replace("ADMIN_KEY", "hunter2-hunter2"),
        FLEET.replace("http://10.0.0.3:8000", "http://me:hunter2-hunter2@10.0.0.3:8000"),
        FLEET.replace("sqlite+aiosqlite:///headway.db", "postgresql+asyncpg://me:hunter2-hunter2@db/x"),
        FLEET.replace("sqlite+aiosqlite:///headway.db", "postgresql+asyncpg://me:hunter2/hunter2@db/x"),
        FLEET.replace('"memory://"', '"redis://:hunter2-hunter2@db"'),
        FLEET.replace('"memory://"', '"redis://db?password=hunter2-hunter2"'),
        FLEET.replace("    api_key_env: A100_KEY", "    headers: {X-Key: hunter2-hunter2}"),
        FLEET.replace("    api_key_env: A100_KEY", "    headers_env: {X-Key: hunter2-hunter2}"),
        FLEET.replace("A" * 64, "hunter2-hunter2"),
    ],
)
def test_a_secret_in_the_file_is_refused_and_never_shown(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loads(text)
    assert len(caught.value.problems) == 1
    assert "hunter2" not in str(caught.value)


def test_an_unknown_engine_profile() -> None:
    text = FLEET.replace("{qwen: qwen}", "{qwen: {name: q, profile: llama-3.1-8b@l5}}").replace(
        "kind: vllm", "kind: v"
    )
    with pytest.raises(ConfigError) as caught:
        loads(text.replace("llama-3.1-8b@l4", "llama-3.1-8b@l6"), "f")
    assert str(caught.value).splitlines()[1:] == [
        "f:29: instances[1].profile: unknown engine profile 'llama-3.1-8b@l6'",
        "f:30: instances[1].serves.qwen.profile: unknown engine profile 'llama-3.1-8b@l5'",
    ]


def test_a_fitted_engine_profile_need_not_be_known() -> None:
    text = FLEET.replace("profile: llama-3.1-8b@l4", "profile: mine@here")
    assert loads(text, any_profile=True).instances[1].profile == "mine@here"
    with pytest.raises(ConfigError, match="unknown engine profile 'mine@here'"):
        loads(text)


def test_two_keys_with_one_hash() -> None:
    row = f"    - {{name: b, sha256: {'a' * 64}}}\nstore:"
    with pytest.raises(ConfigError, match=r"f:8: auth.keys\[1\].sha256: is the hash of key 'team-a' too"):
        loads(FLEET.replace("store:", row, 1), "f")


#: Each line stands for twice the values of the one before.
ALIASES_OF_ALIASES = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 20))


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("a: [1\nb: 2", 2, "not YAML"),
        ("a:\n\t- b", 2, "not YAML"),
        ("a: 1\n---\nb: 2\n", 2, "not YAML"),
        ("- a\n- b", 1, "must be a mapping"),
        ("", 1, "is missing"),
        ("models: &m\n  - *m\n", 1, "refers to itself"),
        ("a: &a [[*a, *a], *a]\n", 1, "refers to itself"),
        ('models: [{name: m}]\nui: {reports: "\\0"}', 2, "text with a NUL or half a surrogate pair"),
        ('models:\n- name: m\n  family: "\\ud83d"', 3, "text with a NUL or half a surrogate pair"),
        (ALIASES_OF_ALIASES, 1, "has more than 1000000 values"),
        ("models: []", 1, "at least 1 item"),
        ("a: \x00", 1, "not YAML"),
        ("a: *nowhere", 1, "not YAML"),
        ("a: !!python/object:os.system x", 1, "not YAML"),
    ],
)
def test_a_text_that_is_no_fleet(text: str, line: int, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loads(text, "f.yaml")
    assert re.match(rf"f\.yaml:{line}: .*{reason}", str(caught.value))


def test_scalars_follow_yaml_1_2() -> None:
    text = (
        FLEET.replace("name: qwen\n", "name: no\n")
        .replace("[qwen]", "[no]")
        .replace("{qwen: qwen}", "{no: 12:30}")
        .replace("idle_timeout_s: 0.5", "idle_timeout_s: 5e-1")
    )
    config = loads(text)
    assert config.models[1].name == "no"
    assert config.instances[1].serves["no"].name == "12:30"
    assert config.limits.idle_timeout_s == 0.5


def test_anchors_and_merges_keep_their_lines() -> None:
    text = FLEET.replace("limits:", "limits: &l {max_queue: 1}\nprobes:\n  <<: *l\nx:", 1)
    with pytest.raises(ConfigError) as caught:
        loads(text, "f")
    assert "f:12: probes.max_queue: unknown key" in str(caught.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    missing = tmp_path / "none.yaml"
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load(missing)
    latin = tmp_path / "latin.yaml"
    latin.write_bytes(b"server: \xe9")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load(latin)
    for endless in ("/dev/zero", "/dev/full"):
        with pytest.raises(ConfigError, match=f"{endless}: is larger than 4 MiB"):
            load(endless)


def test_of_thousands_of_unknown_names_none_is_compared_with_thousands() -> None:
    models = "".join(f"- {{name: model-{at}, fallbacks: [modell-{at}]}}\n" for at in range(2000))
    with pytest.raises(ConfigError) as caught:  # it took two minutes
        loads(f"models:\n{models}")
    assert len(caught.value.problems) == 2000
