"""`python -m benchmarks.NAME`: bad input is one line on standard error before any work, Ctrl-C is no traceback."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from benchmarks import cost_order
from benchmarks.calibrate import measure
from benchmarks.pickers import __main__ as pickers
from benchmarks.scaling import __main__ as scaling
from benchmarks.terminal import status_of

Main = Callable[[Sequence[str]], int]


@pytest.mark.parametrize(
    ("main", "words"),
    [
        (cost_order.main, ()),
        (measure.main, ("--url", "http://127.0.0.1:9", "--model", "m", "--rates", "1")),
        (pickers.main, ("--data", "not-there")),
        (scaling.main, ("--data", "not-there")),
    ],
    ids=["cost_order", "measure", "pickers", "scaling"],
)
def test_an_out_that_is_a_file_is_refused_first(
    main: Main, words: Sequence[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "file"
    out.touch()
    assert main([*words, "--out", str(out)]) == 2
    told = capsys.readouterr().err
    assert "cannot write" in told
    assert told.count("\n") == 1


@pytest.mark.parametrize(
    ("main", "words", "reason"),
    [
        (cost_order.main, ("--requests", "0"), "a whole number of at least 1"),
        (measure.main, ("--seconds", "-1"), "must be above 0"),
        (measure.main, ("--prompt-tokens", "9"), "must be two whole numbers"),
        (pickers.main, ("--parts", "0"), "a whole number of at least 1"),
        (scaling.main, ("--draws", "0"), "a whole number of at least 1"),
    ],
)
def test_a_number_out_of_range_is_refused(
    main: Main, words: Sequence[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refusal:
        main(words)
    assert refusal.value.code == 2
    assert reason in capsys.readouterr().err


def test_an_interrupted_program_ends_with_130() -> None:
    def interrupted() -> int:
        raise KeyboardInterrupt

    assert status_of(interrupted) == 130
