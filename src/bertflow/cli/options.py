"""Options that several commands share, and the values they are parsed to."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

if TYPE_CHECKING:
    from bertflow.calibrators import Calibrator

# How --help groups what is not needed every day; each group has a width of its own.
INPUT, CALIBRATOR, ENCODER = "Input", "Calibrator", "Encoder"
SPEED, RESULT, CLUSTER = "Speed and cache", "Result", "Folders of .parquet and clusters"


class Command(TyperCommand):
    """A command whose --against may stand without a value, which is then OWN_ENCODER."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Give --against the value that it lacks."""
        given: list[str] = []
        for word, following in zip(args, [*args[1:], "--"], strict=False):
            given.append(word)
            if word == "--against" and following.startswith("-"):
                given.append(OWN_ENCODER)
        return super().parse_args(ctx, given)


CALIBRATOR_HELP = (
    "adaptive-whitening, flow, tempered-flow, released-flow, whitening, standardization or "
    "all-but-the-top."
)
POOLINGS = ("cls", "mean", "last2avg", "first-last-avg", "embed-last-avg", "layers:1,12")
POOLING_HELP = f"{', '.join(POOLINGS[:-1])} or {POOLINGS[-1]}."
PRECISIONS = ("auto", "float32", "mixed", "fast")
# What --against is without a value: the calibrated model's own encoder.
OWN_ENCODER = ""


def known_pooling(name: str | None) -> str | None:
    """A value of --pooling, refused before an encoder is loaded if there is none such.

    Raises:
        InputError: There is none.
    """
    from bertflow.errors import unknown

    if name is not None and name not in POOLINGS and not name.startswith("layers:"):
        raise unknown("pooling", name, POOLINGS)
    return name


def _known_precision(name: str) -> str:
    from bertflow.errors import InputError, did_you_mean

    if name not in PRECISIONS:
        raise InputError(
            f"precision must be one of {', '.join(PRECISIONS)}, got {name!r}"
            f"{did_you_mean(name, PRECISIONS)}"
        )
    return name


def _known_device(name: str) -> str:
    if name != "auto":
        from bertflow.arrays import check_device

        check_device(name)
    return name


def _known_devices(names: str | None) -> str | None:
    for name in [] if names is None or names == "all" or names.isdecimal() else names.split(","):
        if name.strip():
            _known_device(name.strip())
    return names


def known_place(name: str | None) -> str | None:
    """An encoder or model, refused before any is loaded where it can be but a path, and is none."""
    from bertflow.errors import ModelError

    if name and (name.startswith((".", "/", "~")) or name.count("/") > 1 or name.endswith(".gguf")):
        with suppress(OSError, ValueError):  # Said when it is loaded.
            if not Path(name).exists():
                raise ModelError(
                    f"{name} does not exist; give a folder, a .gguf file or a hub name"
                )
    return name


ENCODER_OPTION = typer.Option(
    "--encoder", metavar="NAME", callback=known_place, help="Hub name, folder or .gguf."
)
SOURCES_HELP = "Sentences: files, folders, URLs, hub:OWNER/NAME:SPLIT or -. May be repeated."
Corpus = Annotated[
    list[str] | None,
    typer.Option("--corpus", metavar="FILE", help=SOURCES_HELP),
]
Output = Annotated[Path, typer.Option("--output", metavar="DIR", help="Folder to save to.")]
Column = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Text column of a table.", rich_help_panel=INPUT),
]
Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="KIND",
        help="txt, csv, tsv, jsonl or parquet, whatever the names end in.",
        rich_help_panel=INPUT,
    ),
]
Pooling = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        callback=known_pooling,
        help=f"{POOLING_HELP} Default: the model's own, else first-last-avg.",
        rich_help_panel=ENCODER,
    ),
]
MaxLength = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Tokens a sentence is cut to. Default: the model's own, else 64.",
        rich_help_panel=ENCODER,
    ),
]
Device = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        callback=_known_device,
        help="Where to compute: auto, cpu, cuda, cuda:1, mps.",
        rich_help_panel=SPEED,
    ),
]
BatchSize = Annotated[
    int,
    typer.Option(metavar="N", min=1, help="Sentences a forward pass.", rich_help_panel=SPEED),
]
TrustRemoteCode = Annotated[
    bool,
    typer.Option(
        "--trust-remote-code",
        help="Let code that comes with the encoder run.",
        rich_help_panel=ENCODER,
    ),
]
EncodingPrecision = Annotated[
    str,
    typer.Option(
        metavar="KIND",
        callback=_known_precision,
        help="float32, mixed (bfloat16 where it is safe), fast (all bfloat16) or auto.",
        rich_help_panel=SPEED,
    ),
]
Devices = Annotated[
    str | None,
    typer.Option(
        metavar="N",
        callback=_known_devices,
        help="Encode in so many processes, on all GPUs (all), or on cuda:0,cuda:1.",
        rich_help_panel=SPEED,
    ),
]
NoCache = Annotated[
    bool,
    typer.Option(
        "--no-cache",
        help="Read and encode everything, and keep nothing.",
        rich_help_panel=SPEED,
    ),
]
Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        callback=known_place,
        help="A saved model, an encoder's folder, a hub name or a .gguf file.",
    ),
]
Data = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Folder of the data sets. Default: BERTFLOW_DATA, then the hub.",
        rich_help_panel=INPUT,
    ),
]
OwnPairs = Annotated[
    Path | None,
    typer.Option(
        "--pairs",
        metavar="FILE",
        help="Your own pairs: a table with two columns of text and one of scores.",
    ),
]
Columns = Annotated[
    str | None,
    typer.Option(
        metavar="A,B,SCORE",
        help="The columns of --pairs, by name or by number from 1.",
        rich_help_panel=INPUT,
    ),
]
Json = Annotated[
    Path | None,
    typer.Option(
        "--json",
        metavar="FILE",
        help="Write the result and all it depends on; - shows that instead of the tables.",
        rich_help_panel=RESULT,
    ),
]
Markdown = Annotated[
    Path | None,
    typer.Option(
        "--markdown",
        metavar="FILE",
        help="Write what is shown as Markdown; - shows it so.",
        rich_help_panel=RESULT,
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
    from bertflow.calibrators.storage import named_calibrator
    from bertflow.calibrators.writing import check_savable
    from bertflow.errors import InputError

    known = named_calibrator(name).get_params(deep=False)
    given: dict[str, Any] = {"random_state": random_state, "device": device}
    given = {key: value for key, value in given.items() if key in known}
    for setting in settings:
        key, equals, value = setting.partition("=")
        key = key.strip().replace("-", "_")
        if not equals:
            raise InputError(f"--set takes KEY=VALUE, got {setting!r}")
        given[key] = _value(key, value, known[key]) if key in known else value
    calibrator = named_calibrator(name, **given)
    check_savable(calibrator)
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
