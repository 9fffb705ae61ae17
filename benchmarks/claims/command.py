"""`python -m benchmarks.claims write|measure|check`, see docs/results.md."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.claims.claims import CLAIMS, Claim
from benchmarks.claims.figure import attainment
from benchmarks.claims.measured import measured
from benchmarks.claims.tables import differences
from benchmarks.pages.marked import replaced

RESULTS = Path("docs/claims.json")
#: The draws of `check`, and the difference in attainment that other floating-point hardware may make.
_CHECKED_SEEDS = 1
_SAME = 0.005


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0; 1 where `check` finds a difference or a comparison failed; 2 for bad arguments or files."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.claims", description=__doc__)
    parser.add_argument("do", choices=("write", "measure", "check"))
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(CLAIMS)} (default: all)")
    parser.add_argument("--policies", metavar="A,B", help="measure these alone, keep the others")
    given = parser.parse_args(arguments)
    unknown = set(given.names) - CLAIMS.keys()
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    names = given.names or list(CLAIMS)
    chosen = tuple(given.policies.split(",")) if given.policies else None
    if chosen and not all(set(chosen) & set(CLAIMS[name].policies) for name in names):
        parser.error(f"a table has none of these policies: {given.policies}")
    try:
        if given.do == "write":
            write(Path(), json.loads(RESULTS.read_text(encoding="utf-8")))
            return 0
        kept = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
        found = [_compared(name, chosen, kept, check=given.do == "check") for name in names]
    except (OSError, ValueError) as error:
        print(f"benchmarks.claims: {error}", file=sys.stderr)
        return 2
    if given.do == "measure":
        RESULTS.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
        write(Path(), kept)
    return int(not all(found))


def write(root: Path, results: dict[str, Any]) -> None:
    """Put every table that has results into its page, and draw the figures. Raises OSError and ValueError."""
    for name, claim in CLAIMS.items():
        if name in results:
            page = root / claim.page
            text = page.read_text(encoding="utf-8")
            page.write_text(replaced(text, f"claim {name}", claim.write(results[name])), encoding="utf-8")
            if claim.figure is not None:
                (root / claim.figure).write_text(attainment(results[name]), encoding="utf-8")


def _compared(name: str, chosen: tuple[str, ...] | None, kept: dict[str, Any], *, check: bool) -> bool:
    """Run a claim's comparison, and set its figures in `kept` or compare them with these. False if that fails."""
    claim = CLAIMS[name]
    policies = tuple(each for each in claim.policies if chosen is None or each in chosen)
    with TemporaryDirectory(prefix="headway-claims-") as folder:
        command = claim.command(policies, folder, seeds=_CHECKED_SEEDS if check else None)
        if subprocess.run([sys.executable, "-m", "router.cli", *command], check=False).returncode:  # noqa: S603
            return False
        found = measured(json.loads((Path(folder) / "report.json").read_text(encoding="utf-8")))
    if check:
        unlike = list(differences(kept[name], found, _SAME))
        print("\n".join(unlike) or f"{name}: as told")
        return not unlike
    kept[name] = _merged(claim, kept.get(name, {}), found)
    return True


def _merged(claim: Claim, old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """What was measured anew, and of the rest what was measured before, in the claim's order."""
    policies = {**old.get("policies", {}), **new["policies"]}
    ordered = {name: policies[name] for name in claim.policies if name in policies}
    return {**old, **new, "policies": ordered}
