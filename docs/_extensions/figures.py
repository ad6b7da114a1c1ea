"""SVG figures of ours as part of the page, so that they follow its colours, light or dark.

In Markdown they are images like others, and are shown as such wherever the file is read.
"""

import re
from html import escape
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.writers.html5 import HTML5Translator

ROOT = re.compile(r"<svg\b[^>]*\bviewBox=\"([^\"]*)\"[^>]*>")
ALONE = re.compile(r"<\?xml.*?\?>|<!DOCTYPE.*?>|<metadata>.*?</metadata>|<style>.*?</style>", re.S)


def _visit(translator: HTML5Translator, node: nodes.image) -> None:
    path = Path(translator.builder.srcdir) / node["uri"]
    if path.suffix != ".svg":
        return HTML5Translator.visit_image(translator, node)
    drawing = ALONE.sub("", path.read_text(encoding="utf-8"))
    label = f' role="img" aria-label="{escape(node.get("alt", ""))}"'
    found = ROOT.search(drawing)
    if found is None:
        raise ExtensionError(f"{path} has no <svg> with a viewBox")
    width = found[1].split()[2]
    opening = f'<svg class="figure" style="--drawn: {width}pt" viewBox="{found[1]}"{label}'
    opening += ' xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink">'
    translator.body.append(opening + drawing[found.end() :].strip())
    raise nodes.SkipNode


def _depart(translator: HTML5Translator, node: nodes.image) -> None:
    HTML5Translator.depart_image(translator, node)


def setup(app: Sphinx) -> dict[str, bool]:
    """Take over how HTML shows images."""
    app.add_node(nodes.image, override=True, html=(_visit, _depart))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
