"""How a calibrator is described: by its name and preset, and in a model card, README.md.

A card holds nothing that differs between two saves, such as a date: the same calibrator always
gives the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import PurePath, PureWindowsPath
from typing import TYPE_CHECKING, Any

from bertflow.errors import InputError, one_line, shown

if TYPE_CHECKING:
    from bertflow.calibrators.base import Calibrator

CARD = "README.md"
# Stands in the card's code until the folder has a name on the hub.
HERE = "path/to/this/folder"
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
PLAIN_NAME = re.compile(r"[\w.+-]+(/[\w.-]+)?", re.ASCII)
PAPER = (
    "Bohan Li, Hao Zhou, Junxian He, Mingxuan Wang, Yiming Yang, Lei Li: *On the Sentence "
    "Embeddings from Pre-trained Language Models*, EMNLP 2020."
)
SU = (
    "Jianlin Su, Jiarun Cao, Weijie Liu, Yangyiwen Ou: *Whitening Sentence Representations for "
    "Better Semantics and Faster Retrieval*, 2021."
)
# By class: a description, and its source.
WHAT = {
    "AdaptiveWhitening": (
        "adaptive whitening: each principal axis of the cloud of vectors is made smaller, the more "
        "so the more the vectors have in common along it",
        f"The documentation of bertflow, under mathematics; after {SU}",
    ),
    "Flow": (
        "an invertible normalizing flow (BERT-flow) that maps the cloud of vectors to a standard "
        "Gaussian",
        PAPER,
    ),
    "Whitening": (
        "whitening: the principal axes of the cloud of vectors, scaled towards equal variance",
        SU,
    ),
    "Standardization": (
        "standardization: each dimension of the vectors to mean 0 and variance 1",
        PAPER,
    ),
    "AllButTheTop": (
        "all-but-the-top: the mean and the leading principal directions of the vectors are removed",
        "Jiaqi Mu, Pramod Viswanath: *All-but-the-Top: Simple and Effective Postprocessing for "
        "Word Representations*, ICLR 2018.",
    ),
}
ATTACHED = """

# Behind its encoder, a model of sentence-transformers:
# bertflow.attach(encoder, calibrator)"""
LIMITS = (
    "It helps vectors of raw language models, which crowd around a common direction. Encoders that "
    "were trained contrastively, such as most embedding models of today, do not need it.",
    "It is fitted to the sentences it was given. For others, of another field or language, fit "
    "anew; that needs no labels.",
    "What the encoder does not know, or has learned wrongly, it does not mend.",
)


def calibrator_name(calibrator: Calibrator) -> str:
    """The name a calibrator goes by in files and on the command line; InputError for others."""
    kind = type(calibrator)
    if "names" not in vars(kind):
        raise InputError(f"{kind.__name__} is no calibrator of bertflow's, and cannot be stored")
    return next(iter(kind.names))


def preset_of(calibrator: Calibrator) -> tuple[str, dict[str, Any]]:
    """The nearest name of a calibrator, and the arguments in which it differs from that.

    The device is none of them: it makes no other calibrator.

    Example:
        >>> from bertflow import Flow
        >>> preset_of(Flow.tempered(epochs=2))
        ('tempered-flow', {'epochs': 2})
    """
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
    """The same in words.

    Example:
        >>> from bertflow import Flow, Whitening
        >>> preset_name(Flow.tempered()), preset_name(Flow.tempered(epochs=2))
        ('tempered-flow', 'tempered-flow, epochs=2')
        >>> preset_name(Whitening(256))
        'whitening, dim=256'
    """
    name, changed = preset_of(calibrator)
    return ", ".join([name, *(f"{key}={shown(value)}" for key, value in changed.items())])


def calibrator_card(calibrator: Calibrator, name: str = HERE) -> str:
    """The card of a fitted calibrator's own folder, whose code loads it by a name."""
    what, source = WHAT[type(calibrator).__name__]
    provenance = getattr(calibrator, "provenance_", {})
    behind = isinstance(provenance.get("encoder"), Mapping)
    template = (files("bertflow.calibrators") / "card.md").read_text(encoding="utf-8")
    card = template.format(
        metadata=front_matter(
            library_name="bertflow",
            tags=["bertflow", calibrator_name(calibrator), "sentence-embeddings"],
            **origin_metadata(provenance.get("origin")),
        ),
        preset=preset_of(calibrator)[0],
        what=what,
        whose=f" of {encoder_named(provenance)}" if behind else "",
        attached=ATTACHED if behind else "",
        made=table(made_of(calibrator)),
        limits="\n".join(f"- {limit}" for limit in LIMITS),
        source=source,
    )
    return named(card, name)


def front_matter(**metadata: Any) -> str:
    """Metadata as YAML for the hub, without empty entries."""
    from huggingface_hub import ModelCardData

    content = ModelCardData(**{name: value for name, value in metadata.items() if value})
    return content.to_yaml(line_break="\n").strip()


def origin_metadata(origin: Any) -> dict[str, str]:
    """The base model and licence in an encoder's origin, as metadata."""
    if not isinstance(origin, Mapping):
        return {}
    found = {name: origin.get(name) for name in ("base_model", "license")}
    return {
        name: value
        for name, value in found.items()
        if isinstance(value, str) and PLAIN_NAME.fullmatch(value)
    }


def made_of(calibrator: Calibrator) -> dict[str, str]:
    """How a calibrator was fitted and on what, by name; cells of Markdown."""
    provenance = getattr(calibrator, "provenance_", {})
    call = code(" ".join(repr(calibrator).split()))
    preset = preset_of(calibrator)[0]
    if preset != calibrator_name(calibrator):  # One with a name of its own.
        call = f"{text(preset_name(calibrator))}: {call}"
    found = {"calibrator": call}
    encoder = provenance.get("encoder")
    if isinstance(encoder, Mapping):
        found["encoder"] = encoder_named(provenance)
        found |= encoder_facts(encoder)
    found |= calibrator.facts()
    if names := _files(provenance):
        found["files"] = names
    if isinstance(cut := provenance.get("cut_to_max_length"), int):
        found["cut"] = f"{cut:,} of the distinct sentences were longer than the encoder takes"
    if isinstance(precision := provenance.get("precision"), str):
        found["encoded in"] = code(precision)
    if isinstance(versions := provenance.get("versions"), Mapping):
        found["versions"] = ", ".join(f"{text(name)} {text(one)}" for name, one in versions.items())
    return found


def encoder_facts(encoder: Mapping[str, Any]) -> dict[str, str]:
    """Pooling, length and type of an encoder as `describe_encoder` describes it."""
    found = {}
    layers, pooling = encoder.get("layers"), encoder.get("pooling")
    if pooling:
        states = f", of hidden states {', '.join(map(str, layers))} averaged" if layers else ""
        found["pooling"] = text(f"{pooling}{states}")
    if encoder.get("max_length") is not None:
        found["maximum length"] = text(f"{encoder['max_length']} tokens")
    if encoder.get("dtype"):
        found["encoder's type"] = text(encoder["dtype"])
    if encoder.get("prompt"):
        found["prompt"] = code(encoder["prompt"])
    return found


def encoder_named(provenance: Mapping[str, Any]) -> str:
    """The encoder's name as Markdown: on the hub a link, elsewhere without the folders above it."""
    origin = origin_metadata(provenance.get("origin"))
    if "base_model" in origin:
        return f"[{text(origin['base_model'])}](https://huggingface.co/{origin['base_model']})"
    encoder = provenance.get("encoder")
    name = encoder.get("name") if isinstance(encoder, Mapping) else None
    return code(last_part(str(name))) if name else "an encoder without a name"


def last_part(name: str) -> str:
    """The last part of a path, since its folders are private; other names unchanged."""
    parts = PureWindowsPath(name) if "\\" in name else PurePath(name)
    return parts.name if parts.is_absolute() or len(parts.parts) > 2 else name


def named(content: str, name: str) -> str:
    """A card whose code loads from a name on the hub instead of `HERE`, if it is such a name."""
    if not HUB_NAME.fullmatch(name) or name == HERE:
        return content
    for start, load in (
        ("from bertflow import load_calibrator\n", "load_calibrator"),
        ("import bertflow\n", "bertflow.load"),
    ):
        if f'{load}("{HERE}")' in content:  # These take folders.
            content = content.replace(
                start, f"{start}from huggingface_hub import snapshot_download\n"
            ).replace(f'{load}("{HERE}")', f'{load}(snapshot_download("{name}"))')
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
    """Names of the files that were fitted on, without their folders."""
    for name in ("corpus", "vectors"):
        given = provenance.get(name)
        names = [given] if isinstance(given, str) else given
        if isinstance(names, Sequence) and all(isinstance(one, str) for one in names):
            return ", ".join(code(last_part(one)) for one in names)
    return ""
