"""Options that several commands share, and the values they are parsed to."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from bertflow.calibrators import Calibrator

CALIBRATOR_HELP = (
    "flow, tempered-flow, released-flow, whitening, standardization or all-but-the-top."
)
POOLING_HELP = (
    "How token states become a sentence vector: cls, mean, last2avg, first-last-avg, "
    "embed-last-avg or layers:1,12 (hidden states, 0 = embeddings). Default: the model's own if "
    "it is a sentence-transformers model, first-last-avg otherwise."
)

Pooling = Annotated[str | None, typer.Option(metavar="R", help=POOLING_HELP)]
MaxLength = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Tokens a sentence is cut to. Default: a sentence-transformers model's own, "
        "64 otherwise.",
    ),
]
Device = Annotated[
    str, typer.Option(metavar="NAME", help="auto, cpu, cuda, cuda:1, mps: where to compute.")
]
BatchSize = Annotated[int, typer.Option(metavar="N", min=1, help="Sentences a forward pass.")]
TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Let code that comes with the encoder run.")
]
EncodingPrecision = Annotated[
    str,
    typer.Option(
        metavar="KIND",
        help="What the encoder computes in: float32, mixed (products and attention in "
        "bfloat16), fast (all of it), or auto: mixed where the device has units for it.",
    ),
]
Devices = Annotated[
    str | None,
    typer.Option(
        metavar="N|all|NAMES",
        help="Encode in several processes: so many, on all GPUs, or on cuda:0,cuda:1.",
    ),
]
NoCache = Annotated[
    bool,
    typer.Option(
        "--no-cache", help="Encode everything, and keep no vectors; see bertflow cache --help."
    ),
]
Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A saved model, a sentence-transformers folder, a hub name or a .gguf file.",
    ),
]
Data = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Folder of the data, in any layout people have; default: BERTFLOW_DATA, and where "
        "it has none the model hub.",
    ),
]
OwnPairs = Annotated[
    Path | None,
    typer.Option(
        "--pairs",
        metavar="FILE",
        help="Pairs of your own: .csv, .tsv, .jsonl or .parquet with two columns of text and one "
        "of scores or of 0 and 1.",
    ),
]
Columns = Annotated[
    str | None,
    typer.Option(
        metavar="A,B,SCORE",
        help="The columns of --pairs by name, or by number from 1 where there is no header.",
    ),
]
Json = Annotated[
    Path | None,
    typer.Option(
        "--json",
        metavar="FILE|-",
        help="Write the result and all it depends on; - shows that instead of the tables.",
    ),
]
Markdown = Annotated[
    Path | None,
    typer.Option(
        "--markdown",
        metavar="FILE|-",
        help="Write what is shown as Markdown; - shows it so.",
    ),
]


def device_or_none(device: str) -> str | None:
    """What the libraries take: None where it is theirs to choose."""
    return None if device == "auto" else device


def three(columns: str | None) -> tuple[str, str, str] | None:
    """The columns of --columns.

    Raises:
        InputError: They are not three.
    """
    from bertflow.errors import InputError

    if columns is None:
        return None
    parts = [part.strip() for part in columns.split(",")]
    if len(parts) != 3:
        raise InputError(f"--columns takes three, such as text1,text2,score, got {columns!r}")
    return parts[0], parts[1], parts[2]


def build_calibrator(name: str, settings: list[str], random_state: int, device: str) -> Calibrator:
    """Construct a calibrator from --calibrator, --set, --random-state and --device.

    Raises:
        InputError: An unknown calibrator or argument, or a value it cannot take.
    """
    from bertflow.calibrators import Flow
    from bertflow.calibrators.storage import CALIBRATORS
    from bertflow.errors import InputError

    presets = {"tempered-flow": Flow.tempered, "released-flow": Flow.released}
    kinds: dict[str, Callable[[], Calibrator]] = {**CALIBRATORS, **presets}
    if name not in kinds:
        raise InputError(f"unknown calibrator {name!r}; expected one of {', '.join(kinds)}")
    calibrator = kinds[name]()
    known = calibrator.get_params(deep=False)
    given: dict[str, Any] = {"random_state": random_state, "device": device}
    given = {key: value for key, value in given.items() if key in known}
    for setting in settings:
        key, equals, value = setting.partition("=")
        key = key.strip().replace("-", "_")
        if not equals:
            raise InputError(f"--set takes KEY=VALUE, got {setting!r}")
        if key not in known:
            raise InputError(f"{name} has no {key!r}; it has {', '.join(sorted(known))}")
        given[key] = _value(key, value, known[key])
    calibrator.set_params(**given)
    return calibrator


def _value(key: str, text: str, default: Any) -> Any:
    from bertflow.errors import InputError, shown

    text = text.strip()
    if text.lower() in _WORDS:
        return _word(key, text, default)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):  # A text; or a number too long, or lists too deep.
        value = text
    number = isinstance(value, int | float) and not isinstance(value, bool)
    fits = isinstance(value, str) if isinstance(default, str) else number
    if default == "auto" and key == "shrinkage":
        fits = number or value == default
    if isinstance(default, int) or default is None:
        fits = fits and isinstance(value, int)
    if isinstance(default, bool):
        fits = False  # true and false are words
    if not fits:
        kind = "a number" if default is None else type(default).__name__
        raise InputError(f"--set {key} takes {kind} such as {default}, got {shown(text)}")
    return value


def _word(key: str, text: str, default: Any) -> Any:
    from bertflow.errors import InputError

    value = _WORDS[text.lower()]
    optional = default is None or key in ("max_grad_norm", "random_state")
    if isinstance(value, bool) != isinstance(default, bool) or (value is None and not optional):
        raise InputError(f"--set {key} takes a value such as {default}, got {text!r}")
    return value


_WORDS = {"true": True, "false": False, "null": None, "none": None}
