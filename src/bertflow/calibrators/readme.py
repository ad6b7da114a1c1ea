"""The model card of a saved folder, README.md, and the parts that all cards share.

A card holds nothing that differs between two saves, such as a date: the same calibrator always
gives the same bytes.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath, PureWindowsPath
from typing import TYPE_CHECKING, Any

from bertflow.calibrators.presets import calibrator_name, preset_name, preset_of
from bertflow.errors import one_line, shown

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
# By class: what it does, and its source.
WHAT = {
    "AdaptiveWhitening": (
        "adaptive whitening: each principal axis of the cloud of vectors is made smaller, the more "
        "so the more the vectors have in common along it",
        "The documentation of bertflow, under mathematics; after Jianlin Su, Jiarun Cao, Weijie "
        "Liu, Yangyiwen Ou: *Whitening Sentence Representations for Better Semantics and Faster "
        "Retrieval*, 2021.",
    ),
    "Flow": (
        "an invertible normalizing flow (BERT-flow) that maps the cloud of vectors to a standard "
        "Gaussian",
        PAPER,
    ),
    "Whitening": (
        "whitening: the principal axes of the cloud of vectors, scaled towards equal variance",
        "Jianlin Su, Jiarun Cao, Weijie Liu, Yangyiwen Ou: *Whitening Sentence Representations for "
        "Better Semantics and Faster Retrieval*, 2021.",
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
LOADED = f"""from bertflow import load_calibrator

calibrator = load_calibrator("{HERE}")
calibrated = calibrator.transform(vectors)"""
LIMITS = (
    "It helps vectors of raw language models, which crowd around a common direction. Encoders that "
    "were trained contrastively, such as most embedding models of today, do not need it.",
    "It is fitted to the sentences it was given. For others, of another field or language, fit "
    "anew; that needs no labels.",
    "What the encoder does not know, or has learned wrongly, it does not mend.",
)


def calibrator_card(calibrator: Calibrator, name: str = HERE) -> str:
    """The card of a calibrator's own folder.

    Args:
        calibrator: Fitted.
        name: What the code in it loads: a name on the hub, or a stand-in for the folder.

    Example:
        >>> import numpy as np
        >>> from bertflow import Whitening
        >>> x = np.random.default_rng(0).normal(size=(50, 4))
        >>> card = calibrator_card(Whitening(2).fit(x))
        >>> card.splitlines()[1]
        'library_name: bertflow'
    """
    kind = type(calibrator).__name__
    what, source = WHAT[kind]
    provenance = getattr(calibrator, "provenance_", {})
    encoder = provenance.get("encoder")
    metadata = front_matter(
        library_name="bertflow",
        tags=["bertflow", calibrator_name(calibrator), "sentence-embeddings"],
        **origin_metadata(provenance.get("origin")),
    )
    usage = LOADED
    whose = ""
    if isinstance(encoder, Mapping):
        usage += "\n\n# Behind its encoder, a model of sentence-transformers:\n"
        usage += "# bertflow.attach(encoder, calibrator)"
        whose = f" of {encoder_named(provenance)}"
    return "\n".join(
        [
            f"---\n{metadata}\n---\n",
            f"# {preset_of(calibrator)[0]} of sentence vectors\n",
            f"This is {what}. It was fitted without labels by bertflow, to vectors{whose}; the "
            "encoder itself is not part of it.\n",
            "## Use\n",
            fenced(named(usage, name)),
            "## How it was made\n",
            table(made_of(calibrator)),
            "## Limits\n",
            *(f"- {limit}" for limit in LIMITS),
            "\n## Source\n",
            source,
            "",
        ]
    )


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
    call = code(_call(calibrator))
    preset = preset_of(calibrator)[0]
    if preset != calibrator_name(calibrator):  # One with a name of its own.
        call = f"{text(preset_name(calibrator))}: {call}"
    found = {"calibrator": call}
    encoder = provenance.get("encoder")
    if isinstance(encoder, Mapping):
        found["encoder"] = encoder_named(provenance)
        found |= encoder_facts(encoder)
    found |= calibrator.facts()
    if files := _files(provenance):
        found["files"] = files
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
    """A card's text whose code loads from a name on the hub, if that is one.

    Args:
        content: Of a card.
        name: `HERE`, or what takes its place.
    """
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


def fenced(lines: str) -> str:
    """Python code as Markdown has it."""
    return f"```python\n{lines}\n```\n"


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


def _call(calibrator: Calibrator) -> str:
    """The constructor's call with the arguments that are not the defaults."""
    defaults = inspect.signature(type(calibrator).__init__).parameters
    changed = [
        f"{name}={shown(value)}"
        for name, value in calibrator.get_params(deep=False).items()
        if repr(value) != repr(defaults[name].default)
    ]
    return f"{type(calibrator).__name__}({', '.join(changed)})"


def _files(provenance: Mapping[str, Any]) -> str:
    """Names of the files that were fitted on, without their folders."""
    for name in ("corpus", "vectors"):
        given = provenance.get(name)
        files = [given] if isinstance(given, str) else given
        if isinstance(files, Sequence) and files and all(isinstance(one, str) for one in files):
            return ", ".join(code(last_part(one)) for one in files)
    return ""
