"""Options of commands: how one is declared, and the dataclasses of those that travel together.

Help comes from docstrings, by the name of a parameter: of the command, else of the class of
options that it stands in, else of `Shared`.
"""

from __future__ import annotations

import inspect
import json
import re
import signal
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand

from bertflow.cli import console
from bertflow.errors import InputError, ModelError, one_line, unknown
from bertflow.io.files import save_or_keep, write_text
from bertflow.io.reading import hub_names

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from bertflow.calibrators import Calibrator
    from bertflow.data import Pairs
    from bertflow.encoders import SentenceCache
    from bertflow.evaluation import DuplicatesJob
    from bertflow.evaluation.jobs import Job

# How --help groups what is not needed every day; each group has a width of its own.
INPUT, CALIBRATOR, ENCODER = "Input", "Calibrator", "Encoder"
SPEED, RESULT, CLUSTER = "Speed and cache", "Result", "Folders of .parquet and clusters"
REQUIRED = MISSING
PRECISIONS = ("auto", "float32", "mixed", "fast")
ROLES = ("query", "document")
# What options of how files are read go with.
READ_FROM = {
    "column": ("corpus",),
    "columns": ("pairs", "labels"),
    "format": ("corpus", "pairs", "labels"),
}
# What --against is without a value: the calibrated model's own encoder.
OWN_ENCODER = ""


def option(
    default: Any, metavar: str | None, *names: str, group: str | None = None, **more: Any
) -> Any:
    """Declare an option: a field of a class of options, or a parameter of a command.

    `names` replace the field's name; `group` is a part of the help; `more` is for `typer.Option`.
    """
    said = typer.Option(*names, metavar=metavar, rich_help_panel=group, **more)
    return field(default=default, kw_only=True, metadata={"typer": said})


def flag(name: str, *, group: str | None = None, **more: Any) -> Any:
    """Declare an option without a value: True where it is given."""
    return option(False, None, name, group=group, **more)


def argument(metavar: str, **more: Any) -> Any:
    """Declare a required argument of a command."""
    return field(metadata={"typer": typer.Argument(metavar=metavar, **more)})


def summary(command: Callable[..., None]) -> str:
    """The help of a command: its docstring without arguments, a line for each paragraph."""
    text, _, _ = inspect.cleandoc(command.__doc__ or "").partition("\n\nArgs:\n")
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


def _descriptions(owner: object) -> dict[str, str]:
    """What the docstring of a command or of a class of options says of each, by name."""
    text = inspect.cleandoc(owner.__doc__ or "")
    found = re.findall(r"^    (\w+): (.+(?:\n     .+)*)", text, re.M)
    return {name: " ".join(description.split()) for name, description in found}


def flattened(command: Callable[..., None]) -> Callable[..., None]:
    """A command as typer takes it: with a parameter for each field of its classes of options.

    A field that the command has a parameter of its own for keeps its default.
    """
    hints = get_type_hints(command)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    declared: list[tuple[str, Any, Any, Sequence[object]]] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name in groups:
            group, types = hints[name], get_type_hints(hints[name])
            own = [one for one in fields(group) if one.name not in hints]
            declared += [(one.name, types[one.name], one, group.__mro__) for one in own]
        else:
            declared.append((name, hints[name], parameter.default, ()))
    parameters = []
    for name, kind, how, owners in declared:
        said = copy(how.metadata["typer"])
        texts = map(_descriptions, (command, *owners, Shared))
        # Python without docstrings (-OO) has no help.
        said.help = next((found[name] for found in texts if name in found), "")
        default = inspect.Parameter.empty if how.default is MISSING else how.default
        keyword, kind = inspect.Parameter.KEYWORD_ONLY, Annotated[kind, said]
        parameters.append(inspect.Parameter(name, keyword, default=default, annotation=kind))

    def call(**given: Any) -> None:
        for name, group in groups.items():
            own = [one.name for one in fields(group) if one.name not in hints]
            given[name] = group(**{one: given.pop(one) for one in own})
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


def one_of(what: str, known: Collection[str]) -> Callable[[Any], Any]:
    """What refuses a value of an option, such as a precision, that is none of those known."""

    def check(name: Any) -> Any:
        if name is not None and name not in known:
            raise unknown(what, name, known)
        return name

    return check


def known_pooling(given: Any) -> Any:
    """One or several poolings, refused by the library before anything else is read or loaded."""
    if given:
        from bertflow.encoders.pooling import ANY_BLOCKS, hidden_states

        for name in [given] if isinstance(given, str) else given:
            hidden_states(name, ANY_BLOCKS)
    return given


def listed(given: list[str] | None) -> list[str]:
    """The names of an option that may be repeated, or have several with commas between."""
    return [part.strip() for names in given or () for part in names.split(",")]


def known_place(name: str | None) -> str | None:
    """An encoder or model; refused before libraries are loaded if it is a path to nothing."""
    if name and not Path(name).exists():
        hub_names(name)
    return name


class Shared:
    """Options that stand for themselves, each under the name of its parameter.

    Attributes:
        model: A saved model, an encoder's folder, a hub name or a .gguf file.
        encoder: An encoder's folder, a hub name or a .gguf file.
        corpus: Sentences: files, folders, URLs, hub:OWNER/NAME:SPLIT or -. May be repeated.
        format: txt, csv, tsv, jsonl or parquet, whatever the names end in.
        data: Folder of the data sets. Default: BERTFLOW_DATA, then the hub.
        against: Another model, or without a value the calibrated model's own encoder; says which
            differences are beyond chance. Beside a calibrated model, encoders without a pooling of
            their own take its pooling and length, unless --pooling and --max-length say otherwise.
        output: Folder to save to.
        calibrator: adaptive-whitening, search-whitening, flow, tempered-flow, released-flow,
            whitening, standardization, soft-standardization or all-but-the-top. Default: that for
            the job.
        role: query or document: which side of a search the rows are, after a fit with queries.
        random_state: Seed.
        trust_remote_code: Let code that comes with the encoder run.
        batch_size: Sentences a forward pass.
        device: Where to compute: auto, cpu, cuda, cuda:1, mps.
        jobs: Processes that fit at a time. Default: the CPUs.
        devices: Encode in so many processes, on all GPUs (all), or on cuda:0,cuda:1.
    """

    model = argument("MODEL", callback=known_place)
    encoder = argument("ENCODER", callback=known_place)
    corpus = option(None, "FILE")
    format = option(None, "KIND", group=INPUT)
    data = option(None, "DIR", group=INPUT)
    against = option(None, "[MODEL]")
    output = option(REQUIRED, "DIR")
    output_or = option(None, "DIR", "--output")
    calibrator = option(None, "NAME")
    role = option("document", "NAME", callback=one_of("role", ROLES))
    pooling = option(None, "NAME", group=ENCODER, callback=known_pooling)
    trust_remote_code = flag("--trust-remote-code", group=ENCODER)
    batch_size = option(32, "N", group=SPEED, min=1)
    device = option("auto", "NAME", group=SPEED)
    devices = option(None, "N", group=SPEED)


@dataclass(frozen=True)
class Text:
    """How a corpus is read.

    Attributes:
        column: Text column of a table.
    """

    column: str | None = option(None, "NAME", group=INPUT)
    format: str | None = Shared.format

    def sentences(self, sources: list[str], limit: int | None = None) -> list[str]:
        """The sentences of files."""
        from bertflow.data import read_corpus

        return read_corpus(sources, column=self.column, limit=limit, format=self.format)


@dataclass(frozen=True)
class Graded:
    """Pairs of one's own, and how they are read.

    Attributes:
        pairs: Your own pairs: a table with two columns of text and one of scores.
        columns: The columns of --pairs, by name or by number from 1.
    """

    pairs: Path | None = option(None, "FILE")
    columns: str | None = option(None, "A,B,SCORE", group=INPUT)
    format: str | None = Shared.format

    def given(self, *names: str) -> dict[str, Any]:
        """The values of those of some options that the command has."""
        return {f"--{name}": getattr(self, name) for name in names if hasattr(self, name)}

    def reads(self) -> dict[str, Any]:
        """What is read, by option."""
        return self.given("corpus", "pairs", "retrieval", "labels")

    def check(self) -> None:
        """Refuse options of how sentences, pairs or labels are read, where none are."""
        for how, what in READ_FROM.items():
            sources = self.given(*what)
            if not any(sources.values()):
                refuse(self.given(how), f"goes with {' or '.join(sources)}")

    def read(self) -> list[Pairs]:
        """The pairs of --pairs, none without it."""
        from bertflow.data import read_pairs

        if self.pairs is None:
            return []
        return [read_pairs(self.pairs, columns=self.named(), format=self.format)]

    def duplicates(self, pairs: Pairs) -> DuplicatesJob:
        """The pairs of --pairs as duplicates and others."""
        from bertflow.evaluation import DuplicatesJob

        if not pairs.binary:
            raise InputError(
                f"{self.pairs} has graded pairs; --pairs takes labels 1 and 0 here, and bertflow "
                "evaluate scores grades"
            )
        return DuplicatesJob(pairs)

    def named(self) -> Any:
        """The columns as readers take them."""
        return self.columns and tuple(map(str.strip, self.columns.split(",")))


@dataclass(frozen=True)
class Material(Graded, Text):
    """Sentences and pairs of one's own, and how they are read."""

    corpus: list[str] | None = Shared.corpus


@dataclass(frozen=True)
class OwnJob(Graded):
    """Pairs or another job of one's own to judge vectors by.

    Attributes:
        columns: The columns of --pairs (A,B,SCORE) or of --labels (TEXT,LABEL), by name or by
            number from 1.
        retrieval: Your own search: a folder with corpus.jsonl, queries.jsonl and qrels (BEIR).
        labels: Your own classes: a table with a column of text and one of labels.
    """

    retrieval: Path | None = option(None, "DIR")
    labels: Path | None = option(None, "FILE")

    def check(self, task: list[str] | None = None) -> None:
        """Refuse --retrieval or --labels beside anything else, and an empty list of tasks alone."""
        given = {"--task": task, **self.given("pairs", "retrieval", "labels")}
        names = [name for name, value in given.items() if value]
        if task is not None and not names:
            raise InputError(
                "give --task NAME (or all), or --pairs FILE, --retrieval DIR or --labels FILE"
            )
        if len(names) > 1 and (self.retrieval or self.labels):
            raise InputError(f"{' and '.join(names)} do not go together; give one at a time")
        super().check()

    def job(self, split: str | None = None) -> Job | None:
        """The job of --retrieval or --labels; None without them."""
        from bertflow.evaluation import read_labels, read_retrieval

        if self.retrieval is not None:
            return read_retrieval(self.retrieval, split=split)
        if self.labels is not None:
            return read_labels(self.labels, columns=self.named(), format=self.format)
        return None


@dataclass(frozen=True)
class JobMaterial(OwnJob, Material):
    """A job of one's own, and sentences beside it."""


@dataclass(frozen=True)
class Loading:
    """How an encoder is loaded; a calibrator is fitted on the same device.

    Attributes:
        pooling: cls, mean, last2avg, first-last-avg, embed-last-avg or layers:1,12. Default: the
            model's own, else first-last-avg.
        max_length: Tokens a sentence is cut to. Default: the model's own, else 64.
        no_cache: Read and encode everything, and keep nothing.
    """

    pooling: str | None = Shared.pooling
    max_length: int | None = option(None, "N", group=ENCODER)
    trust_remote_code: bool = Shared.trust_remote_code
    no_cache: bool = flag("--no-cache", group=SPEED)
    device: str = Shared.device

    @cached_property
    def cache(self) -> SentenceCache | None:
        """The user's cache of sentence vectors, unless it is not wanted."""
        from bertflow.encoders import SentenceCache

        return None if self.no_cache else SentenceCache()

    def loading(self) -> dict[str, Any]:
        """The arguments of functions that load an encoder, but for the cache."""
        names = ("pooling", "max_length", "trust_remote_code")
        given = {name: getattr(self, name) for name in names}
        return {**given, "device": None if self.device == "auto" else self.device}

    def load_raw(self, name: str) -> SentenceTransformer:
        """Load an encoder without calibration."""
        from bertflow.encoders import load_encoder

        with console.busy(f"loading {one_line(name)}"):
            return load_encoder(name, **self.loading(), cache=self.cache)

    def open_any(self, name: str) -> SentenceTransformer:
        """Open a model, calibrated or not."""
        from bertflow.models import open_model

        with console.busy(f"loading {one_line(name)}"):
            return open_model(name, **self.loading(), cache=self.cache)

    def open_sides(self, names: Sequence[str]) -> Iterator[tuple[int, Any]]:
        """Open one or two models, each with its place among the names, calibrated ones first.

        Beside those their own encoder (OWN_ENCODER, not loaded again) and encoders without a
        pooling of their own are loaded as they were: what differs is then the calibration.
        """
        from bertflow.encoders.loading import has_pooling
        from bertflow.models import is_calibrated

        raw = {name for name in names if name != OWN_ENCODER and not is_calibrated(name)}
        encoder: Any = None
        fitted: tuple[str | None, int | None] | None = None
        sides = sorted(enumerate(names), key=lambda side: side[1] in {OWN_ENCODER, *raw})
        for place, name in sides:
            if name == OWN_ENCODER:
                yield place, encoder
                continue
            own = self
            if name not in raw and raw:
                own = replace(self, pooling=None, max_length=None)
            elif name in raw and fitted and not has_pooling(name):
                pooling, limit = self.pooling or fitted[0], self.max_length or fitted[1]
                own = replace(self, pooling=pooling, max_length=limit)
            model: Any = own.open_any(name)
            if name not in raw:
                fitted = _as_fitted(model)
                encoder = model.encoder if OWN_ENCODER in names else None
            yield place, model
            del model  # One at a time is in memory.


def _as_fitted(model: Any) -> tuple[str | None, int | None]:
    """Pooling and length of a calibrated model's encoder; the pooling is None if it has no name."""
    from bertflow.encoders.description import describe_settings

    settings = describe_settings(model.encoder)
    pooling = "cls" if settings["pooling"] == "cls" else None
    if settings["modules"][0] == "Transformer" and settings["pooling"] == "mean":
        # By number, since an encoder that was cut has its last block elsewhere than the whole one.
        blocks = model[0].model.config.get_text_config().num_hidden_layers
        pooling = f"layers:{','.join(map(str, settings['layers'] or [blocks]))}"
    return pooling, settings["max_length"]


def check_own(against: str | None, model: str) -> None:
    """Refuse --against without a value where there is no encoder that it could mean."""
    if against != OWN_ENCODER:
        return
    from bertflow.models import is_calibrated

    if not is_calibrated(model):
        raise InputError(
            f"--against without a value is the encoder of a saved calibrated model, and {model} is "
            "none; name the other model"
        )


@dataclass(frozen=True)
class Encoder(Loading):
    """How an encoder is loaded, and how it encodes sentences.

    Attributes:
        precision: float32, mixed (bfloat16 where it is safe), fast (all bfloat16) or auto.
    """

    batch_size: int = Shared.batch_size
    precision: str = option("auto", "KIND", group=SPEED, callback=one_of("precision", PRECISIONS))

    def encoding(self) -> dict[str, Any]:
        """The arguments of functions that encode sentences."""
        return {"batch_size": self.batch_size, "precision": self.precision, "cache": self.cache}


@dataclass(frozen=True)
class Chosen:
    """Which calibrator is fitted, and with what settings.

    Attributes:
        job: What the vectors are for: similarity, search, classes or clusters. It chooses the
            calibrator where none is named.
        set: Argument of the calibrator, such as epochs=2 of flow or dim=256 of whitening. May be
            repeated.
    """

    calibrator: str | None = Shared.calibrator
    job: str = option("similarity", "NAME")
    set: list[str] | None = option(None, "KEY=VALUE", group=CALIBRATOR)
    random_state: int = option(0, "N", group=CALIBRATOR)

    @cached_property
    def name(self) -> str:
        """The calibrator's name: that given, or that for the job."""
        from bertflow.calibrators.storage import calibrator_for

        default = calibrator_for(self.job)
        return default if self.calibrator is None else self.calibrator

    def build(self, device: str) -> Calibrator:
        """The calibrator, not fitted; a fit says what is wrong with its arguments."""
        from bertflow.calibrators.storage import named_calibrator

        known = named_calibrator(self.name).get_params(deep=False)
        if self.random_state and "random_state" not in known:
            raise InputError(f"--random-state does not go with {self.name}, which has no seed")
        given: dict[str, Any] = {}
        for setting in self.set or []:
            key, equals, text = setting.partition("=")
            key = key.strip().replace("-", "_")
            if not equals:
                raise InputError(f"--set takes KEY=VALUE, got {setting!r}")
            if key in given:
                raise InputError(f"--set gives {key} twice; give it once")
            given[key] = _value(text.strip())
        rest = {"random_state": self.random_state, "device": device}
        given = {key: value for key, value in rest.items() if key in known} | given
        return named_calibrator(self.name, **given)


@dataclass(frozen=True)
class Cluster:
    """How shards are worked on.

    Attributes:
        engine: local or ray: work on a folder of .parquet here or on a cluster, shard by shard.
        address: Ray cluster, or auto for this machine's. Default: one is started.
        workers: Ray actors. Default: one a GPU, or one a CPU but for one.
        skip_unreadable: Leave out shards that cannot be used, count and list them.
        vector: Column of vectors in .parquet files.
    """

    engine: str | None = option(None, "NAME", group=CLUSTER)
    address: str | None = option(None, "HOST:PORT", group=CLUSTER)
    workers: int | None = option(None, "N", group=CLUSTER, min=1)
    skip_unreadable: bool = flag("--skip-unreadable", group=CLUSTER)
    vector: str = option("vector", "NAME", group=CLUSTER)

    def take(self, vectors: str | None) -> bool:
        """Whether a command works shard by shard: if asked, or if its vectors are .parquet files.

        Otherwise options that mean nothing then are refused.
        """
        if self.engine is not None:
            return True
        if vectors is not None:
            if "://" in vectors or vectors.endswith(".parquet") or Path(vectors).is_dir():
                return True
        refuse(changed(self), "goes with a folder of .parquet files and --engine local or ray")
        return False

    @contextmanager
    def running(self, stage: str) -> Iterator[dict[str, Any]]:
        """The arguments of functions that work on shards, with an engine and the stage's bar."""
        from bertflow.scale import opened_engine

        name, handler = self.engine or "local", signal.getsignal(signal.SIGTERM)
        with (
            opened_engine(name, address=self.address, workers=self.workers) as engine,
            console.progress_bar(stage) as report,
        ):
            signal.signal(signal.SIGTERM, handler)  # Ray puts one of its own in the place of ours.
            skip = self.skip_unreadable
            yield {"engine": engine, "skip_unreadable": skip, "progress": report}


@dataclass(frozen=True)
class EncodingCluster(Cluster):
    """How shards of text are worked on.

    Attributes:
        keep: Column to keep beside the vectors. May be repeated. Default: all but the text.
        numbers: float32 or float16: numbers in .parquet files.
        skip_blank: Leave out rows of shards without text; counted.
    """

    keep: list[str] | None = option(None, "NAME", group=CLUSTER)
    numbers: str = option("float32", "KIND", group=CLUSTER)
    skip_blank: bool = flag("--skip-blank", group=CLUSTER)


@dataclass(frozen=True)
class Results:
    """Where results are written.

    Attributes:
        json: Write the result and all it depends on; - shows that instead of the tables.
        markdown: Write what is shown as Markdown; - shows it so.
    """

    json: Path | None = option(None, "FILE", group=RESULT)
    markdown: Path | None = option(None, "FILE", group=RESULT)

    def check(self, reads: Mapping[str, console.Given], figure: Path | None = None) -> None:
        """Refuse files as `console.check_files` does; one of them may be standard output."""
        if self.json == self.markdown == console.STDOUT:
            raise InputError("--json and --markdown are both standard output; give a file for one")
        given = {"--json": self.json, "--markdown": self.markdown, "--figure": figure}
        console.check_files(
            {name: path for name, path in given.items() if path != console.STDOUT}, reads
        )

    def give(self, pages: Sequence[console.Page], content: dict[str, Any]) -> None:
        """Show pages, and write them as Markdown and the content as JSON where it is asked for.

        What is asked for on standard output is shown alone. Where a file cannot be written, all
        else is done all the same, and a ModelError says so.
        """
        forms: dict[Path, str] = {}
        if self.json is not None:
            forms[self.json] = json.dumps(content, indent=2, allow_nan=False) + "\n"
        if self.markdown is not None:
            forms[self.markdown] = "\n".join(page.markdown() for page in pages)
        alone = forms.pop(console.STDOUT, None)
        # Files first: whoever reads what is shown may have gone.
        lost = []
        for path, text in forms.items():
            try:
                save_or_keep(path, partial(write_text, text=text))
            except ModelError as error:
                lost.append(str(error))
        try:
            if alone is None:
                console.show("\n\n".join(page.text() for page in pages))
            else:
                sys.stdout.write(alone)
        finally:  # Also where whoever reads what is shown has gone.
            if lost:
                raise ModelError("; ".join(lost))


def changed(options: Any, *but: str) -> dict[str, Any]:
    """Whether each option of a class, but for some, has another value than its default."""
    return {
        f"--{one.name.replace('_', '-')}": getattr(options, one.name) != one.default
        for one in fields(options)
        if one.name not in but
    }


def refuse(given: Mapping[str, object], why: str) -> None:
    """Refuse options that were given and mean nothing here; the message is their names and why."""
    if names := [name for name, value in given.items() if value]:
        raise InputError(f"{', '.join(names)} {why}")


def _value(text: str) -> Any:
    """A number, truth value or None, else the text."""
    words = {"true": True, "false": False, "none": None}
    try:
        return words[text.lower()] if text.lower() in words else json.loads(text)
    except (ValueError, RecursionError):  # A text; or a number too long, or lists too deep.
        return text
