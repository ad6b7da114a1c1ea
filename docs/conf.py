"""How the site is built: `make docs`, or `python -m sphinx -W docs docs/build/html`.

Nothing is fetched, neither when the site is built nor when it is read: formulas become MathML,
figures are part of the page, and the search index is a file beside it.
"""

import sys
from pathlib import Path

import bertflow

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

project = "bertflow"
author = copyright = "the bertflow authors"
version = release = bertflow.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "formulas",
    "figures",
    "commands",
    "names",
]
exclude_patterns = ["build"]
source_suffix = {".md": "markdown"}
myst_enable_extensions = ["attrs_block", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

# Docstrings: `x` is a name of ours where there is one, else code.
default_role = "py:obj"
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_custom_sections = ["Source"]
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
autodoc_type_aliases = {"Array": "Array", "Progress": "Progress"}

html_theme = "furo"
html_title = f"bertflow {version}"
html_static_path = ["_static"]
html_css_files = ["bertflow.css"]
html_copy_source = False
html_show_sphinx = False
# Summaries of what was found are read from the pages, which a browser refuses to a site on disk.
html_show_search_summary = False
pygments_style = "friendly"
pygments_dark_style = "monokai"
