"""`python -m benchmarks.claims write|measure|check`, see docs/results.md."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.claims import experiments
from benchmarks.claims.claims import CLAIMS, DRAWINGS, RESULTS, TABLES, Claim
from benchmarks.claims.tables import differences, measured
from benchmarks.pages.marked import replaced
from benchmarks.result_lines import result_lines
from benchmarks.terminal import status_of
from benchmarks.training.about import DECIDING, commit
from predictors.learned.artifact import load, path_of
from predictors.learned.models import KINDS

#: The draws of `check`, and the difference in attainment that other floating-point hardware may make.
_CHECKED_SEEDS = 1
_SAME = 0.005


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0; 1 where `check` finds a difference or a comparison failed; 2 for bad arguments or files."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.claims", description=__doc__)
    parser.add_argument("do", choices=("write", "measure", "check"))
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"of {', '.join((*CLAIMS, *experiments.EXCERPTS))} (default: all, but what needs published sets only where"
        " HEADWAY_DATA is set)",
    )
    parser.add_argument("--policies", metavar="A,B", help="measure these alone, keep the others")
    given = parser.parse_intermixed_args(arguments)
    chosen = tuple(given.policies.split(",")) if given.policies else None
    names = given.names or _all(given.do, chosen)
    unknown = set(names) - {*CLAIMS, *experiments.EXCERPTS}
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    if chosen and not all(name in CLAIMS and set(chosen) & set(CLAIMS[name].policies) for name in names):
        parser.error(f"a table has none of these policies: {given.policies}")
    try:
        if given.do == "write":
            write(Path())
            return 0
        results = Path(RESULTS)
        kept = _read(results) if results.exists() else {}
        check = given.do == "check"
        found = [
            _compared(name, chosen, kept, check=check) if name in CLAIMS else _experiment(name, check=check)
            for name in names
        ]
        if given.do == "measure":
            results.write_text(result_lines(kept), encoding="utf-8")
            write(Path())
    except (OSError, ValueError, LookupError, subprocess.CalledProcessError) as error:
        print(f"benchmarks.claims: {error}", file=sys.stderr)
        return 2
    return int(not all(found))


def _all(do: str, policies: tuple[str, ...] | None) -> list[str]:
    """Without published sets an experiment has only a part of its figures, which can be checked; a training has other ones."""
    data = bool(os.environ.get("HEADWAY_DATA"))
    names = [name for name, claim in CLAIMS.items() if data or not claim.full]
    if policies is None and (data or do == "check"):
        names += [name for name in experiments.EXCERPTS if data or name != experiments.LATENCY_MODEL]
    return names


def write(root: Path) -> None:
    """Put every table into its page, and draw the figures. Raises OSError, and ValueError for results that lack a scenario
    and for a page without marks."""
    results = {file: _read(root / file) for file in {table.results for table in TABLES}}
    if missing := CLAIMS.keys() - results[RESULTS].keys():
        raise ValueError(f"to be measured first: {', '.join(sorted(missing))}")
    for table in TABLES:
        page = root / table.page
        text = table.write(results[table.results])
        text = replaced(page.read_text(encoding="utf-8"), f"claim {table.name}", text)
        page.write_text(text, encoding="utf-8")
    for file, draw in DRAWINGS.items():
        (root / file).write_text(draw(results[RESULTS]), encoding="utf-8")


def _read(results: Path) -> Any:
    if results.is_dir():
        return {kind: load(path_of(results, kind)).about for kind in KINDS}
    return json.loads(results.read_text(encoding="utf-8"))


def _compared(name: str, chosen: tuple[str, ...] | None, kept: dict[str, Any], *, check: bool) -> bool:
    """Run a claim's comparison, and set its figures in `kept` or compare them with these. False if that fails. Raises ValueError
    if there is nothing to compare with."""
    claim = CLAIMS[name]
    if check and name not in kept:
        raise ValueError(f"to be measured first: {name}")
    policies = tuple(each for each in claim.policies if chosen is None or each in chosen)
    with TemporaryDirectory(prefix="headway-claims-") as folder:
        command = claim.command(name, policies, seeds=_CHECKED_SEEDS if check else None)
        headway = [sys.executable, "-m", "router.cli", *command, "--out", folder]
        if subprocess.run(headway, check=False).returncode:  # noqa: S603
            return False
        report = json.loads((Path(folder) / "report.json").read_text(encoding="utf-8"))
    found = measured(report, claim.measures)
    if check:
        return _as_told(name, differences(kept[name], found, _SAME))
    for policy in found["policies"].values():
        policy["commit"] = commit(DECIDING)[:7]
    kept[name] = _merged(claim, kept.get(name, {}), found)
    return True


def _experiment(name: str, *, check: bool) -> bool:
    """Run an experiment, and keep its figures or compare them with those that are kept. False if they differ. Raises
    ValueError without published sets, if it is to be kept."""
    if not check and not os.environ.get("HEADWAY_DATA"):
        raise ValueError(f"{name} is measured with published sets: set HEADWAY_DATA")
    file = Path(experiments.KEPT)
    told, found = _read(file), experiments.measured(name)
    if check:
        return _as_told(name, experiments.differences(told[name], found))
    file.write_text(result_lines({**told, name: found}), encoding="utf-8")
    return True


def _as_told(name: str, differences: Iterable[str]) -> bool:
    unlike = list(differences)
    print("\n".join(unlike) or f"{name}: as told")
    return not unlike


def _merged(claim: Claim, old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """What was measured anew, and of the rest what was measured before, in the claim's order. Of two clairvoyant schedules
    the better one is kept: a search starts from the best of the policies that are measured."""
    policies = {**old.get("policies", {}), **new["policies"]}
    ordered = {name: policies[name] for name in claim.policies if name in policies}
    merged = {**old, **new, "policies": ordered}
    if "oracle" in merged:
        before = old.get("oracle", {})
        merged["oracle"] = {rate: max(met, before.get(rate, 0.0)) for rate, met in merged["oracle"].items()}
    return merged


if __name__ == "__main__":
    sys.exit(status_of(main))
