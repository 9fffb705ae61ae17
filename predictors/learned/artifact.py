"""The form in which training hands a model to serving: one file of named arrays and a description, without pickle.

The file is a zip of NumPy's `.npy` members and `about.json`. The same content gives the same bytes. A reader names the
kind and the features that the code has, and refuses an artifact with others. It accepts only the form that is written
here, byte order and header included. So a foreign or damaged file ends in an ArtifactError, and never runs code or
allocates memory of its choosing.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

FORMAT = 1
SUFFIX = ".headway.npz"
#: The artifacts that come with Headway, made by `make train-defaults`.
SHIPPED = Path(__file__).parents[1] / "defaults"
_ABOUT = "about.json"
_ARRAY = ".npy"
_HEADER = re.compile(
    rb"\{'descr': '([<|][fiubU]\d{1,6})', 'fortran_order': False, 'shape': \(([\d, ]{0,200})\), \}\s*"
)
_EPOCH = (1980, 1, 1, 0, 0, 0)
_MOST_BYTES = 256 * 2**20
#: Arrays by name: the types of their values, and their dimensions. A number is a size, a letter stands for the same size
#: everywhere.
Arrays = Mapping[str, tuple[str, Sequence[str | int]]]


class ArtifactError(ValueError):
    """An artifact that cannot be read, or that does not fit this code. The message is one line."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """A trained model. `kind` is a key of `predictors.learned.models.KINDS`. `features` names its inputs, in order.
    `about` holds what people want to know: `data` (a list of what it was trained on, with rows and licence), `commit`,
    `metrics`, `settings`. `digest` is 12 hex digits of the file."""

    kind: str
    features: tuple[str, ...]
    arrays: Mapping[str, np.ndarray]
    about: Mapping[str, Any] = field(default_factory=dict)
    digest: str = ""

    @property
    def name(self) -> str:
        """The artifact's name in records and metrics."""
        return f"{self.kind}-{self.digest}"


def path_of(directory: Path, kind: str) -> Path:
    """The path of a kind's artifact in a directory."""
    return directory / f"{kind}{SUFFIX}"


def to_bytes(artifact: Artifact) -> bytes:
    """The file's content. Equal content gives equal bytes at any time. Raises ArtifactError for an array that `load`
    would refuse and for an `about` that JSON cannot hold, so that the error appears where it was made."""
    about = {
        "format": FORMAT,
        "kind": artifact.kind,
        "features": list(artifact.features),
        "about": artifact.about,
    }
    try:
        text = json.dumps(about, indent=1, sort_keys=True, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise ArtifactError(f"{artifact.kind} artifact: its description is not JSON ({error})") from error
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as file:
        _member(file, _ABOUT, text)
        for name in sorted(artifact.arrays):
            array = np.asarray(artifact.arrays[name], order="C")
            fault = _fault(array)
            if fault is not None:
                raise ArtifactError(f"{artifact.kind} artifact: {name} {fault}")
            member = io.BytesIO()
            np.lib.format.write_array(
                member, array.astype(array.dtype.newbyteorder("<")), version=(1, 0), allow_pickle=False
            )
            _member(file, f"{name}.npy", member.getvalue())
    return buffer.getvalue()


def _member(file: zipfile.ZipFile, name: str, data: bytes) -> None:
    member = zipfile.ZipInfo(name, _EPOCH)
    member.compress_type = zipfile.ZIP_DEFLATED
    file.writestr(member, data)


def save(artifact: Artifact, directory: Path) -> Path:
    """Write `directory/KIND.headway.npz`, completely or not at all. Returns the path."""
    data = to_bytes(artifact)
    directory.mkdir(parents=True, exist_ok=True)
    path = path_of(directory, artifact.kind)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        partial.write_bytes(data)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return path


def load(path: Path, kind: str | None = None, features: tuple[str, ...] | None = None) -> Artifact:
    """Read an artifact. Raises ArtifactError for a file that is damaged, of another kind than `kind`, or made with
    other features than `features`; OSError if the file does not exist."""
    if path.stat().st_size > _MOST_BYTES:
        raise ArtifactError(f"{path}: larger than any artifact")
    data = path.read_bytes()
    try:
        arrays, header = _members(data)
        found_format, found_kind = header["format"], header["kind"]
        found = tuple(str(name) for name in header["features"])
        about = dict(header["about"])
    # A damaged zip or member can fail in any of these ways.
    except (
        zipfile.BadZipFile,
        zlib.error,
        ValueError,
        LookupError,
        TypeError,
        EOFError,
        OSError,
        NotImplementedError,
        RecursionError,
    ) as error:
        raise ArtifactError(f"{path}: not an artifact of Headway, or damaged") from error
    if found_format != FORMAT:
        raise ArtifactError(f"{path}: artifact format {found_format}, this version reads {FORMAT}")
    if kind is not None and found_kind != kind:
        raise ArtifactError(f"{path}: a {found_kind} artifact, not a {kind} one")
    if features is not None and found != features:
        odd = sorted({*found} ^ {*features})
        which = ", ".join(odd[:5]) if odd else "their order"
        raise ArtifactError(
            f"{path}: made with other features than this version has ({which}): train it anew"
        )
    return Artifact(found_kind, found, arrays, about, sha256(data).hexdigest()[:12])


def floats(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays as models compute with them: half floats are only for the file; other types stay."""
    return {
        name: array.astype(np.float32) if array.dtype.kind == "f" else array for name, array in arrays.items()
    }


def sizes(artifact: Artifact, arrays: Arrays) -> dict[str, int]:
    """The sizes of the dimensions of these arrays. Raises ArtifactError for an array that is missing or does not fit."""
    kind = artifact.kind
    found: dict[str, int] = {}
    for name, (types, dimensions) in arrays.items():
        array = artifact.arrays.get(name)
        if array is None:
            raise ArtifactError(f"a {kind} artifact without its {name}")
        fits = array.dtype.kind in types and array.ndim == len(dimensions)
        if not fits or any(
            size != (each if isinstance(each, int) else found.setdefault(each, size))
            for each, size in zip(dimensions, array.shape, strict=True)
        ):
            wanted = " x ".join(str(found.get(str(each), each)) for each in dimensions)
            raise ArtifactError(
                f"a {kind} artifact whose {name} does not fit: {array.dtype} {array.shape}, where this version has "
                f"{wanted or 'one number'}: train it anew"
            )
    return found


def _members(data: bytes) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """All arrays by name, and the header."""
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        members = file.infolist()
        if sum(member.file_size for member in members) > _MOST_BYTES:
            raise ValueError("larger than any artifact")
        names = [member.filename for member in members]
        if len(set(names)) < len(names) or any(_foreign(member) for member in members):
            raise ValueError("members that no artifact has")
        arrays = {
            name[: -len(_ARRAY)]: _array(_content(file, name)) for name in names if name.endswith(_ARRAY)
        }
        return arrays, json.loads(_content(file, _ABOUT))


def _foreign(member: zipfile.ZipInfo) -> bool:
    encrypted = member.flag_bits & 1
    return bool(encrypted) or member.compress_type not in (zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED)


def _array(data: bytes) -> np.ndarray:
    """An array in NumPy's format 1.0, as `to_bytes` writes it. NumPy's own reader would evaluate a header of any form,
    and allocate memory for any shape that it claims."""
    start = 10 + int.from_bytes(data[8:10], "little")
    header = _HEADER.fullmatch(data[10:start])
    if data[:8] != b"\x93NUMPY\x01\x00" or header is None:
        raise ValueError("not an array as it was written")
    dtype = np.dtype(header[1].decode())
    shape = tuple(int(size) for size in header[2].replace(b",", b" ").split())
    if len(data) - start != math.prod(shape) * dtype.itemsize:
        raise ValueError("not as many values as the shape says")
    # Counted above, since frombuffer refuses to read zero values.
    array = np.frombuffer(data, dtype, offset=start) if len(data) > start else np.empty(0, dtype)
    fault = _fault(array)
    if fault is not None:
        raise ValueError(fault)
    return array.reshape(shape).copy()


def _fault(array: np.ndarray) -> str | None:
    if array.dtype.kind not in "fiubU":
        return f"has values of type {array.dtype}"
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        return "has values that are no numbers"
    return None


def _content(file: zipfile.ZipFile, name: str) -> bytes:
    """The content of a member, no more than its stated size."""
    info = file.getinfo(name)
    with file.open(info) as member:
        return member.read(info.file_size)
