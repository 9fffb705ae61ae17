"""Where a source's files come from: given files, the folder HEADWAY_DATA, or a download kept in a cache."""

from __future__ import annotations

import http.client
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import file_digest, sha256
from pathlib import Path

from rich.progress import DownloadColumn, TransferSpeedColumn

from benchmarks.terminal import progress_bar
from benchmarks.workloads.clients import ClientPool
from benchmarks.workloads.format import WorkloadError, WorkloadRequest, reading
from benchmarks.workloads.sources.source import Choices, Source

_CHUNK_BYTES = 1 << 16
_TIMEOUT_S = 30.0
#: A header names the checksums of this many files one by one.
_MOST_NAMED = 16


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a source holds: its requests, or the traffic to draw them from; and, for the header, the route it
    came by, its files' checksums, and whether lengths are estimates where native ones were requested."""

    requests: list[WorkloadRequest]
    route: str  # "file", "folder" or "download"
    sha256: Mapping[str, str]
    traffic: ClientPool | None = None
    lengths_estimated: bool = False


def load(source: Source, files: Sequence[Path], choices: Choices, environment: Mapping[str, str]) -> Loaded:
    """Read a source by the first route that is open: `files`, HEADWAY_DATA, download. Only the data folder has
    native lengths; other routes estimate them and say so."""
    reader = source.read_original
    if files:
        paths, route = _given(files, source.patterns), "file"
        by_name = {path.name: path for path in paths}
        prepared = [Path(name).name for name in source.folder_files]
        if by_name.keys() == set(prepared):
            reader, paths = source.read_folder, [by_name[name] for name in prepared]
    elif (folder := _folder(source, environment)) is not None:
        paths, reader, route = folder, source.read_folder, "folder"
    else:
        paths, route = [], "download"
    original = route != "folder" and reader == source.read_original
    if original and choices.quality and not source.original_quality:
        raise WorkloadError(f"{source.name}: --quality needs the data folder (set HEADWAY_DATA)")
    if route == "download":
        paths = [download(url, environment) for url in source.urls(choices)]
    contents = reader(source.name, paths, choices)
    if not isinstance(contents, list):
        return Loaded([], route, _checksums(paths), contents)
    if not contents:
        raise WorkloadError(f"{paths[0]}: no requests in it")
    estimated = choices.native_lengths and reader == source.read_original and not source.lengths_unknown
    return Loaded(contents, route, _checksums(paths), lengths_estimated=estimated)


def _checksums(paths: Sequence[Path]) -> dict[str, str]:
    """Checksums by file name (with its folder where names repeat); of many files one checksum over all of theirs, in the order of reading."""
    sums = list(map(checksum, paths))
    if len(paths) > _MOST_NAMED:
        return {f"{len(paths)} files": sha256("".join(sums).encode()).hexdigest()}
    unique = len({path.name for path in paths}) == len(paths)
    names = [path.name if unique else f"{path.parent.name}/{path.name}" for path in paths]
    return dict(zip(names, sums, strict=True))


def _given(files: Sequence[Path], patterns: Sequence[str]) -> list[Path]:
    """The files as given, a folder standing for those in it that match `patterns`."""
    paths: list[Path] = []
    for path in files:
        if path.is_dir():
            inside = sorted(found for pattern in patterns for found in path.rglob(pattern))
            if not inside:
                raise WorkloadError(f"{path}: no {' or '.join(patterns)} files in this folder")
            paths.extend(inside)
        elif path.is_file():
            paths.append(path)
        else:
            raise WorkloadError(f"{path}: no such file")
    return paths


def _folder(source: Source, environment: Mapping[str, str]) -> list[Path] | None:
    root = environment.get("HEADWAY_DATA")
    if not root:
        return None
    if not Path(root).is_dir():
        raise WorkloadError(f"HEADWAY_DATA={root}: no such folder")
    paths = [Path(root) / name for name in source.folder_files]
    return paths if all(path.is_file() for path in paths) else None


def checksum(path: Path) -> str:
    """The SHA-256 of a file's bytes. Raises WorkloadError."""
    with reading(path), path.open("rb") as data:
        return file_digest(data, "sha256").hexdigest()


def download(url: str, environment: Mapping[str, str]) -> Path:
    """The file behind `url`, from the cache or fetched into it. The WorkloadError has in one line what to do
    when that fails."""
    parts = urllib.parse.urlsplit(url)
    root = environment.get("XDG_CACHE_HOME")
    cache = (Path(root) if root else Path.home() / ".cache") / "headway"
    path = cache / parts.netloc / urllib.parse.unquote(parts.path).lstrip("/")
    if path.is_file():
        return path
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _fetch(url, part)
        part.replace(path)
    except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
        reason = getattr(error, "reason", None) or error
        raise WorkloadError(
            f"cannot download {url} ({reason}); give the published file with --file, or set HEADWAY_DATA"
        ) from error
    finally:
        part.unlink(missing_ok=True)
    return path


def _fetch(url: str, to: Path) -> None:
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise WorkloadError(f"{url}: not an http address")
    request = urllib.request.Request(url, headers={"User-Agent": "headway"})  # noqa: S310 (scheme checked)
    with (
        urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer,  # noqa: S310 (scheme checked)
        to.open("wb") as out,
        progress_bar(TransferSpeedColumn(), count=DownloadColumn()) as progress,
    ):
        length = answer.headers.get("Content-Length")
        task = progress.add_task(to.name.split(".")[0], total=int(length) if length else None)
        done = 0
        while chunk := answer.read(_CHUNK_BYTES):
            out.write(chunk)
            done += len(chunk)
            progress.update(task, completed=done)
        if length and done != int(length):
            raise urllib.error.ContentTooShortError(f"{done} of {length} bytes", None)  # type: ignore[arg-type]
