"""A report as one HTML page that stands alone: nothing is fetched, in no browser, for any data."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import string
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import bertflow
from bertflow.analysis.diagnosis import evidence_of
from bertflow.display.tables import MINUS, fixed, span
from bertflow.errors import InputError, MissingDependencyError
from bertflow.evaluation import Difference
from bertflow.io.files import check_writable, write_text
from bertflow.report import draw
from bertflow.report.build import Report
from bertflow.report.measures import ScoreTable

if TYPE_CHECKING:
    from jinja2 import Template

# Characters of a sentence that the page shows.
LONGEST_TEXT = 160
SUFFIXES = (".html", ".htm")
# The query to begin with is the first sentence of so many characters, if there is one.
READABLE = range(25, 91)
# Of each section in order, its heading, and what it is called where there is little room.
HEADINGS = {
    "measures": ("What the vectors are like", "Measures"),
    "cosines": ("Cosines of random pairs", "Cosines"),
    "spectra": ("Singular values", "Spectrum"),
    "cloud": ("The cloud in two dimensions", "Cloud"),
    "neighbours": ("Nearest neighbours", "Neighbours"),
    "scores": ("Scores", "Scores"),
    "words": ("Norm and word frequency", "Words"),
    "edits": ("Similarity and edit distance", "Edit distance"),
    "training": ("Training", "Training"),
    "absent": ("Not here", "Not here"),
    "provenance": ("Provenance", "Provenance"),
}
# What measures mean, in the fewest words; docs/mathematics.md has their equations.
MEANINGS = {
    "mean cosine of random pairs": "how alike any two look; 1 is the same",
    "deviation of cosines, centred": "0 tells nothing apart",
    "partition function isotropy": "1 if no direction is favoured",
    "IsoScore": "how evenly rows spread over all dimensions",
    "effective rank": "how many dimensions are really used",
    "hubness (skewness, k = 10)": "are the same few nearest to everything?",
    "rows that are nobody's neighbour": "never found by any search",
    "uniformity": "how evenly rows fill the sphere; lower is better",
    "dimensions that do not vary": "the same number in every row",
}


def check_page(path: str | Path) -> None:
    """Refuse a file that no page can be written to, before any work is done for it.

    Raises:
        InputError: It does not end in .html or .htm.
        ModelError: It is a folder, or is in none that may be written to.
        MissingDependencyError: matplotlib or Jinja2 is not there; the message is the pip line.

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
    """Write a report to a page that is then the new one whole, or still the old one.

    Args:
        report: As `build_report` gives it.
        path: A file that ends in .html or .htm.

    Returns:
        How many bytes it has.

    Raises:
        InputError: Another suffix.
        ModelError: It cannot be written.
        MissingDependencyError: matplotlib or Jinja2 is not there; the message is the pip line.
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
        MissingDependencyError: matplotlib or Jinja2 is not there; the message is the pip line.
    """
    _check_packages()
    return _template().render(_context(report))


def _check_packages() -> None:
    draw.check_matplotlib()
    if find_spec("jinja2") is None:
        raise MissingDependencyError("a report needs Jinja2: pip install 'bertflow[report]'")


@cache
def _template() -> Template:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    from bertflow.report.svg import inline_svg

    environment = Environment(
        loader=PackageLoader("bertflow.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["minus"] = lambda text: str(text).replace("-", MINUS)
    environment.globals |= {"fixed": fixed, "span": span, "zip": zip, "draw": draw}
    environment.globals["svg"] = inline_svg
    return environment.get_template("page.html")


def _context(report: Report) -> dict[str, Any]:
    """What the template shows besides its prose."""
    style, script, payload = template_file("page.css"), template_file("page.js"), _payload(report)
    present = {name: getattr(report, name, None) is not None for name in HEADINGS} | {
        "measures": bool(report.diagnoses),
        "absent": bool(report.absent),
        "provenance": True,
    }
    letters = {} if report.scores is None else _letters(report.scores)
    return {
        "report": report,
        "version": bertflow.__version__,
        "policy": (
            f"default-src 'none'; style-src '{_hashed(style)}'; script-src '{_hashed(script)}'; "
            "img-src data:; base-uri 'none'; form-action 'none'"
        ),
        "style": style,
        "script": script,
        "payload": payload,
        "data": in_script(payload),
        "headings": HEADINGS,
        "sections": [name for name, there in present.items() if there],
        "evidence": evidence_of(report.diagnoses) if report.diagnoses else None,
        "meanings": MEANINGS,
        "warnings": dict.fromkeys(
            warning for one in report.diagnoses.values() for warning in one.warnings
        ),
        "letters": letters,
        "arrow": arrow,
        "marks": lambda cell: "".join(sorted(letters.get(doubt, "") for doubt in cell.doubts)),
    }


def _letters(found: ScoreTable) -> dict[str, str]:
    """Of each doubt about a published number, the letter that marks it."""
    doubts = dict.fromkeys(
        doubt
        for row in found.table.rows
        for cell in row.cells.values()
        if cell.published is not None
        for doubt in cell.doubts
    )
    return dict(zip(doubts, string.ascii_lowercase, strict=False))


def arrow(change: Difference | None) -> str:
    """Above or below beyond chance, as the paper's arrows; · where that cannot be told.

    Example:
        >>> arrow(Difference(2.0, 1.0, 3.0, p=0.001, adjusted=0.001)), arrow(Difference(0.1))
        ('↑', '·')
    """
    if change is None:
        return ""
    if not change.real:
        return "·"
    return "↑" if (change.value or 0) > 0 else "↓"


def template_file(name: str) -> str:
    """The text of a file that the page is made from."""
    return files("bertflow.report").joinpath("templates", name).read_text(encoding="utf-8")


def _hashed(text: str) -> str:
    """What a content security policy knows an inline style sheet or script by."""
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


# Sentences and their neighbours.


def _payload(report: Report) -> dict[str, Any] | None:
    """What the script needs: texts, and the neighbours of each query."""
    near = report.neighbours
    if near is None or report.cloud is None:
        return None
    used = np.unique(np.concatenate([near.queries, *(rows.ravel() for rows in near.rows.values())]))
    place = {row: n for n, row in enumerate(used.tolist())}
    texts = None
    if report.texts is not None:
        texts = [shortened(report.texts[row]) for row in used.tolist()]
    return {
        "names": list(near.rows),
        "texts": texts,
        "rows": None if texts is not None else used.tolist(),
        "queries": [place[row] for row in near.queries.tolist()],
        "near": [
            [[place[row] for row in several] for several in rows.tolist()]
            for rows in near.rows.values()
        ],
        "cosines": [
            [[round(cosine, 3) for cosine in several] for several in cosines.tolist()]
            for cosines in near.cosines.values()
        ],
        "first": _first_query(report),
    }


def shortened(text: str) -> str:
    """A sentence as the page shows it: on one line, and not too long.

    Example:
        >>> shortened("a" * 200)[-3:], len(shortened("a" * 200))
        ('aa…', 160)
    """
    flat = " ".join(text.split())
    return flat if len(flat) <= LONGEST_TEXT else f"{flat[: LONGEST_TEXT - 1]}…"


def _first_query(report: Report) -> int:
    """The query that the page begins with."""
    near = report.neighbours
    assert near is not None
    if report.texts is None:
        return 0
    readable = (len(report.texts[row]) in READABLE for row in near.queries.tolist())
    return next((place for place, good in enumerate(readable) if good), 0)
