"""The errors of bertflow: one family, and each is also the built-in exception that it refines."""

from __future__ import annotations

import math
import os
import shlex
import sys
import unicodedata
import warnings
from collections.abc import Iterable
from difflib import get_close_matches
from importlib.util import find_spec
from numbers import Integral, Real
from subprocess import list2cmdline
from typing import Any

LONGEST_VALUE, LONGEST_MESSAGE = 80, 20_000
# Categories that would break the line or the terminal: control characters, line ends, surrogates.
UNSHOWN = {"Cc", "Zl", "Zp", "Cs"}


def shown(value: Any) -> str:
    r"""A value as a message shows it: on one line, its middle left out if it is long.

    Example:
        >>> shown("a\tb"), shown("x" * 1000) == f"'{'x' * 49} ... {'x' * 24}'"
        ("'a\\tb'", True)
    """
    # A long text is cut before it is escaped, to save time.
    text = repr(_shortened(value, 10 * LONGEST_VALUE) if isinstance(value, str) else value)
    return _shortened(text, LONGEST_VALUE)


def one_line(said: object) -> str:
    """A message or name on one line: line breaks are escaped, and a huge text is cut."""
    text = "".join(
        c.encode("unicode_escape").decode() if unicodedata.category(c) in UNSHOWN else c
        for c in _shortened(str(said), LONGEST_MESSAGE)
    )
    return _shortened(text, LONGEST_MESSAGE)


def quoted(name: Any) -> str:
    """A name or path as part of a command that can be pasted into a shell, on one line."""
    text = one_line(name)
    text = f"./{text}" if text.startswith("-") else text
    return list2cmdline([text]) if os.name == "nt" else shlex.quote(text)


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name, if a known name is close to it.

    Example:
        >>> did_you_mean("tempered", ["flow", "tempered-flow"]), did_you_mean("x", ["flow"])
        ('; did you mean tempered-flow?', '')
    """
    likely = get_close_matches(given.lower(), list(known), n=1)
    return f"; did you mean {likely[0]}?" if likely else ""


def unknown(what: str, given: str, known: Iterable[str]) -> InputError:
    """The error for a name that is none of those known.

    Example:
        >>> print(unknown("pooling", "meen", ["cls", "mean"]))
        unknown pooling 'meen'; expected one of cls, mean; did you mean mean?
    """
    names = list(known)
    return InputError(
        f"unknown {what} {shown(given)}; expected one of {', '.join(names)}"
        f"{did_you_mean(given, names)}"
    )


def _shortened(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    end = (most - 5) // 3
    return f"{text[: most - 5 - end]} ... {text[-end:]}"


def check_number(
    name: str,
    value: Any,
    low: float = -math.inf,
    high: float = math.inf,
    *,
    integer: bool = False,
    above: bool = False,
) -> None:
    """Refuse by an InputError what is no finite number from `low` (or `above` it) to `high`."""
    kind = Integral if integer else Real
    good = isinstance(value, kind) and not isinstance(value, bool) and math.isfinite(float(value))
    if good and (low < value if above else low <= value) and value <= high:
        return
    what = "an integer" if integer else "a number"
    if high < math.inf:
        span = f" above {low} and at most {high}" if above else f" between {low} and {high}"
    else:
        span = "" if low == -math.inf else f" above {low}" if above else f" of at least {low}"
    raise InputError(f"{name} must be {what}{span}, got {shown(value)}")


def check_choice(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    """Refuse by an InputError an argument that is none of its possible values."""
    if value not in choices:
        raise InputError(f"{name} must be one of {choices}, got {shown(value)}")


class BertflowError(Exception):
    """Base of every error bertflow raises on purpose.

    The message says value, expectation and remedy. What would break its one line is escaped.
    """

    def __init__(self, message: object = "") -> None:
        super().__init__(one_line(str(message)))


class InputError(BertflowError, ValueError):
    """A value, file or option is not what was expected; the message names it and the remedy."""


class MissingDataError(InputError):
    """A data set is neither in the given folder nor on the hub; the message says what was tried."""


class ModelError(BertflowError, RuntimeError):
    """An encoder or a saved model cannot be had, read or written as asked."""


class TrainingError(BertflowError, ArithmeticError):
    """Training met a step that is not finite; the message names the step."""


class FewRowsWarning(UserWarning):
    """A calibrator is fitted on fewer rows than it needs; the message has the numbers."""


def warn(message: str, kind: type[Warning] = FewRowsWarning) -> None:
    """Warn at the line that called the library. Nothing else in the library warns."""
    frame, level = sys._getframe(1), 2
    # scikit-learn and contextlib call us on the user's behalf.
    ours = ("bertflow", "contextlib", "sklearn")
    while frame.f_globals.get("__name__", "").partition(".")[0] in ours and frame.f_back:
        frame, level = frame.f_back, level + 1
    warnings.warn(one_line(message), kind, stacklevel=level)


class MissingDependencyError(BertflowError, ImportError):
    """An optional package is needed; the message is the line that installs it."""


def need(work: str, extra: str, *packages: str) -> None:
    """Refuse work whose packages are missing; the message says which extra brings them."""
    if missing := [package for package in packages if find_spec(package) is None]:
        raise MissingDependencyError(
            f"{work} needs {' and '.join(missing)}: pip install 'bertflow[{extra}]'"
        )
