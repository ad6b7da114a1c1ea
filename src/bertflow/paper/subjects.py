"""Encoders, tasks and corpora, told apart by their content."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
from huggingface_hub import snapshot_download

from bertflow.data import Pairs, read_sentences, read_task
from bertflow.errors import MissingDataError, ModelError
from bertflow.evaluation.tasks import read_available
from bertflow.finetuning import NliCorpus, nli_corpus
from bertflow.io.reading import hub_answers

Method = TypeVar("Method", bound=Callable[..., Any])

# The files that vectors depend on; a changed model card changes nothing.
PARTS = (".safetensors", ".bin", ".gguf", ".json", ".txt", ".model", ".jinja", ".gz", ".py")
PAPER = {"bert-base-uncased": "base", "bert-large-uncased": "large"}
NLI = ("snli", "mnli")


@dataclass(frozen=True, kw_only=True)
class Subject:
    """An encoder, or averaged word vectors.

    Attributes:
        name: Hub name, folder or file, as given; `label` is its name in a table.
        digest: SHA-256 of its files, or the hub's commit; records depend on it.
        revision: The hub's commit; None of local files.
        size: Which of the paper's two encoders it is; None for any other.
        pooling: The one pooling to use instead of the paper's.
        max_length: Tokens a sentence is cut to.
        words: Whether it is a text file of word vectors.
    """

    name: str
    label: str
    digest: str
    revision: str | None = None
    size: str | None = None
    pooling: str | None = None
    max_length: int | None = 64
    words: bool = False

    @property
    def papers(self) -> bool:
        """Whether published numbers are of this very encoder, pooled as the paper does."""
        return self.size is not None and self.pooling is None


def identify(
    name: str | Path, *, pooling: str | None = None, max_length: int | None = 64
) -> Subject:
    """Find an encoder without loading it; a ModelError if it is neither here nor on the hub.

    The name is a folder, a .gguf file, a text file of word vectors, or a hub name, after which
    @REVISION may name a branch, tag or commit.
    """
    path, wanted = Path(name), ""
    if not path.exists():
        name, _, wanted = str(name).partition("@")
        path = Path(name)
    size = PAPER.get(path.name)
    revision = None if path.exists() else _commit(str(name), wanted or None)
    words = path.is_file() and path.suffix != ".gguf"
    return Subject(
        name=str(name),
        label=_label(path) if size is None else f"BERT-{size}",
        digest=f"hub:{revision}" if revision else _files_digest(path),
        revision=revision,
        size=size,
        pooling=pooling,
        max_length=None if words else max_length,
        words=words,
    )


def _label(path: Path) -> str:
    """A name short enough for a table; "model" and the like are named after their folder."""
    path = path.resolve() if path.exists() else path
    name = path.parent.name if path.name in ("model", "encoder", "checkpoint") else path.name
    plain = re.sub(r"(\.txt)?(\.gz|\.gguf)?$", "", name)
    return re.sub(r"[^\w.+-]+", "-", plain) or "encoder"


def _files_digest(path: Path) -> str:
    digest = hashlib.sha256()
    for file in [path] if path.is_file() else sorted(path.rglob("*")):
        inside = file.relative_to(path)  # Of a single file it is empty: its name is no part of it.
        hidden = any(part.startswith(".") for part in inside.parts)
        if file.is_file() and (file == path or (file.suffix.lower() in PARTS and not hidden)):
            name = "" if file == path else inside.as_posix()
            digest.update(f"{name} {file.stat().st_size}\n".encode())
            with file.open("rb") as content:
                while block := content.read(1 << 22):
                    digest.update(block)
    return digest.hexdigest()


def _commit(name: str, wanted: str | None) -> str:
    """The commit of a hub name, from the hub or else from the cache."""
    if name.startswith((".", "/", "~")) or name.count("/") > 1 or not name:
        raise ModelError(f"{name} does not exist; give a folder, a file or a hub name")
    offline, reason = not hub_answers(), "no connection, and it is not in the cache"
    # `load_encoder` reads a name without an owner as one of sentence-transformers', too.
    for candidate in [name] if "/" in name else [name, f"sentence-transformers/{name}"]:
        try:
            found = snapshot_download(
                candidate, revision=wanted, allow_patterns="config.json", local_files_only=offline
            )
            return Path(found).name
        except Exception as error:  # The hub client has many; all mean that it cannot be had.
            reason = str(error).strip().split("\n")[0] if not offline else reason
    raise ModelError(
        f"{name} is no folder here and cannot be had from the model hub ({reason}); check the "
        "name and the network, or give a folder or a .gguf file"
    )


def _once(read: Method) -> Method:
    """Remember the result of a method, or its MissingDataError, for all later calls."""

    @wraps(read)
    def remembered(self: Material, *args: Any) -> Any:
        key = (read.__name__, *(one for one in args if one is not None))
        if key not in self._known:
            try:
                self._known[key] = read(self, *args)
            except MissingDataError as error:
                self._known[key] = error
        found = self._known[key]
        if isinstance(found, MissingDataError):
            raise found
        return found

    return cast(Method, remembered)


class Material:
    """Tasks and corpora by name; each is read once, or lacks with a MissingDataError.

    With a limit, about so many pairs of each split are taken, evenly spread. `found_nli` counts the
    sentences of each set that "nli" is made of.
    """

    def __init__(self, data: str | Path | None = None, limit: int | None = None) -> None:
        self.data = data
        self.limit = limit
        self.found_nli: dict[str, int] = {}
        self._known: dict[tuple[Any, ...], Any] = {}

    @_once
    def pairs(self, task: str, split: str | None = None) -> Pairs:
        """The pairs of a task."""
        pairs = read_task(task, self.data, split)
        if self.limit is None or len(pairs) <= self.limit:
            return pairs
        # Graded pairs only: in some years few are, and a small limit might meet none.
        graded = [n for n, gold in enumerate(pairs.gold) if gold is not None]
        keep = [graded[n] for n in spread(len(graded), self.limit)]
        kept: dict[str, Any] = {}
        for name in ("first", "second", "gold", "subset", "rows"):
            if whole := getattr(pairs, name):
                kept[name] = [whole[n] for n in keep]
        return replace(pairs, **kept)

    @_once
    def corpus(self, name: str) -> list[str]:
        """The sentences of a task or, for "nli", of those of SNLI and MNLI that are there."""
        if name != "nli":
            return self._sentences(name)
        sets, _ = read_available(NLI, self._sentences)
        self.found_nli |= {one: len(texts) for one, texts in sets.items()}
        return [text for texts in sets.values() for text in texts]

    @_once
    def labelled(self) -> NliCorpus:
        """SNLI and MNLI with their labels, or the one that is there."""
        for names in (NLI, *((name,) for name in NLI)):
            try:
                return nli_corpus(names, self.data, limit=self.limit)
            except MissingDataError as error:
                reason = error
        raise reason

    @_once
    def pairs_digest(self, task: str, split: str | None = None) -> str:
        """SHA-256 of the pairs: texts, gold and subsets."""
        pairs = self.pairs(task, split)
        subsets = pairs.subset or [""] * len(pairs)
        rows = zip(pairs.first, pairs.second, pairs.gold, subsets, strict=True)
        return digest_of(f"{row}" for row in rows)

    @_once
    def corpus_digest(self, name: str) -> str:
        """SHA-256 of the sentences."""
        return digest_of(self.corpus(name))

    def _sentences(self, name: str) -> list[str]:
        texts = read_sentences(name, self.data)
        if self.limit is None:
            return texts
        return [texts[n] for n in spread(len(texts), 2 * self.limit)]


def spread(total: int, count: int) -> Sequence[int]:
    """So many numbers below a total, evenly spread.

    Example:
        >>> spread(10, 3)
        [0, 4, 9]
    """
    return [int(place) for place in np.linspace(0, total - 1, min(count, total))]


def digest_of(texts: Iterable[str]) -> str:
    """SHA-256 of texts in order."""
    digest = hashlib.sha256()
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()
