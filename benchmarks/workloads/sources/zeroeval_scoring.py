r"""Right or wrong: answers of ZeroEval's published outputs, scored from their texts.

The prompt asks for JSON with the fields reasoning and answer. ZeroEval (src/evaluation/math_eval.py, crux_eval.py
and eval_utils.py) reads the first complete object, else what stands behind the key `answer` of a broken one, else,
for some models, a LaTeX box. GSM8K and MATH answers are right there if their first number is that of the solution,
commas and $ left out and a/b worked out; CRUXEval's if the texts agree, quotes left out. Nothing readable is wrong.

Here the same answers are read, with these differences. MATH is stricter: behind the number only a unit may stand,
so 5\sqrt{3} and "5 or 7" are not 5 (5x is, x may be a unit); other expressions are right if they are written alike
once spaces, \left, \dfrac, \text, needless braces and the like are normalised. CRUXEval is more lenient: equal
Python literals are right however they are written, and so is the completed assertion.

Not seen: that two expressions are the same number or formula (\sqrt{8} and 2\sqrt{2}, 2^3 and 8, 1.2 \times 10^5,
x+1 and 1+x), rounding (0.33 for 1/3), numbers in words, sets in another order, a wrong unit or base.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

_OBJECTS = json.JSONDecoder(strict=False)  # models write line breaks inside of strings
_KEY = r"""["']answer["']\s*:\s*"""
#: A string in a broken object ends at the quote behind which the object or the field ends.
_QUOTED = re.compile(_KEY + r"""(["'])(.*?)\1\s*(?:,\s*)?(?:\}|["']\w+["']\s*:|```|\Z)""", re.DOTALL)
_BARE = re.compile(_KEY + r"""([^\s"'].*?)\s*,?\s*(?:\}\s*(?:```|\Z)|\n|\Z)""", re.DOTALL)


def is_right(task: str, output: str, expected: str) -> bool:
    """Whether `output`, all that a model wrote, gives the set's answer to a question of `task` (gsm, math-l5,
    crux; a KeyError for another)."""
    same = _SAME[task]
    answer = answer_in(output)
    return answer is not None and same(answer, expected)


def answer_in(output: str) -> str | None:
    """The field answer of what a model wrote; a value that is not a text as a Python literal. None if there is
    no answer."""
    for place in re.finditer(r"\{", output):
        try:
            found, _ = _OBJECTS.raw_decode(output, place.start())
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict) and "answer" in found:
            answer = found["answer"]
            return answer if isinstance(answer, str) else repr(answer)
    if quoted := _QUOTED.search(output):
        return _unescaped(quoted[2])
    if bare := _BARE.search(output):
        return bare[1]
    return _boxed(output)


def _unescaped(text: str) -> str:
    """A string of JSON without its escapes, as it is if they are not JSON's (LaTeX in a broken object)."""
    try:
        return str(json.loads(f'"{text}"', strict=False))
    except ValueError:
        return text


def _boxed(text: str) -> str | None:
    r"""What the last \boxed{...} holds."""
    _, box, rest = text.rpartition(r"\boxed{")
    depth = 1
    for place, character in enumerate(rest if box else ""):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return rest[:place]
    return None


# --- numbers and expressions ------------------------------------------------------------------------------
#: LaTeX that a JSON string turned into control characters: \frac, \text, \boxed, \right.
_CONTROLS = {"\f": "\\f", "\t": "\\t", "\b": "\\b", "\r": "\\r"}
_CONTROL = re.compile(r"[\f\t\b\r](?=[a-z])")
_WRITTEN_ALIKE = (
    ("\N{MINUS SIGN}", "-"),
    (r"\dfrac", r"\frac"),
    (r"\tfrac", r"\frac"),
    (r"\!", ""),
    (r"\$", ""),
    ("$", ""),
    (r"\%", ""),
    ("%", ""),
    (r"^\circ", ""),
    (r"^{\circ}", ""),
    ("\N{DEGREE SIGN}", ""),
    *((mark, "") for mark in (r"\left", r"\right", r"\(", r"\)", r"\[", r"\]")),
    *((space, " ") for space in (r"\;", r"\:", "\\ ", "~")),
)
_THOUSANDS = re.compile(r"(?<=\d)(?:\\,|,|\{,\})(?=\d{3}(?!\d))")
_WORDS = re.compile(r"\\(?:text|textbf|mathrm|mathbf|mbox)\s*\{([^{}]*)\}")
_INDEX = re.compile(r"_\s*\{(\w+)\}")
_NEEDLESS_BRACES = re.compile(r"(\^|\\sqrt)\s*\{(\w)\}")
_FRACTION = re.compile(r"\\frac\s*(?:\{([^{}]*)\}|(\d))\s*(?:\{([^{}]*)\}|(\d))")
_DECIMAL = r"(?:\d+(?:\.\d+)?|\.\d+)"
_NUMBER = re.compile(
    rf"(?P<sign>-?)\s*(?:(?P<whole>\d+)\s+(?=\d+\s*/\s*\d))?(?P<top>{_DECIMAL})(?:\s*/\s*(?P<bottom>{_DECIMAL}))?"
)
#: A number alone, with words before it, its base (221_3) or its unit (12 cm^2, 60 km/h) behind it.
_ALONE = re.compile(
    rf"[A-Za-z\s,:']*{_NUMBER.pattern}(?:_\w+)?\s*(?:[A-Za-z][A-Za-z\s./]*(?:\^?[23])?)?[\s.]*"
)


def _normal(text: str) -> str:
    """An answer with what can be written in several ways written in one; spaces are kept."""
    text = _CONTROL.sub(lambda found: _CONTROLS[found[0]], text)
    text = _boxed(text) or text
    for one, other in _WRITTEN_ALIKE:
        text = text.replace(one, other)
    text = _THOUSANDS.sub("", text).replace(r"\,", " ")
    text = _WORDS.sub(r" \1 ", text)
    text = _NEEDLESS_BRACES.sub(r"\1\2", _INDEX.sub(r"_\1", text))
    changed = 1
    while changed:  # inner fractions first
        text, changed = _FRACTION.subn(_with_slash, text)
    return text.strip().strip("#").strip().rstrip(".")


def _with_slash(fraction: re.Match[str]) -> str:
    top, bottom = (
        part if re.fullmatch(r"\w+|" + _DECIMAL, part) else f"({part})"
        for part in (
            (fraction[1] if fraction[2] is None else fraction[2]).strip(),
            (fraction[3] if fraction[4] is None else fraction[4]).strip(),
        )
    )
    return f" {top}/{bottom}"  # the space keeps 3\frac{1}{2} a mixed number


def _value(number: re.Match[str] | None) -> Fraction | None:
    if number is None:
        return None
    try:
        value = Fraction(number["whole"] or 0) + Fraction(number["top"]) / Fraction(number["bottom"] or 1)
    except (ValueError, ZeroDivisionError):  # ValueError: more digits than Python turns into a number
        return None
    return -value if number["sign"] else value


def _same_number(answer: str, expected: str) -> bool:
    """Whether the first numbers agree, of an equation the first behind its last sign."""
    ours, theirs = (_value(_NUMBER.search(_normal(text).rpartition("=")[2])) for text in (answer, expected))
    return ours is not None and ours == theirs


def _same_mathematics(answer: str, expected: str) -> bool:
    """Whether both are written alike, or are the same number with or without a unit."""
    ours, theirs = _normal(answer), _normal(expected)
    if "".join(ours.split()) == "".join(theirs.split()):
        return True
    values = [_value(_ALONE.fullmatch(text.rpartition("=")[2])) for text in (ours, theirs)]
    return values[0] is not None and values[0] == values[1]


# --- Python literals --------------------------------------------------------------------------------------
_NO_LITERAL = object()


def _same_literal(answer: str, expected: str) -> bool:
    """Whether both are the same Python literal; a string may lack its quotes or have its escapes worked out."""
    wanted = _literal(expected)
    bare = answer.strip().strip("`").strip()
    for text in (answer, bare, bare.rpartition("==")[2].strip()):
        found = _literal(text)
        if wanted is not _NO_LITERAL and type(found) is type(wanted) and found == wanted:
            return True
        if isinstance(wanted, str) and _unquoted(text) in (wanted, _unquoted(expected)):
            return True
    return False


def _literal(text: str) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an unknown escape in a string is a matter of taste here
            return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return _NO_LITERAL


def _unquoted(text: str) -> str:
    quoted = len(text) >= 2 and text[0] == text[-1] and text[0] in "'\""
    return text[1:-1] if quoted else text


_SAME: Mapping[str, Callable[[str, str], bool]] = {
    "gsm": _same_number,
    "math-l5": _same_mathematics,
    "crux": _same_literal,
}
