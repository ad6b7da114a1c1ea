"""How a calibrator is described: by name and preset, and in cards, without dates."""

from __future__ import annotations

import copy
import re
import tomllib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path, PurePath, PureWindowsPath
from typing import TYPE_CHECKING, Any

from bertflow.errors import InputError, one_line, shown

if TYPE_CHECKING:
    from bertflow.calibrators.base import Calibrator

CARD = "README.md"
# Stands in the card's code until the folder has a name on the hub.
HERE = "path/to/this/folder"
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
PLAIN_NAME = re.compile(r"[\w.+-]+(/[\w.-]+)?", re.ASCII)
# What a provenance names files by.
FILES = ("corpus", "vectors", "query_files", "query_vectors")
# Of each class "what" it is and its "source"; and "limits" of them all.
TEXTS: dict[str, Any] = tomllib.loads(
    (files("bertflow.calibrators") / "card.toml").read_text(encoding="utf-8")
)


def calibrator_name(calibrator: Calibrator) -> str:
    """The name a calibrator goes by in files and on the command line; InputError for others."""
    kind = type(calibrator)
    if "names" not in vars(kind):
        raise InputError(f"{kind.__name__} is no calibrator of bertflow's, and cannot be stored")
    return next(iter(kind.names))


def preset_of(calibrator: Calibrator) -> tuple[str, dict[str, Any]]:
    """The nearest name of a calibrator, and the arguments but the device in which it differs."""
    calibrator_name(calibrator)
    kind, given = type(calibrator), calibrator.get_params(deep=False)
    defaults = kind().get_params(deep=False)
    differing = {}
    for name, changes in kind.names.items():
        preset = {**defaults, **changes, "device": given.get("device")}
        differing[name] = {key: value for key, value in given.items() if value != preset[key]}
    nearest = min(differing, key=lambda name: len(differing[name]))
    return nearest, differing[nearest]


def preset_name(calibrator: Calibrator) -> str:
    """The same in words, such as "tempered-flow, epochs=2"."""
    name, changed = preset_of(calibrator)
    return ", ".join([name, *(f"{key}={shown(value)}" for key, value in changed.items())])


def write_card(calibrator: Calibrator, folder: Path) -> None:
    """Write the card of a fitted calibrator into its own folder."""
    tags = ["bertflow", calibrator_name(calibrator), "sentence-embeddings"]
    origin = origin_metadata(told_of(calibrator, "origin"))
    card = filled(
        "bertflow.calibrators",
        "card.md",
        **TEXTS[type(calibrator).__name__],
        limits=TEXTS["limits"],
        metadata=front_matter(library_name="bertflow", tags=tags, **origin),
        preset=preset_of(calibrator)[0],
        made=table(made_of(calibrator)),
        sides=calibrator.query_map_ is not None,
    )
    (folder / CARD).write_text(card, encoding="utf-8", newline="\n")


def filled(package: str, name: str, **content: Any) -> str:
    """A template of a package, filled."""
    from jinja2 import Template

    source = (files(package) / name).read_text(encoding="utf-8")
    return f"{Template(source).render(content)}\n"


def front_matter(**metadata: Any) -> str:
    """Metadata as YAML for the hub, without empty entries."""
    from huggingface_hub import ModelCardData

    content = ModelCardData(**{name: value for name, value in metadata.items() if value})
    return content.to_yaml(line_break="\n").strip()


def origin_metadata(origin: Mapping[str, Any]) -> dict[str, str]:
    """The base model and licence in an encoder's origin, as metadata."""
    names = {name: origin.get(name) for name in ("base_model", "license")}
    return {k: v for k, v in names.items() if isinstance(v, str) and PLAIN_NAME.fullmatch(v)}


def told_of(calibrator: Calibrator, part: str) -> Mapping[str, Any]:
    """What a provenance tells of a part of it, such as "encoder"; empty where it tells nothing."""
    told = getattr(calibrator, "provenance_", {}).get(part)
    return told if isinstance(told, Mapping) else {}


def made_of(calibrator: Calibrator) -> dict[str, str]:
    """How a calibrator was fitted and on what, by name; cells of Markdown."""
    provenance = getattr(calibrator, "provenance_", {})
    call = code(" ".join(repr(calibrator).split()))
    if preset_of(calibrator)[0] != calibrator_name(calibrator):  # One with a name of its own.
        call = f"{text(preset_name(calibrator))}: {call}"
    facts = {"calibrator": call}
    if encoder := told_of(calibrator, "encoder"):
        facts |= encoder_cells(encoder, told_of(calibrator, "origin"))
    facts |= {**calibrator.facts(), "files": _files(provenance)}
    facts["for"] = text(provenance.get("job") or "")
    if isinstance(cut := provenance.get("cut_to_max_length"), int):
        facts["cut"] = f"{cut:,} of the distinct sentences were longer than the encoder takes"
    if isinstance(precision := provenance.get("precision"), str):
        facts["encoded in"] = code(precision)
    versions = told_of(calibrator, "versions").items()
    facts["versions"] = ", ".join(f"{text(name)} {text(one)}" for name, one in versions)
    return {name: cell for name, cell in facts.items() if cell}


def encoder_facts(encoder: Mapping[str, Any]) -> dict[str, str]:
    """Pooling, length, type and prompt of an encoder as `describe_encoder` describes it."""
    layers, pooling = encoder.get("layers"), encoder.get("pooling")
    states = f", of hidden states {', '.join(map(str, layers))} averaged" if layers else ""
    length, kind, prompt = (encoder.get(name) for name in ("max_length", "dtype", "prompt"))
    facts = {
        "pooling": f"{pooling}{states}" if pooling else "",
        "maximum length": "" if length is None else f"{length} tokens",
        "encoder's type": str(kind or ""),
        "prompt": str(prompt or ""),
    }
    return {name: fact for name, fact in facts.items() if fact}


def encoder_cells(encoder: Mapping[str, Any], origin: Mapping[str, Any]) -> dict[str, str]:
    """The same as cells of Markdown, and its name: a link to the hub, or without its folders."""
    name = "an encoder without a name"
    if base := origin_metadata(origin).get("base_model"):
        name = f"[{text(base)}](https://huggingface.co/{base})"
    elif encoder.get("name"):
        name = code(last_part(str(encoder["name"])))
    facts = encoder_facts(encoder).items()
    cells = {key: (code if key == "prompt" else text)(fact) for key, fact in facts}
    return {"encoder": name, **cells}


def last_part(name: str, longest: int = 2) -> str:
    """The last part of a path, since its folders are private; a name as on the hub unchanged."""
    path = PureWindowsPath(name) if "\\" in name else PurePath(name)
    return path.name if path.is_absolute() or len(path.parts) > longest else name


def without_folders(calibrator: Calibrator) -> Calibrator:
    """A copy of a calibrator whose provenance names files without the folders of this machine."""
    provenance = dict(getattr(calibrator, "provenance_", {}))
    for key in FILES:
        if key in provenance:
            provenance[key] = _without_folders(provenance[key])
    encoder = told_of(calibrator, "encoder")
    if encoder.get("name") not in (None, told_of(calibrator, "origin").get("base_model")):
        provenance["encoder"] = {**encoder, "name": _without_folders(encoder["name"])}
    public = copy.copy(calibrator)
    public.provenance_ = provenance
    return public


def _without_folders(name: Any) -> Any:
    if isinstance(name, list | tuple):
        return [_without_folders(each) for each in name]
    # The name of a data set on the hub has a slash, too, but is public.
    return last_part(name, 1) if isinstance(name, str) and not name.startswith("hub:") else name


def named(content: str, name: str) -> str:
    """A card whose code loads from a name on the hub instead of `HERE`, if it is such a name."""
    if not HUB_NAME.fullmatch(name) or name == HERE:
        return content
    start, ours = "import bertflow\n", f'bertflow.load("{HERE}")'
    if ours in content:  # It takes folders.
        content = content.replace(start, f"{start}from huggingface_hub import snapshot_download\n")
        content = content.replace(ours, f'bertflow.load(snapshot_download("{name}"))')
    return content.replace(f'"{HERE}"', f'"{name}"')


def table(facts: Mapping[str, str]) -> str:
    """Names and cells of Markdown as a table."""
    rows = [f"| {name} | {cell} |" for name, cell in facts.items()]
    return "\n".join(["| | |", "|---|---|", *rows, ""])


def text(value: object) -> str:
    """Any value as escaped Markdown text, also in a table."""
    line = one_line(str(value))
    return re.sub(r"([\\`*_{}\[\]<>#|!~$&])", r"\\\1", line)


def code(value: object) -> str:
    """Any value as Markdown code, also in a table."""
    line = one_line(str(value)).replace("|", "\\|")
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", line)), default=0))
    space = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{space}{line}{space}{fence}"


def _files(provenance: Mapping[str, Any]) -> str:
    found = []
    for name in FILES:
        given = provenance.get(name)
        names = [given] if isinstance(given, str) else given
        if isinstance(names, Sequence) and all(isinstance(one, str) for one in names):
            found += [code(last_part(one)) for one in names]
    return ", ".join(found)
