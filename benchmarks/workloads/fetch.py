"""Where a source's files come from: given files, the folder HEADWAY_DATA, or a download kept in a cache."""

from __future__ import annotations

import http.client
import os
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from benchmarks.workloads.format import WorkloadError, WorkloadRequest
from benchmarks.workloads.sources.source import Choices, Source

_CHUNK_BYTES = 1 << 16
_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Loaded:
    """The requests of a source and, for the header, the route they came by and their files' checksums."""

    requests: list[WorkloadRequest]
    route: str  # "file", "folder" or "download"
    sha256: Mapping[str, str]


def load(source: Source, files: Sequence[Path], choices: Choices, environment: Mapping[str, str]) -> Loaded:
    """Read a source by the first route that is open: `files`, HEADWAY_DATA, download."""
    if files:
        paths = _given(files)
        reader, route = source.read_original, "file"
        if _same_names(paths, source.folder_files):
            reader = source.read_folder
            paths = _ordered(paths, source.folder_files)
    elif (folder := _folder(source, environment)) is not None:
        paths, reader, route = folder, source.read_folder, "folder"
    else:
        if choices.native_lengths or choices.quality:
            raise WorkloadError(
                f"{source.name}: --native-lengths and --quality need the data folder (set HEADWAY_DATA)"
            )
        paths = [download(url, source.sha256.get(url), environment) for url in source.urls(choices)]
        reader, route = source.read_original, "download"
    requests = reader(paths, choices)
    if not requests:
        raise WorkloadError(f"{paths[0]}: no requests in it")
    return Loaded(requests, route, {path.name: _checksum(path) for path in paths})


def _given(files: Sequence[Path]) -> list[Path]:
    """The files as given, a folder standing for the JSON files in it."""
    paths: list[Path] = []
    for path in files:
        if path.is_dir():
            inside = sorted(path.rglob("*.json"))
            if not inside:
                raise WorkloadError(f"{path}: no .json files in this folder")
            paths.extend(inside)
        elif path.is_file():
            paths.append(path)
        else:
            raise WorkloadError(f"{path}: no such file")
    return paths


def _same_names(paths: Sequence[Path], folder_files: Sequence[str]) -> bool:
    return {path.name for path in paths} == {Path(name).name for name in folder_files}


def _ordered(paths: Sequence[Path], folder_files: Sequence[str]) -> list[Path]:
    by_name = {path.name: path for path in paths}
    return [by_name[Path(name).name] for name in folder_files]


def _folder(source: Source, environment: Mapping[str, str]) -> list[Path] | None:
    root = environment.get("HEADWAY_DATA")
    if not root:
        return None
    if not Path(root).is_dir():
        raise WorkloadError(f"HEADWAY_DATA={root}: no such folder")
    paths = [Path(root) / name for name in source.folder_files]
    return paths if all(path.is_file() for path in paths) else None


def _checksum(path: Path) -> str:
    digest = sha256()
    with path.open("rb") as data:
        while chunk := data.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Where downloads are kept (XDG_CACHE_HOME is heeded)."""
    root = environment.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "headway"


def download(url: str, checksum: str | None, environment: Mapping[str, str]) -> Path:
    """The file behind `url`, from the cache or fetched into it. A WorkloadError says in one line what to do
    when that fails."""
    parts = urllib.parse.urlsplit(url)
    path = cache_folder(environment) / parts.netloc / urllib.parse.unquote(parts.path).lstrip("/")
    if path.is_file() and (checksum is None or _checksum(path) == checksum):
        return path
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _fetch(url, part)
        if checksum is not None and _checksum(part) != checksum:
            raise WorkloadError(f"{url}: the download does not have the expected checksum")
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
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with (
        urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer,  # noqa: S310 (scheme checked)
        to.open("wb") as out,
        Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty()) as progress,
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
