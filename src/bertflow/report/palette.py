"""Colours and shapes that page and plots share: told apart without colour, too.

The hues are those of Okabe and Ito (2008), which people with any colour vision tell apart.
"""

from __future__ import annotations

from dataclasses import dataclass

ORANGE, SKY, GREEN, YELLOW = "#E69F00", "#56B4E9", "#009E73", "#F0E442"
BLUE, VERMILION, PURPLE, BLACK = "#0072B2", "#D55E00", "#CC79A7", "#000000"


@dataclass(frozen=True)
class Look:
    """How a side is drawn.

    Attributes:
        color: On a light ground.
        dark: On a dark ground.
        dashes: Of its lines, in points; none are solid.
        marker: Of its points, as matplotlib names it.
    """

    color: str
    dark: str
    dashes: tuple[float, ...]
    marker: str


# The first side, and the second.
LOOKS = (
    Look(color=VERMILION, dark=ORANGE, dashes=(5.0, 3.0), marker="^"),
    Look(color=BLUE, dark=SKY, dashes=(), marker="o"),
)
# What others have published.
PUBLISHED = Look(color="#57606a", dark="#a8b0b9", dashes=(), marker="D")
