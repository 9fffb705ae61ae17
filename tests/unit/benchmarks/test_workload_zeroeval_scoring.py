r"""Answers of ZeroEval's outputs: what is read from them, and which of them are right."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from benchmarks.workloads.fetch import load
from benchmarks.workloads.sources import SOURCES
from benchmarks.workloads.sources.source import Choices
from benchmarks.workloads.sources.zeroeval_scoring import answer_in, is_right


def written(answer: object) -> str:
    """An output as models give it."""
    fields = orjson.dumps({"reasoning": "Think {hard} of it.", "answer": answer}).decode()
    return f"```json\n{fields}\n```"


@pytest.mark.parametrize(
    ("output", "answer"),
    [
        ('{"reasoning": "2 + 2", "answer": "4"}', "4"),
        ('## Step 1: $\\frac{1}{2}$\n```json\n{"reasoning": "r",\n "answer": "4"}\n``` Done.', "4"),
        ('{"reasoning": "first\nsecond", "answer": "4"}', "4"),  # a line break inside of a string
        ('{"answer": "4", "reasoning": "r"} {"answer": "5"}', "4"),
        ('{"reasoning": "r", "answer": 4}', "4"),
        ('{"reasoning": "r", "answer": [1, "a", true, null]}', "[1, 'a', True, None]"),
        ('{"reasoning": "r", "answer": null}', "None"),
        ('{"reasoning": "r", "answer": ""}', ""),
        # broken objects
        ('{"reasoning": "\\(x\\) is even", "answer": "4"}', "4"),
        ('{"reasoning": "\\(x\\)", "answer": "4", "unit": "m"}', "4"),
        ('{"reasoning": "\\(x\\)", "answer": "a\\\\nb"}', "a\\nb"),
        ('{"reasoning": "\\(x\\)", "answer": "\\pi"}', "\\pi"),
        ('{"reasoning": "r", "answer": "["a", "b"]"}', '["a", "b"]'),
        ('{"reasoning": "r", "answer": "{"a": 1, "b": 2}"\n}', '{"a": 1, "b": 2}'),
        ('{"reasoning": "r", "answer": (1, 2)}', "(1, 2)"),
        ('{"reasoning": "r",\n "answer": {1: 2}\n}\n```', "{1: 2}"),
        ("{'reasoning': 'r', 'answer': '4'}", "4"),
        ('{"reasoning": "r", "answer": "4', None),  # ended by the bound on length
        ('{"reasoning": "r', None),
        # no object
        ("So it is $\\boxed{3}$, rather $\\boxed{\\frac{1}{2}}$.", "\\frac{1}{2}"),
        ("It is \\boxed{3", None),
        ("The answer is 4.", None),
        ('{"reasoning": "r", "result": "4"}', None),
        ("", None),
        ("{" * 5000, None),
        ('{"a":' * 5000, None),
    ],
)
def test_the_answer_is_found(output: str, answer: str | None) -> None:
    assert answer_in(output) == answer


@pytest.mark.parametrize("task", ["gsm", "math-l5", "crux"])
@pytest.mark.parametrize("output", ["", "I do not know.", '{"reasoning": "18", "answer": "18', written(None)])
def test_no_answer_is_wrong(task: str, output: str) -> None:
    assert not is_right(task, output, "18")


@pytest.mark.parametrize(
    ("answer", "expected", "right"),
    [
        ("18", "# 18", True),
        (18, "# 18", True),
        (18.0, "# 18", True),
        ("18.00", "# 18", True),
        ("$18", "# 18", True),
        ("\\$1,600.00", "# 1,600", True),
        ("1600", "# 1,600", True),
        ("276{,}000", "# 276,000", True),
        ("18 eggs a day.", "# 18", True),
        ("18%", "# 18", True),
        ("She makes $18 every day", "# 18", True),
        ("9 * 2 = 18", "# 18", True),
        ("36/2", "# 18", True),
        ("\\frac{36}{2}", "# 18", True),
        ("-5", "# -5", True),
        ("\N{MINUS SIGN}5", "# -5", True),
        (["18"], "# 18", True),
        ("3 hours and 20 minutes", "# 3", True),
        ("2 1/2", "# 2", False),
        ("180", "# 18", False),
        ("-18", "# 18", False),
        ("18.5", "# 18", False),
        ("18/0", "# 18", False),
        ("eighteen", "# 18", False),
        ("9" * 5000, "# 18", False),
        ("", "# 18", False),
    ],
)
def test_gsm_compares_the_first_number(answer: object, expected: str, right: bool) -> None:
    assert is_right("gsm", written(answer), expected) is right


@pytest.mark.parametrize(
    ("answer", "expected", "right"),
    [
        ("-15", "-15", True),
        ("$-15$", "-15", True),
        ("\\(10{,}455\\)", "10455", True),
        ("10\\,455", "10455", True),
        ("\\boxed{49}", "49", True),
        ("x = 49", "49", True),
        ("49 square units.", "49", True),
        ("49\\text{ cm}^2", "49", True),
        ("49 cm^2", "49", True),
        ("60^\\circ", "60", True),
        ("60 km/h", "60", True),
        ("12/4", "3", True),
        ("-221_{3}", "-221_3", True),
        ("-221", "-221_3", True),
        ("2.5", "\\frac{5}{2}", True),
        ("5/2", "\\dfrac{5}{2}", True),
        ("2\\frac12", "\\tfrac{5}{2}", True),
        ("-\\frac{5}{2}", "-2.5", True),
        (".5", "\\frac{1}{2}", True),
        ("\\frac{\\sqrt{3}}{2}", "\\frac{\\sqrt3}2", True),
        ("\\frac{\\frac{a}{b}}{2}", "(a/b)/2", True),
        ("\\left( 3, \\frac{\\pi}{2} \\right)", "(3,\\dfrac{\\pi}{2})", True),
        ("x^{2}+1.", "$x^2 + 1$", True),
        ("\\text{even}", "even", True),
        ("15", "-15", False),
        ("45/2", "45", False),
        ("5\\sqrt{3}", "5", False),
        ("5\\pi", "5", False),
        ("5 or 7", "5", False),
        ("2^3", "2", False),
        ("0.33", "1/3", False),
        ("x^2-1", "x^2+1", False),
        ("(3, 4)", "(4, 3)", False),
        ("1/0", "1", False),
        ("", "0", False),
    ],
)
def test_mathematics_is_compared_as_it_is_meant(answer: object, expected: str, right: bool) -> None:
    assert is_right("math-l5", written(answer), expected) is right


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ('{"reasoning": "r", "answer": "\\frac{5}{2}"}', "5/2"),  # JSON's form feed, meant as \frac
        ('{"reasoning": "r", "answer": "49 \\text{ cm}"}', "49"),
        ('{"reasoning": "\\(r\\)", "answer": "\\boxed{49}"}', "49"),
        ('{"reasoning": "\\(r\\)", "answer": "5\\\\sqrt{2}"}', "5\\sqrt2"),
        ("Thus $\\boxed{49}$.", "49"),
    ],
)
def test_latex_that_is_no_json(output: str, expected: str) -> None:
    assert is_right("math-l5", output, expected)


@pytest.mark.parametrize(
    ("answer", "expected", "right"),
    [
        ("'NET'", "'NET'", True),
        ("NET", "'NET'", True),
        ('"NET"', "'NET'", True),
        ("`'NET'`", "'NET'", True),
        ("assert f('.NET') == 'NET'", "'NET'", True),
        ("[1,2]", "[1, 2]", True),
        ([1, 2], "[1, 2]", True),
        ('["a", "b"]', "['a', 'b']", True),
        ("{2: 'b', 1: 'a'}", "{1: 'a', 2: 'b'}", True),
        ({"a": None}, "{'a': None}", True),
        ("(1, 2)", "(1, 2)", True),
        ("b'1'", "b'1'", True),
        (True, "True", True),
        ("True", "True", True),
        (20, "20", True),
        ("20", "20", True),
        ("3", "'3'", True),
        ("", "''", True),
        ("''", "''", True),
        (" ", "' '", True),
        ("'a\nb'", "'a\\nb'", True),
        ("a\\nb", "'a\\nb'", True),
        ("'a\\db'", "'a\\\\db'", True),
        ("[not a list", "'[not a list'", True),
        ("net", "'NET'", False),
        ("'NET '", "'NET'", False),
        ([1, 2], "(1, 2)", False),
        ("[2, 1]", "[1, 2]", False),
        ("1", "True", False),
        ("true", "True", False),
        ("'20'", "20", False),
        ("['1']", "[1]", False),
        ({"1": 2}, "{1: 2}", False),
        ("{[1]: 2}", "{1: 2}", False),
        ("f(1)", "1", False),
        ("[" * 300, "[]", False),
        ("", "20", False),
    ],
)
def test_literals_are_compared_by_value(answer: object, expected: str, right: bool) -> None:
    assert is_right("crux", written(answer), expected) is right


def originals(root: Path) -> Path:
    """Three questions of three tasks, answered by two models; one solution is not known."""
    questions = {
        "gsm": ("question", "How many eggs?", "# 1,600", {"good": "$1,600", "poor": "16"}),
        "math-l5": ("problem", "What is half?", "\\frac{1}{2}", {"good": "0.5", "poor": "2"}),
        "crux": ("question", "assert f(1) == ??", None, {"good": "1", "poor": "2"}),
    }
    for task, (key, question, solution, answers) in questions.items():
        for model, answer in answers.items():
            item = {"dataset": task, key: question, "output": [written(answer)]}
            path = root / task / f"{model}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(orjson.dumps([item | ({} if solution is None else {"answer": solution})]))
    return root


def test_published_files_are_scored(tmp_path: Path) -> None:
    loaded = load(SOURCES["zeroeval"], [originals(tmp_path)], Choices(quality=True), {})
    assert {request.prompt: request.quality for request in loaded.requests} == {
        "How many eggs?": {"good": 1.0, "poor": 0.0},
        "What is half?": {"good": 1.0, "poor": 0.0},
        "assert f(1) == ??": None,
    }
    plain = load(SOURCES["zeroeval"], [tmp_path], Choices(), {})
    assert [request.quality for request in plain.requests] == [None] * 3


def test_native_lengths_of_published_files_are_estimates(tmp_path: Path) -> None:
    estimated = load(SOURCES["zeroeval"], [originals(tmp_path)], Choices(native_lengths=True), {})
    plain = load(SOURCES["zeroeval"], [tmp_path], Choices(), {})
    assert estimated.requests == plain.requests
    assert (estimated.lengths_estimated, plain.lengths_estimated) == (True, False)
