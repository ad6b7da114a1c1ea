"""Options of commands: how one is declared, and the dataclasses of those that travel together."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand

if TYPE_CHECKING:
    from bertflow.calibrators import Calibrator
    from bertflow.data import Pairs
    from bertflow.encoders import SentenceCache

# How --help groups what is not needed every day; each group has a width of its own.
INPUT, CALIBRATOR, ENCODER = "Input", "Calibrator", "Encoder"
SPEED, RESULT, CLUSTER = "Speed and cache", "Result", "Folders of .parquet and clusters"
REQUIRED = MISSING
POOLINGS = ("cls", "mean", "last2avg", "first-last-avg", "embed-last-avg", "layers:1,12")
POOLING_HELP = f"{', '.join(POOLINGS[:-1])} or {POOLINGS[-1]}."
PRECISIONS = ("auto", "float32", "mixed", "fast")
# What --against is without a value: the calibrated model's own encoder.
OWN_ENCODER = ""


# How options are declared.


def option(
    default: Any, metavar: str, help: str, *names: str, group: str | None = None, **more: Any
) -> Any:
    """A field of a class of options, or a parameter of a command: an option of the command line.

    Args:
        default: Its value where it is not given, or REQUIRED.
        metavar: What its value is called in the help.
        help: What it is for.
        names: Its names, if others than the field's.
        group: The group of the help that it stands in.
        more: As `typer.Option` takes it, such as `min` and `callback`.
    """
    said = typer.Option(*names, metavar=metavar, help=help, rich_help_panel=group, **more)
    return field(default=default, kw_only=True, metadata={"typer": said})


def flag(name: str, help: str, group: str | None = None) -> Any:
    """An option without a value: True where it is given."""
    said = typer.Option(name, help=help, rich_help_panel=group)
    return field(default=False, kw_only=True, metadata={"typer": said})


def argument(metavar: str, help: str, **more: Any) -> Any:
    """A required argument of a command."""
    return field(metadata={"typer": typer.Argument(metavar=metavar, help=help, **more)})


def flattened(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose classes of options are parameters of their own, as typer takes them.

    A parameter of a dataclass becomes a parameter for each field; a call builds the dataclass.
    """
    groups: dict[str, type[Any]] = {}
    parameters: list[inspect.Parameter] = []

    def add(name: str, kind: Any, declared: Field[Any]) -> None:
        default = inspect.Parameter.empty if declared.default is MISSING else declared.default
        kind = Annotated[kind, declared.metadata["typer"]]
        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters.append(inspect.Parameter(name, keyword, default=default, annotation=kind))

    hints = get_type_hints(command)
    for name, parameter in inspect.signature(command).parameters.items():
        if is_dataclass(hints[name]):
            groups[name] = hints[name]
            types = get_type_hints(hints[name])
            for one in fields(hints[name]):
                add(one.name, types[one.name], one)
        else:
            add(name, hints[name], parameter.default)

    def call(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{one.name: given.pop(one.name) for one in fields(group)})
        command(**given)

    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return call


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


# Values that are refused before anything heavy is imported.


def known_pooling(name: str | None) -> str | None:
    """A value of --pooling.

    Raises:
        InputError: There is no such pooling.
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


def known_devices(names: str | None) -> str | None:
    """A value of --devices, whose parts are refused as --device refuses them."""
    for name in [] if names is None or names == "all" or names.isdecimal() else names.split(","):
        if name.strip():
            _known_device(name.strip())
    return names


def known_place(name: str | None) -> str | None:
    """An encoder or model; refused if it can only be a path and that path does not exist."""
    from bertflow.errors import ModelError

    if name and (name.startswith((".", "/", "~")) or name.count("/") > 1 or name.endswith(".gguf")):
        with suppress(OSError, ValueError):  # Said when it is loaded.
            if not Path(name).exists():
                raise ModelError(
                    f"{name} does not exist; give a folder, a .gguf file or a hub name"
                )
    return name


# Options that several commands have, beside those of the classes below.

SOURCES_HELP = "Sentences: files, folders, URLs, hub:OWNER/NAME:SPLIT or -. May be repeated."
encoder_option = partial(
    option, metavar="NAME", help="Hub name, folder or .gguf.", callback=known_place
)
model_argument = partial(
    argument,
    "MODEL",
    "A saved model, an encoder's folder, a hub name or a .gguf file.",
    callback=known_place,
)
calibrator_option = partial(
    option,
    "adaptive-whitening",
    "NAME",
    "adaptive-whitening, flow, tempered-flow, released-flow, whitening, standardization or "
    "all-but-the-top.",
)
data_option = partial(
    option,
    None,
    "DIR",
    "Folder of the data sets. Default: BERTFLOW_DATA, then the hub.",
    group=INPUT,
)
column_option = partial(option, None, "NAME", "Text column of a table.", group=INPUT)
format_option = partial(
    option, None, "KIND", "txt, csv, tsv, jsonl or parquet, whatever the names end in.", group=INPUT
)
max_length_option = partial(
    option,
    None,
    "N",
    "Tokens a sentence is cut to. Default: the model's own, else 64.",
    group=ENCODER,
)
trust_option = partial(
    flag, "--trust-remote-code", "Let code that comes with the encoder run.", ENCODER
)
batch_size_option = partial(option, 32, "N", "Sentences a forward pass.", group=SPEED, min=1)
no_cache_option = partial(
    flag, "--no-cache", "Read and encode everything, and keep nothing.", SPEED
)
device_option = partial(
    option,
    "auto",
    "NAME",
    "Where to compute: auto, cpu, cuda, cuda:1, mps.",
    group=SPEED,
    callback=_known_device,
)


# Options that travel together.


@dataclass(frozen=True)
class TextOptions:
    """How a corpus is read."""

    column: str | None = column_option()
    format: str | None = format_option()


@dataclass(frozen=True)
class PairOptions:
    """Pairs of one's own, and how they are read."""

    pairs: Path | None = option(
        None, "FILE", "Your own pairs: a table with two columns of text and one of scores."
    )
    columns: str | None = option(
        None, "A,B,SCORE", "The columns of --pairs, by name or by number from 1.", group=INPUT
    )
    format: str | None = format_option()

    def read(self) -> list[Pairs]:
        """The pairs of --pairs, none without it.

        Raises:
            InputError: They cannot be read.
        """
        from bertflow.data import read_pairs

        if self.pairs is None:
            return []
        return [read_pairs(self.pairs, columns=three(self.columns), format=self.format)]


@dataclass(frozen=True)
class EncoderOptions:
    """How an encoder is loaded."""

    pooling: str | None = option(
        None,
        "NAME",
        f"{POOLING_HELP} Default: the model's own, else first-last-avg.",
        group=ENCODER,
        callback=known_pooling,
    )
    max_length: int | None = max_length_option()
    trust_remote_code: bool = trust_option()


@dataclass(frozen=True)
class SpeedOptions:
    """How sentences are encoded; a calibrator is fitted on the same device."""

    batch_size: int = batch_size_option()
    precision: str = option(
        "auto",
        "KIND",
        "float32, mixed (bfloat16 where it is safe), fast (all bfloat16) or auto.",
        group=SPEED,
        callback=_known_precision,
    )
    no_cache: bool = no_cache_option()
    device: str = device_option()

    @cached_property
    def cache(self) -> SentenceCache | None:
        """The user's cache of sentence vectors, unless it is not wanted.

        Raises:
            InputError: The environment asks for a size that is none.
        """
        from bertflow.encoders import SentenceCache

        return None if self.no_cache else SentenceCache()

    def encoding(self) -> dict[str, Any]:
        """What functions that encode sentences are called with."""
        return {"batch_size": self.batch_size, "precision": self.precision, "cache": self.cache}


@dataclass(frozen=True)
class CalibratorOptions:
    """Which calibrator is fitted, and with what settings."""

    calibrator: str = calibrator_option()
    set: list[str] | None = option(
        None,
        "KEY=VALUE",
        "Argument of the calibrator, such as epochs=2 of flow or dim=256 of whitening. May be "
        "repeated.",
        group=CALIBRATOR,
    )
    random_state: int = option(0, "N", "Seed.", group=CALIBRATOR)

    def build(self, device: str) -> Calibrator:
        """The calibrator, not fitted.

        Raises:
            InputError: As `build_calibrator` does.
        """
        return build_calibrator(self.calibrator, self.set or [], self.random_state, device)


@dataclass(frozen=True)
class ResultOptions:
    """Where results are written."""

    json: Path | None = option(
        None,
        "FILE",
        "Write the result and all it depends on; - shows that instead of the tables.",
        group=RESULT,
    )
    markdown: Path | None = option(
        None, "FILE", "Write what is shown as Markdown; - shows it so.", group=RESULT
    )

    def files(self) -> dict[str, Path | None]:
        """The files by their options."""
        return {"--json": self.json, "--markdown": self.markdown}


# What values stand for.


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


def refuse_alone(needed: str, given: Mapping[str, object], *, has_it: object) -> None:
    """Refuse options that mean nothing without another.

    Args:
        needed: The other option, or several.
        given: Values by option.
        has_it: Whether the other was given.

    Raises:
        InputError: One was given without it.
    """
    from bertflow.errors import InputError

    for name, value in given.items():
        if value is not None and not has_it:
            raise InputError(f"{name} goes with {needed}")


def refuse_beside(what: str, given: Mapping[str, object]) -> None:
    """Refuse options that contradict another.

    Args:
        what: The message's beginning, such as "vectors go without".
        given: Values by option.

    Raises:
        InputError: One was given.
    """
    from bertflow.errors import InputError

    if clash := [name for name, value in given.items() if value]:
        raise InputError(f"{what} {', '.join(clash)}")


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
    """The value of a setting, which must be of the kind of its default.

    Raises:
        InputError: It is not.
    """
    from bertflow.errors import InputError, shown

    text = text.strip()
    try:
        value = _WORDS[text.lower()] if text.lower() in _WORDS else json.loads(text)
    except (ValueError, RecursionError):  # A text; or a number too long, or lists too deep.
        value = text
    if not _fits(key, value, default):
        raise InputError(f"--set {key} takes a value such as {default}, got {shown(text)}")
    return value


def _fits(key: str, value: Any, default: Any) -> bool:
    if isinstance(value, bool) or isinstance(default, bool):
        return isinstance(value, bool) and isinstance(default, bool)
    if value is None:
        return default is None or key in ("max_grad_norm", "random_state")
    if key == "shrinkage":
        return value == default or isinstance(value, int | float)
    if isinstance(default, str):
        return isinstance(value, str)
    return isinstance(value, int if default is None or isinstance(default, int) else int | float)


_WORDS = {"true": True, "false": False, "null": None, "none": None}
