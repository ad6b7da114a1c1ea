"""What a caller of bertflow may catch: one family, each member also the built-in it refines."""

from __future__ import annotations

from typing import Any


class BertflowError(Exception):
    """Base of every error bertflow raises on purpose; its message is one line."""


class InputError(BertflowError, ValueError):
    """A value, file or option is not what was expected; the message names it and the remedy."""


class MissingDataError(InputError):
    """A data set is neither in the given folder nor on the hub; the message says what was tried."""


class ModelError(BertflowError, RuntimeError):
    """An encoder or a saved model cannot be had, read or written as asked."""


class TrainingError(BertflowError, ArithmeticError):
    """Training met a step that is not finite; the message names the step.

    Attributes:
        kept: From `bertflow.Flow.fit`: the flow with the last weights that were looked at and good,
            fitted; None if there are none.
    """

    kept: Any = None


class MissingDependencyError(BertflowError, ImportError):
    """An optional package is needed; the message is the line that installs it."""
