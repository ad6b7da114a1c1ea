"""A report as one HTML page that stands alone: nothing is fetched, whatever the data hold."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np

import bertflow
from bertflow.analysis.diagnosis import evidence_of
from bertflow.display.grid import MINUS, fixed, span
from bertflow.errors import InputError, MissingDependencyError
from bertflow.io.files import check_writable, write_text
from bertflow.report import draw
from bertflow.report.build import Report

if TYPE_CHECKING:
    from jinja2 import Template
    from markupsafe import Markup
    from matplotlib.figure import Figure

# Characters of a sentence that the page shows.
LONGEST_TEXT = 160
SUFFIXES = (".html", ".htm")
# The page begins with the first query of such a length, if there is one.
READABLE = range(25, 91)
# The variable of the page's style sheet that stands for a colour of the figures.
VARIABLES = {
    draw.LOOKS[0].color: "first",
    draw.LOOKS[1].color: "second",
    draw.REST["color"]: "rest",
    draw.SHORT["color"]: "short",
    draw.PUBLISHED_COLOR: "print",
    draw.INK: "ink",
    draw.FAINT: "quiet",
    draw.GROUND: "ground",
    draw.STRIPE: "raised",
}
COLOR = re.compile("#[0-9a-f]{6}")
LONG = re.compile(r"-?\d+\.\d{3,}")
REFERENCE = re.compile(r"^((?:url\()?#)")
SIZE = re.compile(r"([\d.]+)px")


def check_page(path: str | Path) -> None:
    """Refuse a file that no page can be written to, before any work is done for it.

    Raises:
        InputError: It does not end in .html or .htm.
        ModelError: It is a folder, or its folder cannot be written.
        MissingDependencyError: matplotlib or Jinja2 is missing; the message is the pip line.

    Example:
        >>> check_page("report.pdf")
        Traceback (most recent call last):
        bertflow.errors.InputError: report.pdf must end in .html to hold a report
    """
    if Path(path).suffix.lower() not in SUFFIXES:
        raise InputError(f"{path} must end in .html to hold a report")
    _check_packages()
    check_writable(path)


def write_report(report: Report, path: str | Path) -> int:
    """Write a report to a page, which is then the new one whole, or still the old one.

    Args:
        report: As `build_report` gives it.
        path: A file that ends in .html or .htm.

    Returns:
        How many bytes it has.

    Raises:
        BertflowError: As `check_page`, or the page cannot be written.
    """
    check_page(path)
    text = render(report)
    write_text(path, text)
    return len(text.encode("utf-8"))


def render(report: Report) -> str:
    """A report as the text of a page; the same report gives the same text.

    Args:
        report: As `build_report` gives it.

    Returns:
        HTML with its style sheet, script, pictures and data.

    Raises:
        MissingDependencyError: matplotlib or Jinja2 is missing; the message is the pip line.
    """
    _check_packages()
    style, script, payload = template_file("page.css"), template_file("page.js"), _payload(report)
    return _template().render(
        report=report,
        version=bertflow.__version__,
        policy=(
            f"default-src 'none'; style-src '{_hashed(style)}'; script-src '{_hashed(script)}'; "
            "img-src data:; base-uri 'none'; form-action 'none'"
        ),
        style=style,
        script=script,
        payload=payload,
        data=in_script(payload),
        evidence=evidence_of(report.diagnoses) if report.diagnoses else None,
    )


def _check_packages() -> None:
    draw.check_matplotlib()
    if find_spec("jinja2") is None:
        raise MissingDependencyError("a report needs Jinja2: pip install 'bertflow[report]'")


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
    environment.filters["minus"] = lambda text: str(text).replace("-", MINUS)
    tools = {"fixed": fixed, "span": span, "zip": zip, "draw": draw, "svg": inline_svg}
    environment.globals |= tools
    return environment.get_template("page.html")


def template_file(name: str) -> str:
    """The text of a file that the page is made from."""
    return files("bertflow.report").joinpath("templates", name).read_text(encoding="utf-8")


def _hashed(text: str) -> str:
    """The source of an inline style sheet or script in a content security policy."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode()}"


def in_script(value: Any) -> str:
    r"""JSON that can stand in a script element, whatever its strings hold.

    Example:
        >>> print(in_script("</script>"))
        "\u003c/script\u003e"
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    # Half a character cannot be written as UTF-8.
    return re.sub(r"[\ud800-\udfff]", lambda half: f"\\u{ord(half[0]):04x}", text)


def _payload(report: Report) -> dict[str, Any] | None:
    """The data of the script: the neighbours of each query, by row, and the texts of rows."""
    near, texts = report.neighbours, report.texts
    if near is None:
        return None
    queries = near.queries.tolist()
    shown, first = None, 0
    if texts is not None:
        used = np.unique(np.concatenate([near.queries, *map(np.ravel, near.rows.values())]))
        shown = {row: shortened(texts[row]) for row in used.tolist()}
        readable = [n for n, row in enumerate(queries) if len(texts[row]) in READABLE]
        first = readable[0] if readable else 0
    return {
        "names": list(near.rows),
        "texts": shown,
        "queries": queries,
        "near": [rows.tolist() for rows in near.rows.values()],
        "cosines": [cosines.round(3).tolist() for cosines in near.cosines.values()],
        "first": first,
    }


def shortened(text: str) -> str:
    """A sentence as the page shows it: on one line, and not too long.

    Example:
        >>> shortened("a" * 200)[-3:], len(shortened("a" * 200))
        ('aa…', 160)
    """
    flat = " ".join(text.split())
    return flat if len(flat) <= LONGEST_TEXT else f"{flat[: LONGEST_TEXT - 1]}…"


def inline_svg(figure: Figure, name: str, label: str, titles: Sequence[str] = ()) -> Markup:
    """Turn a figure into an SVG element that needs no style attribute, file or font.

    Its text can be selected, and its colours follow the page's light and dark.

    Args:
        figure: Of `bertflow.report.draw`. A part with the gid ".dots" gets the class "dots".
        name: Put before each id, so that several figures can stand on one page.
        label: The text of the picture for a screen reader.
        titles: Tooltips of the points of class "titled".
    """
    from markupsafe import Markup

    root = ElementTree.fromstring(draw.file_content(figure, ".svg"))
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
