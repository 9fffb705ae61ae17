"""A plan's cluster as an SVG image: pools, nodes and GPUs, and the groups of the plan on them.

Each GPU is a cell. It is filled from below: the weights, and above them the KV cache. The image has no script, loads nothing,
and follows light and dark. Places are worked out here, the template `plan.svg` writes the elements.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from backends.engine.hardware import HARDWARE
from benchmarks.pages import render

_CELL_W, _CELL_H, _GAP = 112, 84, 8
_PAD, _NODE_GAP, _LABEL_H, _NODE_HEAD = 10, 16, 38, 24
#: GPUs side by side, and the width that nodes side by side may take: two nodes of four GPUs, or one of eight.
_COLUMNS, _WIDEST, _NARROWEST, _MARGIN = 8, 1000, 600, 24

#: The page's colours of series (router/ui/base.css) without its grey, which is for unused GPUs.
_LIGHT = (
    "#2a6bcf", "#0d8c78", "#c27a12", "#c43d3b", "#7b52c6", "#d0578f", "#3f8f2f", "#2596b8", "#8a6a4f",
)  # fmt: skip
_DARK = (
    "#6fa8ff", "#45c7ae", "#e6a94a", "#f27f7b", "#b596f4", "#ee8bb8", "#86cc73", "#65c8e6", "#c5a384",
)  # fmt: skip
#: What the legend says of fills: their CSS classes and names.
_FILLS = (
    ("ink weights", "weights"), ("ink kv", "KV cache"), ("cell edge", "other memory"), ("unused", "unused GPU"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class DrawnGroup:
    """GPUs of one pool that work together: a group, or one stage of it. `name` and `shape` are the two lines of its label,
    `notes` one line for each GPU, `title` what a reader hears. `key` is the legend's entry, which gives the colour."""

    pool: int
    gpus: Sequence[int]
    key: str
    name: str
    shape: str
    title: str
    notes: Sequence[str]
    weights_gb: float
    kv_gb: float


def plan_svg(data: Mapping[str, Any]) -> str:
    """The best plan of `plan.json`."""
    plan, pools = data["plans"][0], data["cluster"]["pools"]
    facts = [f"95% interval {plan['low']:.1%} to {plan['high']:.1%}"]
    if plan["usd_per_hour"] is not None:
        facts.append(f"{plan['usd_per_hour']:.2f} USD/h")
    facts.append(f"{plan['gpus']} of {sum(pool['gpus'] for pool in pools)} GPUs")
    if data["objective"] == "throughput":
        facts.append(f"load x {plan['multiple']:.2f}")
    facts.append(f"policy {data['policy']}")
    drawn = [each for group in plan["groups"] for each in drawn_groups(group)]
    return cluster_svg(pools, drawn, f"Best plan: {plan['attainment']:.1%} attainment", facts)


def batch_svg(data: Mapping[str, Any]) -> str:
    """The plan of one batch: groups of the same degree have the same colour."""
    facts = [
        f"{data['prompts']} prompts of {data['tokens']} tokens",
        f"no groups need less than {data['bound_s']:.3f} s",
        data["model"],
    ]
    drawn = []
    for group in data["groups"]:
        (whole,) = drawn_groups(group)
        prompts = _counted(len(group["tokens"]), "prompt")
        title = f"{prompts} in {group['prefill_s']:.3f} s; {whole.title}"
        shape = f"TP {group['tensor']}, {group['prefill_s']:.3f} s"
        drawn.append(replace(whole, key=f"TP {group['tensor']}", name=prompts, shape=shape, title=title))
    heading = f"Best groups: the batch is prefilled in {data['makespan_s']:.3f} s"
    return cluster_svg(data["cluster"]["pools"], drawn, heading, facts)


def drawn_groups(group: Mapping[str, Any]) -> list[DrawnGroup]:
    """A group of `plan.json` as drawn: one piece, or one for each stage of unlike GPUs."""
    name = ", ".join(group["models"])
    key = f"{name}, {group['weights']}"
    if "stages" not in group:
        tensor, pipeline = group["tensor"], group["pipeline"]
        notes = [f"stage {at // tensor + 1}" if pipeline > 1 else "" for at in range(tensor * pipeline)]
        return [_drawn(group, key, name, f"TP {tensor} × PP {pipeline}", notes)]
    stages = group["stages"]
    return [
        _drawn(
            stage,
            key,
            name,
            f"stage {place}/{len(stages)}, TP {len(stage['gpus'])}",
            [f"{stage['layers']} layers"] * len(stage["gpus"]),
        )
        for place, stage in enumerate(stages, start=1)
    ]


def _drawn(piece: Mapping[str, Any], key: str, name: str, shape: str, notes: Sequence[str]) -> DrawnGroup:
    weights_gb, kv_gb = piece["weights_gb_per_gpu"], piece["kv_cache_gb_per_gpu"]
    layers = f", {piece['layers']} layers" if "layers" in piece else ""
    title = (
        f"{key}: {shape}{layers}, on {len(piece['gpus'])} x {piece['gpu']}; "
        f"on each GPU {weights_gb:.1f} GB of weights and {kv_gb:.1f} GB of KV cache"
    )
    return DrawnGroup(piece["pool"], piece["gpus"], key, name, shape, title, notes, weights_gb, kv_gb)


def cluster_svg(
    pools: Sequence[Mapping[str, Any]], groups: Sequence[DrawnGroup], heading: str, facts: Sequence[str]
) -> str:
    """The image. `pools` are those of a cluster file; each GPU is in one group at most."""
    width = max(_NARROWEST, *(_pool_width(pool) for pool in pools)) + 2 * _MARGIN
    keys = dict.fromkeys(each.key for each in groups)
    css = {key: f"c{place % len(_LIGHT)}" for place, key in enumerate(keys)}
    gpus = {key: sum(len(each.gpus) for each in groups if each.key == key) for key in keys}
    entries, y = _legend(width, 80, [(css[key], f"{key}: {_counted(gpus[key], 'GPU')}") for key in keys])
    fills, y = _legend(width, y, _FILLS)
    note_y = y = y + 15
    laid_out = []
    for place, pool in enumerate(pools):
        laid_out.append(_pool(y + 22, pool, [each for each in groups if each.pool == place], css))
        y = laid_out[-1]["end"]
    drawn = render(
        "planning/plan.svg",
        width=width,
        height=y + _MARGIN,
        margin=_MARGIN,
        heading=heading,
        facts=facts,
        groups=groups,
        light=_LIGHT[: len(keys)],
        dark=_DARK[: len(keys)],
        legend=[*entries, *fills],
        note_y=note_y,
        pools=laid_out,
        label=_LABEL_H,
        cell={"width": _CELL_W, "height": _CELL_H},
        px=_px,
    )
    return f"{drawn}\n"


def _legend(
    width: float, y: float, entries: Sequence[tuple[str, str]]
) -> tuple[list[tuple[str, float, float, str]], float]:
    """Each entry as (CSS, x, y, words), and the height where they end."""
    found = []
    x: float = _MARGIN
    for css, words in entries:
        needed = 22 + 7 * len(words) + 18
        if x > _MARGIN and x + needed > width - _MARGIN:
            x, y = _MARGIN, y + 22
        found.append((css, x, y, words))
        x += needed
    return found, y + 24


def _pool(
    y: float, pool: Mapping[str, Any], groups: Sequence[DrawnGroup], css: Mapping[str, str]
) -> dict[str, Any]:
    """A pool from the height `y` on: its facts, its nodes at their places, and the height where it ends."""
    memory_gb = HARDWARE[pool["gpu"]].memory_bytes / 1e9
    facts = [f"{memory_gb:.0f} GB", f"{sum(len(each.gpus) for each in groups)} used"]
    if pool["usd_per_hour"] is not None:
        facts.insert(1, f"{pool['usd_per_hour']:.2f} USD/h each")
    found: dict[str, Any] = {"y": y, "name": f"{pool['gpus']} × {pool['gpu']}", "facts": facts, "nodes": []}
    y += 24
    height, x = _node_height(pool), float(_MARGIN)
    for gpus in _nodes(pool):
        width = _node_width(len(gpus))
        if x > _MARGIN and x + width > _MARGIN + _WIDEST:
            x, y = _MARGIN, y + height + _NODE_GAP
        rows = [
            _row(_NODE_HEAD + place * _row_height(), gpus[start : start + _COLUMNS], groups, css, memory_gb)
            for place, start in enumerate(range(0, len(gpus), _COLUMNS))
        ]
        found["nodes"].append({"x": x, "y": y, "width": width, "height": height, "rows": rows})
        x += width + _NODE_GAP
    return {**found, "end": y + height}


def _row(
    y: float, line: range, groups: Sequence[DrawnGroup], css: Mapping[str, str], memory_gb: float
) -> dict[str, Any]:
    """A row of a node's GPUs: the parts of groups in it, and the GPUs of no group."""
    parts = []
    used: set[int] = set()
    for group in groups:
        own = [gpu for gpu in line if gpu in group.gpus]
        if not own:
            continue
        used.update(own)
        left, right = _x(line.index(own[0])), _x(line.index(own[-1])) + _CELL_W
        room = right - left - 12
        weights_px = _CELL_H * min(1.0, group.weights_gb / memory_gb)
        parts.append(
            {
                "group": group,
                "css": css[group.key],
                "left": left,
                "right": right,
                "name": _fitting(group.name, room, 7.0),
                "shape": _fitting(group.shape, room, 5.9),
                "cells": [(_x(line.index(gpu)), gpu, group.notes[group.gpus.index(gpu)]) for gpu in own],
                "weights_px": weights_px,
                "kv_px": min(_CELL_H - weights_px, _CELL_H * group.kv_gb / memory_gb),
            }
        )
    unused = [(_x(place), gpu) for place, gpu in enumerate(line) if gpu not in used]
    return {"y": y, "parts": parts, "unused": unused}


# --- geometry -----------------------------------------------------------------------------------------------
def _nodes(pool: Mapping[str, Any]) -> Iterator[range]:
    for first in range(0, pool["gpus"], pool["node_gpus"]):
        yield range(first, min(first + pool["node_gpus"], pool["gpus"]))


def _x(column: int) -> float:
    return _PAD + column * (_CELL_W + _GAP)


def _node_width(gpus: int) -> float:
    return _x(min(gpus, _COLUMNS)) - _GAP + _PAD


def _row_height() -> float:
    return _LABEL_H + _CELL_H + 14


def _node_height(pool: Mapping[str, Any]) -> float:
    rows: int = -(-min(pool["gpus"], pool["node_gpus"]) // _COLUMNS)
    return _NODE_HEAD + rows * _row_height() - 14 + _PAD


def _pool_width(pool: Mapping[str, Any]) -> float:
    widths = [_node_width(len(gpus)) + _NODE_GAP for gpus in _nodes(pool)]
    return min(_WIDEST, sum(widths) - _NODE_GAP)


def _px(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _fitting(words: str, room: float, letter_px: float) -> str:
    """The words, or their beginning where they need more room."""
    most = max(2, int(room / letter_px))
    return words if len(words) <= most else f"{words[: most - 1]}…"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
