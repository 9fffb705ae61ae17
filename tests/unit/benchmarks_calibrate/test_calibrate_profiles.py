"""Fitted profiles read back."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest
import yaml

from backends.engine import profile
from benchmarks.calibrate.profile import read_profiles
from benchmarks.workloads.format import WorkloadError

KNOWN = profile("llama-3.1-8b@a100-80g")


def test_a_profile_comes_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "profile.yaml"
    path.write_text(yaml.safe_dump({"engine": {"profile": asdict(KNOWN)}}))
    assert read_profiles(path) == {KNOWN.name: KNOWN}


def test_numbers_that_yaml_takes_for_texts_are_numbers(tmp_path: Path) -> None:
    path = tmp_path / "profile.yaml"
    path.write_text(yaml.safe_dump({"engine": {"profile": asdict(KNOWN) | {"per_pair_s": "1e-9"}}}))
    assert read_profiles(path)[KNOWN.name].per_pair_s == 1e-9


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xfe", "not YAML"),
        (b"a: [", "not YAML"),
        (b"- 1", "not profiles"),
        (b"engine: {profile: {name: x}}", "not profiles"),
        (b"engine: {profile: {name: x, speed: 3}}", "not profiles"),
    ],
)
def test_another_file_is_told_in_one_line(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "profile.yaml"
    path.write_bytes(content)
    with pytest.raises(WorkloadError, match=message):
        read_profiles(path)
    with pytest.raises(WorkloadError, match="cannot read"):
        read_profiles(tmp_path / "nothing.yaml")
