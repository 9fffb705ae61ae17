"""A plan's cluster as an SVG image: pools, nodes and GPUs, and the groups of the plan on them.

Each GPU is a cell. It is filled from below: the weights, and above them the KV cache. The image has no script, loads nothing,
and follows light and dark. ElementTree escapes all text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from backends.engine.hardware import HARDWARE

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
_FRAME = {
    "paper": ("#ffffff", "#171c22"),
    "node": ("#eef1f5", "#1f262e"),
    "cell": ("#ffffff", "#171c22"),
    "ink": ("#182028", "#e7eaee"),
    "soft": ("#55606c", "#9ca8b5"),
}
_EDGES = {"node": ("#dce1e7", "#2a323b"), "unused": ("#8b96a3", "#66727f")}


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
    keys = {key: place for place, key in enumerate(dict.fromkeys(each.key for each in groups))}
    about = f"{', '.join(facts)}. " + "; ".join(each.title for each in groups)
    root = Element("svg", {"xmlns": "http://www.w3.org/2000/svg", "role": "img", "aria-labelledby": "t d"})
    SubElement(root, "title", {"id": "t"}).text = heading
    SubElement(root, "desc", {"id": "d"}).text = about
    SubElement(root, "style").text = _style(len(keys))
    paper = _rect(root, 0, 0, width, 0, "paper", 12)
    y = _header(root, width, heading, " · ".join(facts), groups, keys)
    for place, pool in enumerate(pools):
        own = [each for each in groups if each.pool == place]
        y = _pool(root, y + 22, pool, own, keys)
    height = y + _MARGIN
    paper.set("height", _px(height))
    root.set("viewBox", f"0 0 {_px(width)} {_px(height)}")
    root.set("width", _px(width))
    root.set("height", _px(height))
    indent(root, " ")
    return tostring(root, encoding="unicode") + "\n"


# --- the head and its legend ----------------------------------------------------------------------------
def _header(
    root: Element,
    width: float,
    heading: str,
    facts: str,
    groups: Sequence[DrawnGroup],
    keys: Mapping[str, int],
) -> float:
    """Draw it; the height where it ends."""
    _text(root, _MARGIN, 42, heading, "ink head")
    _text(root, _MARGIN, 64, facts, "soft")
    entries: list[tuple[str, str]] = []
    for key, place in keys.items():
        gpus = sum(len(each.gpus) for each in groups if each.key == key)
        entries.append((f"c{place % len(_LIGHT)}", f"{key}: {_counted(gpus, 'GPU')}"))
    y = _legend(root, width, 80, entries)
    fills = [
        ("ink weights", "weights"),
        ("ink kv", "KV cache"),
        ("cell edge", "other memory"),
        ("unused", "unused GPU"),
    ]
    y = _legend(root, width, y, fills)
    _text(
        root,
        _MARGIN,
        y + 15,
        "TP: GPUs that share each layer. PP: pipeline stages. Memory is of each GPU.",
        "soft",
    )
    return y + 15


def _legend(root: Element, width: float, y: float, entries: Sequence[tuple[str, str]]) -> float:
    x: float = _MARGIN
    for css, words in entries:
        needed = 22 + 7 * len(words) + 18
        if x > _MARGIN and x + needed > width - _MARGIN:
            x, y = _MARGIN, y + 22
        _rect(root, x, y + 3, 15, 12, css, 3)
        _text(root, x + 22, y + 14, words, "ink")
        x += needed
    return y + 24


# --- pools, nodes, groups, cells --------------------------------------------------------------------------
def _pool(
    root: Element, y: float, pool: Mapping[str, Any], groups: Sequence[DrawnGroup], keys: Mapping[str, int]
) -> float:
    hardware = HARDWARE[pool["gpu"]]
    memory_gb = hardware.memory_bytes / 1e9
    used = sum(len(each.gpus) for each in groups)
    words = [f"{memory_gb:.0f} GB", f"{used} used"]
    if pool["usd_per_hour"] is not None:
        words.insert(1, f"{pool['usd_per_hour']:.2f} USD/h each")
    part = SubElement(root, "g", {"class": "pool"})
    name = _text(part, _MARGIN, y + 14, f"{pool['gpus']} × {pool['gpu']} ", "ink pool-name")
    SubElement(name, "tspan", {"dx": "6", "class": "soft plain"}).text = " · ".join(words)
    y += 24
    height, x = _node_height(pool), float(_MARGIN)
    for place, gpus in enumerate(_nodes(pool)):
        node_px = _node_width(len(gpus))
        if x > _MARGIN and x + node_px > _MARGIN + _WIDEST:
            x, y = _MARGIN, y + height + _NODE_GAP
        node = SubElement(part, "g", {"class": "node-of", "transform": f"translate({_px(x)} {_px(y)})"})
        _node(node, f"node {place}", gpus, groups, keys, memory_gb, height)
        x += node_px + _NODE_GAP
    return y + height


def _node(
    node: Element,
    name: str,
    gpus: range,
    groups: Sequence[DrawnGroup],
    keys: Mapping[str, int],
    memory_gb: float,
    height: float,
) -> None:
    _rect(node, 0, 0, _node_width(len(gpus)), height, "node", 10)
    _text(node, _PAD, 17, name, "soft small")
    for row, start in enumerate(range(0, len(gpus), _COLUMNS)):
        line = gpus[start : start + _COLUMNS]
        y = _NODE_HEAD + row * _row_height()
        drawn = set()
        for group in groups:
            own = [gpu for gpu in line if gpu in group.gpus]
            if own:
                drawn.update(own)
                _group(node, y, line, own, group, keys[group.key] % len(_LIGHT), memory_gb)
        for gpu in line:
            if gpu not in drawn:
                x = _x(line.index(gpu))
                cell = _cell(node, x, y, _LABEL_H + _CELL_H, "unused")
                _text(cell, x + 8, y + 17, f"GPU {gpu}", "soft name")
                _text(cell, x + 8, y + 35, "unused", "soft small")


def _group(
    node: Element, y: float, line: range, own: Sequence[int], group: DrawnGroup, colour: int, memory_gb: float
) -> None:
    """The part of a group that is in one line of a node's GPUs."""
    part = SubElement(node, "g", {"class": "group"})
    SubElement(part, "title").text = group.title
    left, right = _x(line.index(own[0])), _x(line.index(own[-1])) + _CELL_W
    _rect(part, left - 2, y - 2, right - left + 4, _LABEL_H + _CELL_H + 4, f"frame c{colour}", 8)
    room = right - left - 12
    _text(part, left + 6, y + 14, _fitting(group.name, room, 7.0), "ink name")
    _text(part, left + 6, y + 29, _fitting(group.shape, room, 5.9), "ink small")
    for gpu in own:
        x, top = _x(line.index(gpu)), y + _LABEL_H
        cell = _cell(part, x, top, _CELL_H, "cell edge")
        weights_px = _CELL_H * min(1.0, group.weights_gb / memory_gb)
        kv_px = min(_CELL_H - weights_px, _CELL_H * group.kv_gb / memory_gb)
        _rect(cell, x, top + _CELL_H - weights_px, _CELL_W, weights_px, f"c{colour} weights")
        _rect(cell, x, top + _CELL_H - weights_px - kv_px, _CELL_W, kv_px, f"c{colour} kv")
        _text(cell, x + 8, top + 17, f"GPU {gpu}", "ink name")
        note = group.notes[group.gpus.index(gpu)]
        if note:
            _text(cell, x + 8, top + 35, note, "ink small")
        _text(cell, x + 8, top + 57, f"KV {group.kv_gb:.1f} GB", "ink small")
        _text(cell, x + 8, top + 75, f"weights {group.weights_gb:.1f} GB", "ink small")


def _cell(parent: Element, x: float, y: float, height: float, css: str) -> Element:
    cell = SubElement(parent, "g", {"class": "gpu"})
    _rect(cell, x, y, _CELL_W, height, css, 4)
    return cell


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


# --- elements -----------------------------------------------------------------------------------------------
def _rect(
    parent: Element, x: float, y: float, width: float, height: float, css: str, rx: float = 0
) -> Element:
    attributes = {"x": x, "y": y, "width": width, "height": height, "rx": rx}
    values = {name: _px(value) for name, value in attributes.items() if name != "rx" or value}
    return SubElement(parent, "rect", {**values, "class": css})


def _text(parent: Element, x: float, y: float, words: str, css: str) -> Element:
    text = SubElement(parent, "text", {"x": _px(x), "y": _px(y), "class": css})
    text.text = words
    return text


def _px(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _fitting(words: str, room: float, letter_px: float) -> str:
    """The words, or their beginning where they need more room."""
    most = max(2, int(room / letter_px))
    return words if len(words) <= most else f"{words[: most - 1]}…"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _style(colours: int) -> str:
    """Classes and no variables: some programs that show SVG have none."""
    lines = [
        "text{font:12px system-ui,-apple-system,'Segoe UI','Liberation Sans',sans-serif}",
        ".small{font-size:11px}.name{font-weight:600}.head{font-size:20px;font-weight:650}",
        ".pool-name{font-size:15px;font-weight:620}.plain{font-size:12px;font-weight:400}.weights{fill-opacity:.55}.kv{fill-opacity:.28}",
        ".frame{fill-opacity:.07;stroke-width:1.5}.unused{fill:none;stroke-dasharray:4 3}.edge{stroke-width:1}",
    ]
    for theme in (0, 1):
        rules = [f".{name}{{fill:{pair[theme]}}}" for name, pair in _FRAME.items()]
        rules += [f".{name}{{stroke:{pair[theme]}}}" for name, pair in _EDGES.items()]
        rules.append(f".edge{{stroke:{_EDGES['unused'][theme]}}}")
        palette = (_LIGHT, _DARK)[theme][:colours]
        rules += [f".c{place}{{fill:{colour}}}" for place, colour in enumerate(palette)]
        rules += [f".frame.c{place}{{stroke:{colour}}}" for place, colour in enumerate(palette)]
        block = "".join(rules)
        lines.append(f"@media (prefers-color-scheme:dark){{{block}}}" if theme else block)
    return "\n".join(lines)
