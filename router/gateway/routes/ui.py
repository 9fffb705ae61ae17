"""The pages at /ui and /docs: their files, and the comparisons and plans that /ui opens."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import orjson
from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import FileResponse

from router import __version__
from router.gateway.intake.callers import admin_needs_key
from router.gateway.routes.access import known_parameters, not_found
from router.gateway.service import Gateway

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".json": "application/json",
    ".csv": "text/csv; charset=utf-8",
}
#: The page may run, load and call only what this server sends. No other page may frame it. Images may be blobs, which the
#: page makes of drawings that it fetched with the admin key; an SVG runs no script and loads nothing as an image.
_POLICY = (
    "default-src 'self'; img-src 'self' blob:; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_SAFETY = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    # Revalidated each time; a 304 while nothing has changed.
    "cache-control": "no-cache",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """One file of the page."""

    body: bytes
    media_type: str
    etag: str


def read_assets() -> dict[str, Asset]:
    """The page's files by name. They are few, small and part of the package, so they stay in memory."""
    found = {}
    for entry in files("router.ui").iterdir():
        media_type = _TYPES.get(Path(entry.name).suffix)
        if media_type is not None:
            body = entry.read_bytes()
            found[entry.name] = Asset(body, media_type, f'"{hashlib.sha256(body).hexdigest()[:24]}"')
    return found


def ui_routes(gateway: Gateway) -> APIRouter:
    """/ui and /docs; 404 if `ui.enabled` is false."""
    router = APIRouter(include_in_schema=False, dependencies=[_enabled(gateway)])
    assets = read_assets()

    @router.get("/ui")
    async def ui() -> Response:
        # Relative, so that a proxy may serve the gateway under a path.
        return Response(status_code=308, headers={"location": "ui/"})

    @router.get("/ui/about.json")
    async def about() -> Response:
        """What the page needs before a key is entered; nothing secret."""
        about = {
            "version": __version__,
            "policies": sorted(gateway.fleet.policies),
            "admin_key_needed": admin_needs_key(gateway.rules, gateway.admin_key),
            "client_key_needed": not gateway.rules.keys.open,
            "default_policy": gateway.config.defaults.policy,
        }
        return Response(orjson.dumps(about), headers=_SAFETY, media_type="application/json")

    @router.get("/ui/")
    async def index(request: Request) -> Response:
        return _sent(assets["index.html"], request)

    @router.get("/docs")
    async def docs(request: Request) -> Response:
        """The API, from /openapi.json."""
        return _sent(assets["docs.html"], request)

    @router.get("/ui/{name}")
    async def asset(name: str, request: Request) -> Response:
        if name not in assets:
            raise not_found("Not Found")
        return _sent(assets[name], request)

    return router


def _enabled(gateway: Gateway) -> Any:
    def enabled() -> None:
        if not gateway.config.ui.enabled:
            raise not_found("Not Found")

    return Depends(enabled)


def _sent(asset: Asset, request: Request) -> Response:
    headers = _SAFETY | {"etag": asset.etag}
    if asset.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(asset.body, headers=headers, media_type=asset.media_type)


# --- comparisons and plans ----------------------------------------------------------------------------
#: Files of `headway compare --out` and of `headway plan --out` that may be fetched. A plan's fleet file is not: it has the
#: sections of the fleet file that the plan was made for.
_REPORT_FILES = (
    *("report.json", "report.html", "cells.csv", "runs.csv", "curves.csv", "outcomes.csv", "timeline.csv"),
    *("plan.json", "plan.svg"),
)
#: A folder with one of these is a report.
_MAIN_FILES = ("report.json", "plan.json")
#: A report may use its own styles and nothing else.
_REPORT_SAFETY = _SAFETY | {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; sandbox"
}
MAX_REPORTS = 500


def report_path(directory: Path, name: str, file: str) -> Path | None:
    """A file of a report; None if it is not one, or if its links lead outside `directory`."""
    if file not in _REPORT_FILES or name in {"", ".", ".."} or "/" in name or "\\" in name or "\0" in name:
        return None
    try:
        root = directory.resolve(strict=True)
        path = (root / name / file).resolve(strict=True)
    except (OSError, RuntimeError):
        return None
    return path if path.is_file() and path.is_relative_to(root) else None


def list_reports(directory: Path) -> list[dict[str, Any]]:
    """Folders of `directory` with a comparison or a plan, newest first: `name`, `modified_at`, `bytes` (of report.json, else
    of plan.json) and the existing `files`."""
    found: list[dict[str, Any]] = []
    try:
        folders = [entry.name for entry in directory.iterdir() if entry.is_dir()]
    except OSError:
        return []
    for name in folders:
        report = next(filter(None, (report_path(directory, name, file) for file in _MAIN_FILES)), None)
        if report is None:
            continue
        try:
            status = report.stat()
        except OSError:  # removed just now
            continue
        files = [file for file in _REPORT_FILES if report_path(directory, name, file) is not None]
        found.append({"name": name, "modified_at": status.st_mtime, "bytes": status.st_size, "files": files})
    found.sort(key=lambda each: (-each["modified_at"], each["name"]))
    return found[:MAX_REPORTS]


def report_routes(gateway: Gateway) -> APIRouter:
    """/admin/reports; 404 if `ui.enabled` is false."""
    dependencies = [_enabled(gateway), Depends(known_parameters)]
    router = APIRouter(prefix="/admin/reports", include_in_schema=False, dependencies=dependencies)

    @router.get("")
    async def reports() -> dict[str, Any]:
        """The comparisons and plans in `ui.reports`; `configured` is false without a directory."""
        directory = gateway.config.ui.reports
        if directory is None:
            return {"configured": False, "reports": []}
        return {"configured": True, "reports": await asyncio.to_thread(list_reports, Path(directory))}

    @router.get("/{name}/{file}")
    async def report(name: str, file: str) -> Response:
        """One file of a comparison or a plan."""
        directory = gateway.config.ui.reports
        path = (
            None if directory is None else await asyncio.to_thread(report_path, Path(directory), name, file)
        )
        if path is None:
            raise not_found("There is no such report")
        return FileResponse(path, headers=_REPORT_SAFETY, media_type=_TYPES[Path(file).suffix])

    return router
