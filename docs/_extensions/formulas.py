"""Formulas as MathML, made when the site is built, so that reading it takes no script and no net.

docutils, on which Sphinx stands, has the converter; Sphinx uses it for nothing but plain docutils.
"""

import re

from docutils import nodes
from docutils.utils.math import MathError, latex2mathml
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.writers.html5 import HTML5Translator

# Commands that the converter knows by another name.
NAMES = {"dots": "ldots", "big": "bigl", "Big": "Bigl"}
# TeX takes one character where there are no braces, the converter a whole number.
FRACTION = re.compile(r"\\([td]?frac)\s*([^\s{\\])(?:\s*([^\s{\\]))?")
# Bars are as high as what stands beside them, also where an exponent makes a box of the second.
BAR = re.compile(r"<mo((?: class=\"\w+\")?)>([|‖])</mo>")
# A function's name keeps its distance from what it is applied to, unless that is in brackets.
APPLIED = re.compile(r"<mo>(&ApplyFunction;)</mo>(?!\s*<mo)")
COMMAND = re.compile(r"\\(" + "|".join(NAMES) + r")(?![A-Za-z])")


def mathml(source: str, *, block: bool) -> str:
    """Convert LaTeX to a `<math>` element.

    Raises:
        ExtensionError: It holds something that cannot be converted; the message shows it.
    """
    known = COMMAND.sub(lambda found: "\\" + NAMES[found[1]], " ".join(source.split()))
    known = FRACTION.sub(_braced, known)
    try:
        made = str(latex2mathml.tex2mathml(known, as_block=block))
    except MathError as error:
        raise ExtensionError(f"no MathML of {source!r}: {error}") from None
    made = BAR.sub(r'<mo\1 stretchy="false">\2</mo>', made)
    return APPLIED.sub(r'<mo lspace="0" rspace="0.17em">\1</mo>', made)


def _braced(found: re.Match[str]) -> str:
    name, over, under = found.groups()
    return rf"\{name}{{{over}}}" + (f"{{{under}}}" if under else "")


def _inline(translator: HTML5Translator, node: nodes.math) -> None:
    translator.body.append(mathml(node.astext(), block=False))
    raise nodes.SkipNode


def _display(translator: HTML5Translator, node: nodes.math_block) -> None:
    translator.body.append(f'<div class="formula">{mathml(node.astext(), block=True)}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Make it the way in which HTML shows formulas."""
    app.add_html_math_renderer("mathml", (_inline, None), (_display, None))
    app.config.html_math_renderer = "mathml"
    return {"parallel_read_safe": True, "parallel_write_safe": True}
