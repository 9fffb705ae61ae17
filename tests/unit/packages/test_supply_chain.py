"""Pins with hashes, the audit of them, and the bill of materials."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.markers import Marker

ROOT = Path(__file__).resolve().parents[3]
HASH = "a" * 64


def _script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("supply_chain", ROOT / "scripts" / "supply_chain.py")
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["supply_chain"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


script = _script()
PINS = script.read_pins((ROOT / "requirements" / "runtime.txt").read_text(encoding="utf-8"))
APPLIES = [pin for pin in PINS if not pin.marker or Marker(pin.marker).evaluate()]


@contextmanager
def serving(status: int, answer: Any) -> Iterator[str]:
    """A service that gives every request the same answer."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            self.do_POST()

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_every_pin_of_the_service_has_the_hashes_of_its_release() -> None:
    assert len(PINS) > 40
    assert len({pin.name for pin in PINS}) == len(PINS)
    assert all(pin.hashes for pin in PINS)
    numpy = next(pin for pin in PINS if pin.name == "numpy")
    assert len(numpy.hashes) > 20  # a wheel for each platform and Python


def test_no_pin_file_names_an_index() -> None:
    for path in (ROOT / "requirements").glob("*.txt"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"^\s*-(?!-hash=)|://", text, re.MULTILINE), path.name


@pytest.mark.parametrize(
    "text", ["numpy", "numpy>=2", "numpy==2.*", "git+https://example.com/x", "--pre", "a==1 --hash=md5:1"]
)
def test_a_line_that_is_no_exact_pin_is_refused(text: str) -> None:
    with pytest.raises(script.PinError):
        script.read_pins(text)


def test_everywhere_that_the_service_is_installed_hashes_are_required() -> None:
    for name in ("Makefile", "Dockerfile"):
        installs = re.findall(
            r"^.*install .*requirements/runtime\.txt.*$",
            (ROOT / name).read_text(encoding="utf-8"),
            re.MULTILINE,
        )
        assert installs
        assert all("--require-hashes" in line for line in installs)


def test_what_is_pinned_and_installed_has_no_fault() -> None:
    assert list(script.pin_faults(APPLIES)) == []


def test_faults_of_pins_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "odd-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(
        "Metadata-Version: 2.4\nName: odd\nVersion: 1\nLicense-Expression: AGPL-3.0-only\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    faults = list(script.pin_faults([script.Pin("odd", "2", "", (HASH,)), script.Pin("gone", "1")]))
    assert faults == [
        "odd 1 is installed, 2 is pinned: run make dev",
        "odd: licence 'AGPL-3.0-only' is not among those allowed",
        "gone==1 has no hash",
        "gone is pinned and not installed here: run make dev",
    ]


def test_a_known_vulnerability_and_a_yanked_release_fail(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pin = next(each for each in APPLIES if each.name == "numpy")
    advisories = {"results": [{"vulns": [{"id": "PYSEC-1"}]}]}
    page = {"files": [{"hashes": {"sha256": each}, "yanked": "broken"} for each in pin.hashes]}
    with serving(200, advisories) as first, serving(200, page) as second:
        monkeypatch.setattr(script, "ADVISORIES_URL", first)
        monkeypatch.setattr(script, "INDEX_URL", second)
        assert script.audit([pin]) == 1
    shown = capsys.readouterr()
    assert f"numpy=={pin.version} has a known vulnerability: PYSEC-1" in shown.err
    assert f"numpy=={pin.version} was yanked: broken" in shown.err


@pytest.mark.parametrize(
    ("status", "answer"), [(404, {}), (503, {}), (200, {}), (200, []), (200, {"results": []})]
)
def test_a_service_that_gives_no_answer_is_named_and_fails_nothing(
    status: int, answer: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pin = next(each for each in APPLIES if each.name == "numpy")
    with serving(status, answer) as url:
        monkeypatch.setattr(script, "ADVISORIES_URL", url)
        monkeypatch.setattr(script, "INDEX_URL", "http://user:hidden@127.0.0.1:1/simple")
        assert script.audit([pin]) == 0
    shown = capsys.readouterr().out
    assert shown.count("NOT CHECKED") == 2
    assert "hidden" not in shown


def test_the_bill_of_materials_names_every_pin() -> None:
    bill = script.sbom(PINS, "0.1.0")
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert [(each["name"], each["version"]) for each in bill["components"]] == [
        (pin.name, pin.version) for pin in PINS
    ]
    references = {each["bom-ref"] for each in bill["components"]}
    assert all(set(each["dependsOn"]) <= references for each in bill["dependencies"])
    here = {pin.name for pin in APPLIES}
    assert all(each["licenses"] for each in bill["components"] if each["name"] in here)
    needs = {each["ref"].split("/")[1].split("@")[0]: each["dependsOn"] for each in bill["dependencies"]}
    assert any(each.startswith("pkg:pypi/starlette@") for each in needs["fastapi"])
    digest = hashlib.sha256(json.dumps(bill).encode()).hexdigest()
    assert digest == hashlib.sha256(json.dumps(script.sbom(PINS, "0.1.0")).encode()).hexdigest()
