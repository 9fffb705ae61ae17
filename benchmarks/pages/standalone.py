"""A drawing as a file of its own, for a paper: plain colours and dashes in place of the page's style sheet."""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree import ElementTree

_SVG = "http://www.w3.org/2000/svg"
_INK, _SOFT = "#1b1f24", "#4a535c"
_CLASS = re.compile(r"c(\d+)")
_FONT = "font: 12px Helvetica, Arial, sans-serif; stroke-linejoin: round"


def standalone(svg: str, colours: Sequence[tuple[str, str, str]]) -> str:
    """The drawing for white paper. `colours` are (light, dark, dash) of the classes c0, c1, ..."""
    ElementTree.register_namespace("", _SVG)
    root = ElementTree.fromstring(svg.replace("<svg ", f'<svg xmlns="{_SVG}" ', 1))  # noqa: S314 (our own drawing)
    _, _, width, height = root.attrib["viewBox"].split()
    root.attrib |= {"width": width, "height": height, "style": f"{_FONT}; background: white; color: {_INK}"}
    _restyle(root, colours, ("#000000", "", "none"))
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def _restyle(
    element: ElementTree.Element, colours: Sequence[tuple[str, str, str]], colour: tuple[str, str, str]
) -> None:
    classes = element.attrib.pop("class", "").split()
    for each in classes:
        if found := _CLASS.fullmatch(each):
            colour = colours[int(found[1])]
    for name, value in element.attrib.items():
        element.attrib[name] = (
            value.replace("currentColor", _INK).replace("var(--soft)", _SOFT).replace("var(--c)", colour[0])
        )
    if "line" in classes and colour[2] != "none":
        element.set("stroke-dasharray", colour[2])
    if "name" in classes:
        element.set("font-weight", "600")
    for child in element:
        _restyle(child, colours, colour)
