"""What Headway depends on: a bill of materials, and checks of the pins in requirements/runtime.txt.

    python scripts/supply_chain.py sbom     CycloneDX JSON on standard output
    python scripts/supply_chain.py audit    exit 1 for a pin that must not be shipped

The audit checks that every pin is exact and has hashes, that what is installed is what is pinned, and that every licence is
allowed. It asks the package index for yanked releases and osv.dev for known vulnerabilities. A service that cannot be
reached is named in one line and fails nothing, so that a closed network does not stop a build. Standard library only.
"""

from __future__ import annotations

import json
import os
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.client import HTTPException
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PINS = ROOT / "requirements" / "runtime.txt"
INDEX_URL = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple")
ADVISORIES_URL = os.environ.get("HEADWAY_ADVISORIES_URL", "https://api.osv.dev/v1/querybatch")
TIMEOUT_S = 5.0

#: SPDX names of what may be shipped beside Apache-2.0 code.
LICENCES = frozenset(
    {
        "0BSD",
        "Apache-2.0",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "CC0-1.0",
        "ISC",
        "MIT",
        "MPL-2.0",
        "PSF-2.0",
        "Zlib",
    }
)
# Older metadata says the licence in free words.
_SPDX_OF = {
    "3-clause bsd license": "BSD-3-Clause",
    "apache 2": "Apache-2.0",
    "apache 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "mit license": "MIT",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "python software foundation license": "PSF-2.0",
}
#: Advisories that do not touch Headway, with the reason. An entry is removed when its pin moves on.
ACCEPTED: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class Pin:
    """One line of the file. `marker` says where it applies, empty for everywhere."""

    name: str
    version: str
    marker: str = ""
    hashes: tuple[str, ...] = field(default=(), repr=False)


class PinError(ValueError):
    """A line that is no exact pin."""


def read_pins(text: str) -> list[Pin]:
    """The pins of a requirements file. Raises PinError for a line of another form."""
    pins = []
    for line in text.replace("\\\n", " ").splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        found = re.fullmatch(
            r"([a-z0-9.-]+)==([\w.!+-]+)(?: ; ([^#]+?))?((?:\s+--hash=sha256:[0-9a-f]{64})*)\s*", line
        )
        if found is None:
            raise PinError(f"not an exact pin: {line.split('--hash')[0].strip()!r}")
        name, version, marker, hashes = found.groups()
        pins.append(Pin(name, version, marker or "", tuple(re.findall(r"sha256:(\w+)", hashes))))
    return pins


def installed(pin: Pin) -> tuple[str, str, list[str]] | None:
    """Version, licence expression and required names of an installed package; None where it is not installed."""
    try:
        found = distribution(pin.name)
    except PackageNotFoundError:
        return None
    metadata = found.metadata
    classifiers = [
        each.split(" :: ")[-1]
        for each in metadata.get_all("Classifier") or []
        if each.startswith("License ::")
    ]
    words = metadata.get("License-Expression") or metadata.get("License") or ""
    if not words or "\n" in words or len(words) > 100:  # a whole text
        words = " AND ".join(_SPDX_OF.get(each.lower(), each) for each in classifiers)
    needs = [re.match(r"[\w.-]+", each) for each in found.requires or [] if "extra ==" not in each]
    names = sorted({re.sub(r"[-_.]+", "-", each.group()).lower() for each in needs if each})
    return found.version, _SPDX_OF.get(words.lower(), words), names


def pin_faults(pins: Sequence[Pin]) -> Iterator[str]:
    """What is wrong with the pins as far as this machine tells."""
    for pin in pins:
        if not pin.hashes:
            yield f"{pin.name}=={pin.version} has no hash"
        here = installed(pin)
        if here is None:
            if not pin.marker:
                yield f"{pin.name} is pinned and not installed here: run make dev"
            continue
        version, licence, _ = here
        if version != pin.version:
            yield f"{pin.name} {version} is installed, {pin.version} is pinned: run make dev"
        unknown = sorted(set(re.findall(r"[^\s()]+", licence)) - LICENCES - {"AND", "OR"})
        if unknown or not licence:
            yield f"{pin.name}: licence {licence or 'not stated'!r} is not among those allowed"


def _ask(url: str, body: object = None, accept: str = "application/json") -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Accept": accept, "Content-Type": "application/json"})  # noqa: S310
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310 (the two URLs above)
        return json.load(answer)


def yanked(pins: Sequence[Pin]) -> list[str]:
    """Pins whose release was withdrawn. Raises OSError or ValueError where the index does not answer or tells nothing."""

    def of(pin: Pin) -> str | None:
        page = _ask(f"{INDEX_URL.rstrip('/')}/{pin.name}/", accept="application/vnd.pypi.simple.v1+json")
        of_release = [each for each in page["files"] if each["hashes"].get("sha256") in pin.hashes]
        reasons = [each.get("yanked", False) for each in of_release]
        if not reasons or not all(reasons):
            return None
        return f"{pin.name}=={pin.version} was yanked: {reasons[0] if isinstance(reasons[0], str) else 'no reason given'}"

    first = of(pins[0])  # alone: an index that does not answer is waited for once
    with ThreadPoolExecutor(8) as pool:
        return [fault for fault in (first, *pool.map(of, pins[1:])) if fault is not None]


def vulnerable(pins: Sequence[Pin]) -> list[str]:
    """Pins with a known vulnerability. Raises OSError or ValueError where the service does not answer."""
    queries = [{"package": {"name": pin.name, "ecosystem": "PyPI"}, "version": pin.version} for pin in pins]
    results = _ask(ADVISORIES_URL, {"queries": queries})["results"]
    if len(results) != len(pins):
        raise ValueError("it answered for another number of packages")
    return [
        f"{pin.name}=={pin.version} has a known vulnerability: {one['id']}"
        for pin, result in zip(pins, results, strict=True)
        for one in result.get("vulns") or ()
        if one["id"] not in ACCEPTED
    ]


def audit(pins: Sequence[Pin]) -> int:
    """Print every fault; 1 if there is one."""
    faults = list(pin_faults(pins))
    # The index may be a private one, with a password in its URL: it is not printed.
    for what, service, check in (
        ("known vulnerabilities", ADVISORIES_URL, vulnerable),
        ("yanked releases", "the package index", yanked),
    ):
        try:
            faults += check(pins)
        except (OSError, HTTPException, ValueError, KeyError, TypeError) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            print(f"audit: NOT CHECKED for {what}: {service} gave no answer ({reason})")
        else:
            print(f"audit: checked for {what}")
    for fault in faults:
        print(f"audit: {fault}", file=sys.stderr)
    print(f"audit: {len(pins)} pins, {len(faults)} faults")
    return 1 if faults else 0


def sbom(pins: Sequence[Pin], version: str) -> Mapping[str, Any]:
    """The bill of materials as CycloneDX 1.6. No time and no serial number: the same pins give the same text."""
    purl = {pin.name: f"pkg:pypi/{pin.name}@{pin.version}" for pin in pins}
    components, needs = [], []
    for pin in pins:
        here = installed(pin)
        component: dict[str, Any] = {
            "type": "library",
            "bom-ref": purl[pin.name],
            "name": pin.name,
            "version": pin.version,
            "purl": purl[pin.name],
            "externalReferences": [
                {
                    "type": "distribution",
                    "url": f"https://pypi.org/project/{pin.name}/{pin.version}/",
                    "hashes": [{"alg": "SHA-256", "content": each} for each in pin.hashes],
                }
            ],
        }
        if here is not None and here[1]:
            component["licenses"] = [{"expression": here[1]}]
        components.append(component)
        names = [] if here is None else here[2]
        needs.append({"ref": purl[pin.name], "dependsOn": [purl[name] for name in names if name in purl]})
    root = f"pkg:pypi/headway@{version}"
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": root,
                "name": "headway",
                "version": version,
                "licenses": [{"expression": "Apache-2.0"}],
            }
        },
        "components": components,
        "dependencies": [{"ref": root, "dependsOn": sorted(purl.values())}, *needs],
    }


def main(arguments: Sequence[str]) -> int:
    """The command."""
    if list(arguments) not in (["sbom"], ["audit"]):
        print("usage: supply_chain.py sbom|audit", file=sys.stderr)
        return 2
    try:
        pins = read_pins(PINS.read_text(encoding="utf-8"))
    except PinError as error:
        print(f"audit: {PINS.name}: {error}", file=sys.stderr)
        return 1
    if arguments[0] == "audit":
        return audit(pins)
    print(json.dumps(sbom(pins, distribution("headway").version), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
