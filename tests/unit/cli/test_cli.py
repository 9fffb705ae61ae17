"""Exit codes of `headway`, and that a bad input is one clear line on stderr."""

import os
import re
import shlex
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import router
from backends import scanning
from predictors import kernels
from router import cli
from tests.commands import Done, Headway

FLEET = """\
models: [{name: llama}, {name: qwen}]
instances:
  - {name: a, kind: vllm, url: "http://h:1", api_key_env: HEADWAY_TEST_UNSET_KEY, serves: {llama: l}}
"""


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.yaml"
    path.write_text(FLEET, encoding="utf-8")
    return path


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A command `probe` whose `run` executes the line given as its argument."""
    (tmp_path / "headway_probe.py").write_text(
        "def add_arguments(parser):\n    parser.add_argument('line')\n"
        "def run(args):\n    scope = {}\n    exec(args.line, scope)\n    return scope.get('code', 0)\n",
        encoding="utf-8",
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(cli.COMMANDS, "probe", cli.Command("headway_probe", "test"))
    return "probe"


def refused(headway: Headway, *words: object) -> str:
    """Run what exits with 2 and says so on stderr only; the message."""
    done = headway(*words)
    assert (done.code, done.out) == (2, "")
    return done.err


@pytest.mark.parametrize("arguments", [[], ["fly"], ["train", "length"], ["check"], ["check", "--conf"]])
def test_usage_errors_exit_2(headway: Headway, arguments: list[str]) -> None:
    assert refused(headway, *arguments).startswith("usage: headway")


def test_an_argument_that_is_not_utf_8_is_refused(headway: Headway) -> None:
    said = refused(headway, "demo", "--db", os.fsdecode(b"a\xffb"))
    assert said == "headway: the argument 'a\\udcffb' is not UTF-8 text\n"


@pytest.mark.parametrize("seed", ["-1", "2147483648", "1.5"])
@pytest.mark.parametrize(
    "words",
    [
        "compare --first-seed",
        "evaluate --seed",
        "experiment heterogeneity --seed",
        "plan --seed",
        "train length --seed",
        "workload build --seed",
    ],
)
def test_a_seed_is_one_that_all_libraries_take(headway: Headway, words: str, seed: str) -> None:
    said = refused(headway, *words.split(), seed)
    assert f"seed: must be a whole number from 0 to 2147483647, not '{seed}'" in said


def test_version(headway: Headway) -> None:
    assert headway.out("--version") == f"headway {router.__version__}\n"


def test_help_lists_every_command(headway: Headway) -> None:
    printed = headway.out("--help")
    for name in cli.COMMANDS:
        assert re.search(rf"\n    {name}\s", printed)


@pytest.mark.parametrize("name", sorted(cli.COMMANDS))
def test_every_command_has_help(name: str, headway: Headway) -> None:
    assert f"usage: headway {name}" in headway.out(name, "--help")


def test_check_of_a_good_fleet(fleet: Path, headway: Headway) -> None:
    printed = " ".join(headway.out("check", "--config", fleet).split())
    assert "HEADWAY_TEST_UNSET_KEY is not set" in printed
    assert "model qwen: no instance serves it" in printed
    assert "fleet.yaml: ok" in printed
    assert kernels.description() in printed
    assert scanning.description() in printed


def test_check_as_json(fleet: Path, headway: Headway) -> None:
    found = headway.json("check", "--config", fleet)
    assert (found["ok"], found["models"], found["instances"]) == (True, ["llama", "qwen"], ["a"])
    assert found["compiled_kernels"] == (kernels.WHY_NOT_NATIVE is None)
    assert found["compiled_scanning"] == (scanning.WHY_NOT_NATIVE is None)
    assert any("HEADWAY_TEST_UNSET_KEY" in warning for warning in found["warnings"])


def test_a_bad_fleet_is_told_with_its_lines(fleet: Path, headway: Headway) -> None:
    fleet.write_text(FLEET + "defaults: {policy: fastest}\nlimit: {}\n", encoding="utf-8")
    lines = refused(headway, "check", "--config", fleet).splitlines()
    assert len(lines) == 2
    assert f"{fleet}:4: defaults.policy: unknown policy 'fastest'" in lines[0]
    assert f"{fleet}:5: limit: unknown key (did you mean 'limits'?)" in lines[1]


def test_a_missing_fleet_is_one_line(tmp_path: Path, headway: Headway) -> None:
    message = refused(headway, "check", "--config", tmp_path / "none.yaml")
    assert message == f"headway: {tmp_path}/none.yaml: cannot be read: No such file or directory\n"


def test_exit_code_of_the_command(command: str) -> None:
    assert cli.main([command, "code = 5"]) == 5


def test_interrupt_is_quiet(command: str, headway: Headway) -> None:
    assert headway(command, "raise KeyboardInterrupt") == Done(130, "", "")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("open('/nonexistent/x')", "headway: /nonexistent/x: No such file or directory\n"),
        ("raise OSError(98, 'Address already in use')", "headway: Address already in use\n"),
        ("raise TimeoutError", "headway: TimeoutError\n"),
        (
            "raise ModuleNotFoundError('no', name='matplotlib.pyplot')",
            f"headway: probe needs matplotlib.pyplot: make dev, or {sys.prefix}/bin/pip install -e '.[bench]', in Headway's checkout\n",
        ),
        (
            "raise ModuleNotFoundError('no', name='networkx')",
            f"headway: probe needs networkx: make dev, or {sys.prefix}/bin/pip install -e '.[plan]', in Headway's checkout\n",
        ),
    ],
)
def test_known_errors_are_one_line(command: str, headway: Headway, line: str, message: str) -> None:
    assert refused(headway, command, line) == message


@pytest.mark.parametrize(
    ("missing", "extra"), [("jinja2", "train"), ("sklearn", "train"), ("pyarrow", "export")]
)
def test_a_command_that_needs_more_names_its_own_extra(
    command: str,
    headway: Headway,
    monkeypatch: pytest.MonkeyPatch,
    missing: str,
    extra: str,
) -> None:
    monkeypatch.setitem(cli.COMMANDS, command, replace(cli.COMMANDS[command], extra="train"))
    told = refused(headway, command, f"raise ModuleNotFoundError('no', name={missing!r})")
    assert f"-e '.[{extra}]'" in told


@pytest.mark.parametrize(("missing", "extra"), [("jinja2", "bench"), ("sklearn", "train"), ("numpy", None)])
def test_a_program_of_the_benchmarks_names_the_extra_that_it_needs(
    tmp_path: Path, missing: str, extra: str | None
) -> None:
    (tmp_path / "sitecustomize.py").write_text(f"import sys; sys.modules[{missing!r}] = None")
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.pickers", "--out", tmp_path / "out"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{root}"},
    )
    if extra is None:
        assert "Traceback" in done.stderr
        return
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"benchmarks.pickers needs {missing}")
    assert f"-e '.[{extra}]'" in line


@pytest.mark.parametrize("line", ["raise ValueError('a bug')", "import headway_no_such_module"])
def test_a_bug_keeps_its_traceback(command: str, line: str) -> None:
    with pytest.raises((ValueError, ModuleNotFoundError)):
        cli.main([command, line])


def test_only_the_chosen_command_is_imported() -> None:
    code, _, errors = _python(
        "import sys; from router import cli; cli.main(['check', '--schema']); "
        "bad = {'uvicorn', 'sqlalchemy', 'torch', 'numpy', 'benchmarks', 'router.demo', 'router.serve'} & set(sys.modules); "
        "sys.exit(str(sorted(bad)) if bad else 0)"
    )
    assert (code, errors) == (0, "")


def test_no_help_waits_for_packages_that_train() -> None:
    code, _, errors = _python(
        "import sys; from router import cli\n"
        "for name in cli.COMMANDS:\n"
        "    try:\n        cli.main([name, '--help'])\n"
        "    except SystemExit: pass\n"
        "bad = {'torch', 'sklearn', 'scipy'} & set(sys.modules); "
        "sys.exit(str(sorted(bad)) if bad else 0)"
    )
    assert (code, errors) == (0, "")


def _shell(command: str) -> tuple[int, str, str]:
    """The exit code, the output and the errors of a line of bash."""
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=100, check=False)
    return done.returncode, done.stdout, done.stderr


def _python(program: str) -> tuple[int, str, str]:
    return _shell(f"{sys.executable} -c {shlex.quote(program)}")


def test_a_reader_that_leaves_is_no_error() -> None:
    command = f"{sys.executable} -m router.cli check --schema | head -n 1; echo ${{PIPESTATUS[0]}}"
    assert _shell(command) == (0, "{\n0\n", "")


def test_a_reader_that_leaves_a_table_is_no_error(fleet: Path) -> None:
    command = f"{sys.executable} -m router.cli check --config {fleet} | true; echo ${{PIPESTATUS[0]}}"
    assert _shell(command) == (0, "0\n", "")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_streams_may_be_closed(closed: str) -> None:
    """Each number below 3 is taken, so that nothing else gets it."""
    program = (
        "import os; from router import cli; cli.main(['check', '--schema']); os._exit(min(os.pipe()) < 3)"
    )
    command = f"{sys.executable} -c {shlex.quote(program)} {closed} | cat >/dev/null; exit ${{PIPESTATUS[0]}}"
    assert _shell(command) == (0, "", "")


def test_a_character_that_the_terminal_lacks_is_a_question_mark() -> None:
    program = "from router import cli; cli.main(['check', '--schema']); print('\u2585')"
    _, out, _ = _shell(f"PYTHONIOENCODING=ascii {sys.executable} -c {shlex.quote(program)}")
    assert out.endswith("}\n?\n")


def test_check_warns_of_hardware_without_a_profile(tmp_path: Path, headway: Headway) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(
        "models: [{name: llama-3.1-8b}]\n"
        "instances: [{name: a, kind: vllm, url: 'http://10.0.0.2', hardware: rtx-9999, serves: {llama-3.1-8b: x}}]\n"
    )
    out = headway.out("check", "--config", path)
    assert "there is no engine profile llama-3.1-8b@rtx-9999" in out
    assert "cannot simulate this fleet: instance a: there is no engine profile" in out


@pytest.mark.parametrize(
    ("served", "not_simulated"),
    [
        ("profile: llama-3.1-8b@a100-80g, serves: {llama-3.1-8b: x, adapter: y}", None),
        ("serves: {llama-3.1-8b: {name: x, profile: llama-3.1-8b-awq@l4}}", None),
        ("emulates: ollama, serves: {llama-3.1-8b: {name: x, profile: llama-3.1-8b-q4_K_M@l4}}", None),
        ("profile: llama-3.1-8b@a30, serves: {llama-3.1-8b: x, qwen2.5-7b: y}", "do not fit together"),
    ],
)
def test_check_says_whether_compare_can_simulate_the_fleet(
    tmp_path: Path, headway: Headway, served: str, not_simulated: str | None
) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(
        "models: [{name: llama-3.1-8b}, {name: adapter}, {name: qwen2.5-7b}]\n"
        f"instances: [{{name: a, kind: emulated, {served}}}]\n"
    )
    found = headway.json("check", "--config", path)["not_simulated"]
    assert found is None if not_simulated is None else not_simulated in found


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["serve", "--config", "f", "--port", "abc"], "argument --port: invalid int value: 'abc'"),
        (["demo", "--speed", "fast"], "argument --speed: invalid positive value: 'fast'"),
        (["demo", "--speed", "-1"], "argument --speed: must be above 0 (given: '-1')"),
        (["emulate", "--kind", "steam"], "invalid choice: 'steam'"),
        (["emulate", "--kind", "vllm", "--profile", "llama-3.1-8b@l4", "--port", "-5"], "(given: -5)"),
        (
            ["workload", "build", "poisson", "--rate", "-3", "--out", "f"],
            "--rate: must be above 0 (given: -3)",
        ),
        (
            ["workload", "build", "poisson", "--rate", "1", "--limit", "2", "--out", ""],
            "cannot write .: Is a directory",
        ),
        (
            ["workload", "from-store", "--store", "x", "--limit", "9" * 20, "--out", "f"],
            "argument --limit: must be at most 9007199254740991",
        ),
    ],
)
def test_an_argument_that_is_wrong_is_shown(arguments: list[str], told: str, headway: Headway) -> None:
    assert told in headway.err(*arguments, code=2)


def test_sigterm_ends_the_first_process_of_a_container_while_it_starts() -> None:
    """The kernel drops it there if there is no handler."""
    code, _, _ = _python(
        "import os, signal\nfrom router import cli, serve\n"
        "own, os.getpid = os.getpid(), lambda: 1\n"
        "serve.run = lambda args: os.kill(own, signal.SIGTERM)\n"
        "cli.main(['serve', '--config', 'fleet.yaml'])\n"
    )
    assert code == 128 + signal.SIGTERM
