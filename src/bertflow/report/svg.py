"""A figure as a part of a page: its text can be selected, its colours follow light and dark."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from markupsafe import Markup

from bertflow.report.draw import (
    FAINT,
    GROUND,
    INK,
    LOOKS,
    PUBLISHED_COLOR,
    REST,
    SHORT,
    STRIPE,
    file_content,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The variable of the page's style sheet that stands for a colour of the figures.
VARIABLES = {
    LOOKS[0].color: "first",
    LOOKS[1].color: "second",
    REST["color"]: "rest",
    SHORT["color"]: "short",
    PUBLISHED_COLOR: "print",
    INK: "ink",
    FAINT: "quiet",
    GROUND: "ground",
    STRIPE: "raised",
}
COLOR = re.compile("#[0-9a-f]{6}")
LONG = re.compile(r"-?\d+\.\d{3,}")
REFERENCE = re.compile(r"^((?:url\()?#)")
SIZE = re.compile(r"([\d.]+)px")


def inline_svg(figure: Figure, name: str, label: str, titles: Sequence[str] = ()) -> Markup:
    """Turn a figure into an SVG element that needs no style attribute, file or font.

    Args:
        figure: Of `bertflow.report.draw`. A part with the gid ".dots" gets the class "dots".
        name: Put before what is an id, so that several figures can stand on one page.
        label: What a screen reader says instead of the picture.
        titles: Tooltips of the points of class "titled".
    """
    root = ElementTree.fromstring(file_content(figure, ".svg"))
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
    for unused in ("metadata", "defs"):
        if (found := root.find(unused)) is not None and found.find("clipPath") is None:
            root.remove(found)
    for element in root.iter():
        _plain(element, name)
    points = root.findall(".//g[@class='titled']//use") if titles else []
    for point, title in zip(points, titles, strict=True):
        ElementTree.SubElement(point, "title").text = title
    _, _, width, height = root.get("viewBox", "0 0 0 0").split()
    root.attrib = {
        "class": "chart",
        "viewBox": f"0 0 {width} {height}",
        "role": "img",
        "aria-label": label,
        "stroke-linejoin": "round",
    }
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def _plain(element: ElementTree.Element, name: str) -> None:
    """Attributes instead of a style, which the page's security policy forbids; ids of its own."""
    old = {key.rpartition("}")[2]: value for key, value in element.attrib.items()}
    new = {}
    for declaration in filter(None, old.pop("style", "").split("; ")):
        key, _, value = declaration.partition(": ")
        if key in ("font", "font-size") and (size := SIZE.search(value)):
            new["font-size"] = size[1]
        elif not key.startswith("font"):
            new[key] = COLOR.sub(lambda color: f"var(--{VARIABLES[color[0]]})", value)
    gid = old.pop("id", "")
    if gid.startswith("."):
        new["class"] = gid[1:]
    elif gid and element.tag != "g":
        new["id"] = f"{name}-{gid}"
    for key, value in old.items():
        referring = REFERENCE.sub(rf"\1{name}-", value)
        new[key] = LONG.sub(lambda number: f"{float(number[0]):.2f}", referring)
    element.attrib = new
