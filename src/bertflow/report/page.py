"""A report as one HTML page that stands alone: nothing is fetched, whatever the data hold."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np

from bertflow.analysis.diagnosis import evidence_of
from bertflow.analysis.neighbours import Neighbours
from bertflow.display.grid import fixed, hundredfold, hundredfold_span, span
from bertflow.errors import InputError
from bertflow.io.files import check_writable, write_text
from bertflow.report import draw
from bertflow.report.build import Report

if TYPE_CHECKING:
    from jinja2 import Template
    from markupsafe import Markup
    from matplotlib.figure import Figure

# Characters of a sentence that the page shows.
LONGEST_TEXT = 160
# The variable of the page's style sheet that stands for a colour of the figures.
VARIABLES = {
    draw.LOOKS[0].color: "first",
    draw.LOOKS[1].color: "second",
    draw.FINAL_COLOR: "quiet",
    draw.INK: "ink",
    draw.FAINT: "quiet",
    draw.GROUND: "ground",
}
COLOR = re.compile("#[0-9a-f]{6}")
LONG = re.compile(r"-?\d+\.\d{3,}")
FONT_SIZE = re.compile(r"font.*?([\d.]+)px")


def check_page(path: str | Path) -> None:
    """Refuse a file that no page can be written to, before any work is done for it."""
    if Path(path).suffix.lower() not in (".html", ".htm"):
        raise InputError(f"{path} must end in .html to hold a report")
    draw.check_matplotlib()
    check_writable(path)


def write_report(report: Report, path: str | Path) -> int:
    """Write a report to a page, whole or not at all; the number of its bytes.

    Raises:
        InputError: The path does not end in .html or .htm.
        ModelError: It cannot be written.
        MissingDependencyError: matplotlib is missing; the message is the pip line.
    """
    check_page(path)
    text = render(report)
    write_text(path, text)
    return len(text.encode("utf-8"))


def render(report: Report) -> str:
    """A report as HTML that stands alone; the same report gives the same text.

    Raises:
        MissingDependencyError: matplotlib is missing; the message is the pip line.
    """
    draw.check_matplotlib()
    return _template().render(
        report=report,
        style=template_file("page.css"),
        script=template_file("page.js"),
        payload=_payload(report),
    )


@cache
def _template() -> Template:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("bertflow.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    environment.filters |= {"evidence": evidence_of, "digest": _digest, "shared": shared}
    numbers = {"fixed": fixed, "span": span}
    numbers |= {"hundredfold": hundredfold, "hundredfold_span": hundredfold_span}
    environment.globals |= {**numbers, "zip": zip, "draw": draw, "svg": inline_svg}
    return environment.get_template("page.html")


def template_file(name: str) -> str:
    """The text of a file that the page is made from."""
    return files("bertflow.report").joinpath("templates", name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """The source of an inline style sheet or script in a content security policy."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode()}"


def _payload(report: Report) -> dict[str, Any] | None:
    """The data of the script: the neighbours of each query, by row, and the texts of rows."""
    texts, shown = report.texts, None
    if report.neighbours is None or report.cloud is None:
        return None
    queries = report.cloud.rows.tolist()
    near = [one.largest for one in report.neighbours.values()]
    if texts is not None:
        used = np.union1d(queries, near)
        shown = {row: shortened(texts[row]) for row in used.tolist()}
    return {
        "names": list(report.neighbours),
        "texts": shown,
        "queries": queries,
        "near": [rows.tolist() for rows in near],
        "cosines": [one.dots.round(3).tolist() for one in report.neighbours.values()],
    }


def shared(several: Sequence[Neighbours]) -> float:
    """The mean share of neighbours that are the same on both sides."""
    first, last = several[0].largest, several[-1].largest
    return float((first[:, :, None] == last[:, None, :]).any(axis=2).mean())


def shortened(text: str) -> str:
    """A sentence as the page shows it: on one line, and not too long."""
    flat = " ".join(text.split())
    return flat if len(flat) <= LONGEST_TEXT else f"{flat[: LONGEST_TEXT - 1]}…"


def inline_svg(figure: Figure, name: str, label: str) -> Markup:
    """Turn a figure into an SVG element that needs no style attribute, file or font.

    Its colours follow the page's light and dark, and a part with the gid ".dots" gets the class
    "dots". The name differs between the figures of a page, so that their ids do; the label is for
    screen readers.
    """
    from markupsafe import Markup

    root = ElementTree.fromstring(draw.file_content(figure, ".svg", salt=name))
    for unused in [*root.findall("{*}metadata"), *root.findall("{*}defs[{*}style]")]:
        root.remove(unused)
    for element in root.iter():
        _make_plain(element)
    box = root.get("viewBox", "")
    root.attrib = {"class": "chart", "viewBox": box, "role": "img", "aria-label": label}
    root.set("stroke-linejoin", "round")
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def _make_plain(element: ElementTree.Element) -> None:
    """Take attributes for the style, which the page's policy forbids, and no namespaces."""
    element.tag = element.tag.rpartition("}")[2]
    old = {key.rpartition("}")[2]: value for key, value in element.attrib.items()}
    new = {}
    for declaration in filter(None, old.pop("style", "").split("; ")):
        key, _, value = declaration.partition(": ")
        if size := FONT_SIZE.match(declaration):
            new["font-size"] = size[1]
        elif not key.startswith("font"):
            new[key] = COLOR.sub(lambda color: f"var(--{VARIABLES[color[0]]})", value)
    gid = old.pop("id", "")
    if gid.startswith("."):
        new["class"] = gid[1:]
    elif gid and element.tag != "g":
        new["id"] = gid
    for key, value in old.items():
        new[key] = LONG.sub(lambda number: f"{float(number[0]):.2f}", value)
    element.attrib = new
