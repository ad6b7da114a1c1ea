"""Pieces of HTML for notebooks: everything escaped, no colour of their own.

Styles are written at each element, because notebooks that are not trusted lose style sheets. Text
has the page's colour and lines are half transparent grey, so that light and dark pages both do.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

LINE = "1px solid rgba(128, 128, 128, 0.4)"
CELL = "padding: 0.2em 0.8em; border: none;"


def block(title: str, *parts: str) -> str:
    """A titled part of a page.

    Args:
        title: Plain text.
        parts: HTML.

    Example:
        >>> "&lt;b&gt;" in block("<b>")
        True
    """
    return (
        '<div class="bertflow" style="color: inherit; background: transparent; '
        "border-left: 3px solid rgba(128, 128, 128, 0.4); padding-left: 0.8em; max-width: 100%; "
        'box-sizing: border-box; overflow-x: auto;"><p>'
        f"<b>{escape(title)}</b></p>{''.join(parts)}</div>"
    )


def facts_table(facts: Mapping[str, str]) -> str:
    """Names and what they are, both plain text, a row each.

    Example:
        >>> facts_table({"a < b": "yes"}).count("a &lt; b")
        1
    """
    rows = "".join(
        f'<tr style="background: transparent;"><th style="{CELL} text-align: left; '
        f'font-weight: normal; opacity: 0.75;">{escape(name)}</th>'
        f'<td style="{CELL} text-align: left; min-width: 8em; white-space: normal; '
        f'overflow-wrap: anywhere;">{escape(value)}</td></tr>'
        for name, value in facts.items()
    )
    return (
        f'<table style="color: inherit; border-collapse: collapse;"><tbody>{rows}</tbody></table>'
    )


def unfolded(title: str, text: str) -> str:
    """Text that is shown when its title is clicked at, both plain."""
    return (
        f"<details><summary>{escape(title)}</summary>"
        '<pre style="color: inherit; background: transparent; overflow-x: auto;">'
        f"{escape(text)}</pre></details>"
    )
