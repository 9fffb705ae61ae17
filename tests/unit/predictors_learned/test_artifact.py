"""Artifacts: the same bytes for the same content, and one clear line for every file that is none."""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from predictors.learned.artifact import FORMAT, Artifact, ArtifactError, load, path_of, save, to_bytes

ARRAYS = {
    "weights": np.arange(12, dtype=np.float16).reshape(3, 4),
    "scale": np.array(2.5),
    "nothing": np.empty((0, 3), np.float32),
    "names": np.array(["llama", "qwen"]),
    "mask": np.array([True, False]),
    "ids": np.array([1, 2**40]),
}
MADE = Artifact("length", ("words", "counts"), ARRAYS, {"data": [{"name": "made", "rows": 3}], "seed": 1})


def test_what_is_saved_is_read_again(tmp_path: Path) -> None:
    path = save(MADE, tmp_path / "new" / "folder")
    found = load(path, "length", ("words", "counts"))
    assert path == path_of(tmp_path / "new" / "folder", "length")
    assert [each.name for each in path.parent.iterdir()] == ["length.headway.npz"]
    assert (found.kind, found.features, found.about) == (MADE.kind, MADE.features, MADE.about)
    assert found.arrays.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert found.arrays[name].dtype == array.dtype
        assert found.arrays[name].shape == array.shape
        assert (found.arrays[name] == array).all()
    assert found.name == f"length-{found.digest}"
    assert len(found.digest) == 12


def test_the_same_content_gives_the_same_bytes(tmp_path: Path) -> None:
    backwards = dict(reversed(ARRAYS.items())) | {"ids": ARRAYS["ids"].astype(">i8")}
    backwards["weights"] = np.asfortranarray(ARRAYS["weights"])
    other = Artifact("length", ("words", "counts"), backwards, dict(reversed(MADE.about.items())))
    assert to_bytes(other) == to_bytes(MADE)
    assert to_bytes(load(save(MADE, tmp_path))) == to_bytes(MADE)
    assert to_bytes(replace(MADE, about={**MADE.about, "seed": 2})) != to_bytes(MADE)


@pytest.mark.parametrize(
    ("arrays", "about", "message"),
    [
        ({"a": np.array([1.0, np.nan])}, {}, "a has values that are no numbers"),
        ({"a": np.array([np.inf])}, {}, "a has values that are no numbers"),
        ({"a": np.array([object()])}, {}, "a has values of type object"),
        ({"a": np.array([1j])}, {}, "a has values of type complex128"),
        ({}, {"mae": float("nan")}, "not JSON"),
        ({}, {"settings": object()}, "not JSON"),
    ],
)
def test_what_could_not_be_read_is_not_written(
    tmp_path: Path, arrays: dict[str, np.ndarray], about: dict[str, Any], message: str
) -> None:
    with pytest.raises(ArtifactError, match=message):
        save(Artifact("length", (), arrays, about), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_other_kinds_and_features_are_refused_by_name(tmp_path: Path) -> None:
    path = save(MADE, tmp_path)
    with pytest.raises(ArtifactError, match="a length artifact, not a latency one"):
        load(path, "latency")
    with pytest.raises(ArtifactError, match=r"\(counts, letters\): train it anew"):
        load(path, "length", ("words", "letters"))
    with pytest.raises(ArtifactError, match="their order"):
        load(path, "length", ("counts", "words"))
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "none.headway.npz")


def zipped(members: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as file:
        for name, data in members.items():
            file.writestr(name, data)
    return buffer.getvalue()


def header(**changed: Any) -> bytes:
    return json.dumps({"format": FORMAT, "kind": "length", "features": [], "about": {}, **changed}).encode()


def npy(array: np.ndarray, **options: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, **options)
    return buffer.getvalue()


def with_header(text: str, values: bytes = b"") -> bytes:
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode() + values


FOREIGN = {
    "empty": b"",
    "text": b"not an artifact\n",
    "no about": zipped({"a.npy": npy(np.ones(2))}),
    "plain npz": zipped({"a.npy": npy(np.ones(2)), "b.npy": npy(np.ones(2))}),
    "about no object": zipped({"about.json": b"[1, 2]"}),
    "about no JSON": zipped({"about.json": b"{"}),
    "about deep": zipped({"about.json": b"[" * 100_000}),
    "features no list": zipped({"about.json": header(features=3)}),
    "about's about no object": zipped({"about.json": header(about=7)}),
    "pickled": zipped({"about.json": header(), "a.npy": npy(np.array([{}]), allow_pickle=True)}),
    "truncated array": zipped({"about.json": header(), "a.npy": npy(np.ones(20))[:-3]}),
    "more than its shape": zipped({"about.json": header(), "a.npy": npy(np.ones(20)) + b"0"}),
    "huge shape": zipped(
        {
            "about.json": header(),
            "a.npy": with_header(f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({10**15},), }}\n"),
        }
    ),
    "expression": zipped(
        {"about.json": header(), "a.npy": with_header("{'descr': [('a', 'O')], 'shape': (1,), }\n")}
    ),
    "infinite": zipped({"about.json": header(), "a.npy": npy(np.array([np.inf]))}),
    "another compression": zipped({"about.json": header(), "a.npy": npy(np.ones(9))}, zipfile.ZIP_LZMA),
}


@pytest.mark.parametrize("data", FOREIGN.values(), ids=FOREIGN)
def test_a_foreign_file_is_refused_in_one_line(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "length.headway.npz"
    path.write_bytes(data)
    with pytest.raises(ArtifactError) as refused:
        load(path)
    assert str(refused.value) == f"{path}: not an artifact of Headway, or damaged"


def test_a_later_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "length.headway.npz"
    path.write_bytes(zipped({"about.json": header(format=FORMAT + 1)}))
    with pytest.raises(ArtifactError, match=f"artifact format {FORMAT + 1}, this version reads {FORMAT}"):
        load(path)


def test_a_member_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "length.headway.npz"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("about.json", header())
        with pytest.warns(UserWarning, match="Duplicate"):
            file.writestr("about.json", header())
    with pytest.raises(ArtifactError, match="not an artifact of Headway, or damaged"):
        load(path)


def test_damage_is_never_taken_for_an_artifact(tmp_path: Path) -> None:
    """Whatever byte is changed or cut off: refused, or read as what it was (bytes that carry nothing)."""
    whole = to_bytes(MADE)
    path = tmp_path / "length.headway.npz"
    random = Random(7)
    damaged = [whole[:cut] for cut in random.sample(range(len(whole)), 150)]
    damaged += [
        whole[:place] + bytes([whole[place] ^ random.randrange(1, 256)]) + whole[place + 1 :]
        for place in random.sample(range(len(whole)), 600)
    ]
    refused = 0
    for data in damaged:
        path.write_bytes(data)
        try:
            found = load(path)
        except ArtifactError:
            refused += 1
            continue
        assert found.about == MADE.about
        assert all((found.arrays[name] == ARRAYS[name]).all() for name in found.arrays)
    assert refused > 0.7 * len(damaged)
