"""Encoders, tasks and corpora, told apart by their content."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from huggingface_hub import HfApi, try_to_load_from_cache
from huggingface_hub.constants import HF_HUB_CACHE
from huggingface_hub.errors import HFValidationError
from huggingface_hub.file_download import repo_folder_name

from bertflow.data import Pairs, read_sentences, read_task
from bertflow.errors import MissingDataError, ModelError
from bertflow.evaluation.tasks import read_available
from bertflow.finetuning import NliCorpus, nli_corpus
from bertflow.io.reading import hub_answers

T = TypeVar("T")
Size = Literal["base", "large"]

# The files that vectors depend on; a changed model card changes nothing.
PARTS = (".safetensors", ".bin", ".gguf", ".json", ".txt", ".model", ".jinja", ".gz", ".py")
PAPER: Mapping[str, Size] = {"bert-base-uncased": "base", "bert-large-uncased": "large"}
NLI = ("snli", "mnli")


@dataclass(frozen=True, kw_only=True)
class Subject:
    """An encoder, or averaged word vectors.

    Attributes:
        name: Hub name, folder or file, as given.
        label: Its name in a table.
        digest: SHA-256 of its files, or the hub's commit; records depend on it.
        revision: The hub's commit; None of local files.
        size: Which of the paper's two encoders it is; None for any other.
        pooling: The one pooling to use instead of the paper's; None for the paper's.
        max_length: Tokens a sentence is cut to.
        words: Whether it is a text file of word vectors.
    """

    name: str
    label: str
    digest: str
    revision: str | None = None
    size: Size | None = None
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
    """Find an encoder without loading it.

    Args:
        name: A folder, a .gguf file, a text file of word vectors, or a hub name, after which
            @REVISION may name a branch, tag or commit.
        pooling: As in `Subject`.
        max_length: As in `Subject`.

    Raises:
        ModelError: It is neither here nor on the hub.
    """
    path, wanted = Path(name), None
    if not path.exists():
        plain, _, wanted = str(name).partition("@")
        path, name = Path(plain), plain
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
    name = path.resolve().name if path.exists() else path.name
    if name in ("model", "encoder", "checkpoint") and path.exists():
        name = path.resolve().parent.name
    name = name.removesuffix(".gz").removesuffix(".gguf").removesuffix(".txt")
    return re.sub(r"[^\w.+-]+", "-", name) or "encoder"


def _files_digest(path: Path) -> str:
    digest = hashlib.sha256()
    for file in [path] if path.is_file() else sorted(path.rglob("*")):
        inside = file.relative_to(path)
        hidden = any(part.startswith(".") for part in inside.parts)
        kept = file == path or (file.suffix.lower() in PARTS and not hidden)
        if not kept or not file.is_file():
            continue
        name = "" if file == path else inside.as_posix()  # Its own name is no part of it.
        digest.update(f"{name} {file.stat().st_size}\n".encode())
        with file.open("rb") as content:
            while block := content.read(1 << 22):
                digest.update(block)
    return digest.hexdigest()


def _commit(name: str, wanted: str | None) -> str:
    """The commit of a hub name, from the hub or else from the cache."""
    if name.startswith((".", "/", "~")) or name.count("/") > 1 or not name:
        raise ModelError(f"{name} does not exist; give a folder, a file or a hub name")
    # `load_encoder` reads a name without an owner as one of sentence-transformers', too.
    candidates = [name] if "/" in name else [name, f"sentence-transformers/{name}"]
    detail = "no connection, and it is not in the cache"
    if hub_answers():
        for candidate in candidates:
            try:
                return str(HfApi().model_info(candidate, revision=wanted).sha)
            except Exception as error:  # The hub client has many; all mean that it cannot be had.
                detail = str(error).strip().split("\n")[0]
    for candidate in candidates:
        if (commit := _cached_commit(candidate, wanted)) is not None:
            return commit
    raise ModelError(
        f"{name} is no folder here and cannot be had from the model hub ({detail}); check the "
        "name and the network, or give a folder or a .gguf file"
    )


def _cached_commit(name: str, wanted: str | None) -> str | None:
    try:
        for file in ("config.json", "modules.json"):
            cached = try_to_load_from_cache(name, file, revision=wanted)
            if isinstance(cached, str):
                return Path(cached).parent.name
        folder = Path(HF_HUB_CACHE) / repo_folder_name(repo_id=name, repo_type="model")
    except HFValidationError:
        return None
    # We fetch by commit, which leaves no branch in the cache.
    snapshots = [one.name for one in (folder / "snapshots").glob("*")] if wanted is None else []
    return snapshots[0] if len(snapshots) == 1 else None


class Material:
    """Tasks and corpora by name; each is read once.

    Args:
        data: Folder of the data, as in `bertflow.data.read_task`.
        limit: Take about so many pairs of each split, evenly spread; None takes all.

    Attributes:
        found_nli: Sentences of each set that "nli" is made of.

    Raises:
        MissingDataError: By every method: the data are nowhere.
    """

    def __init__(self, data: str | Path | None = None, limit: int | None = None) -> None:
        self.data = data
        self.limit = limit
        self.found_nli: dict[str, int] = {}
        self._known: dict[tuple[str | None, ...], Any] = {}

    def pairs(self, task: str, split: str | None = None) -> Pairs:
        """The pairs of a task."""
        return self._once(("pairs", task, split), lambda: self._read_pairs(task, split))

    def corpus(self, name: str) -> list[str]:
        """The sentences of a task or, for "nli", of those of SNLI and MNLI that are there."""
        return self._once(("corpus", name), lambda: self._read_corpus(name))

    def labelled(self) -> NliCorpus:
        """SNLI and MNLI with their labels, or the one that is there."""
        return self._once(("labelled",), self._read_labelled)

    def pairs_digest(self, task: str, split: str | None = None) -> str:
        """SHA-256 of the pairs: texts, gold and subsets."""

        def digest() -> str:
            pairs = self.pairs(task, split)
            subsets = pairs.subset or [""] * len(pairs)
            rows = zip(pairs.first, pairs.second, pairs.gold, subsets, strict=True)
            return digest_of(f"{row}" for row in rows)

        return self._once(("pairs digest", task, split), digest)

    def corpus_digest(self, name: str) -> str:
        """SHA-256 of the sentences."""
        return self._once(("corpus digest", name), lambda: digest_of(self.corpus(name)))

    def _once(self, key: tuple[str | None, ...], read: Callable[[], T]) -> T:
        """The result of `read`, or its MissingDataError, from the second time on from memory."""
        if key not in self._known:
            try:
                self._known[key] = read()
            except MissingDataError as error:
                self._known[key] = error
        found: T | MissingDataError = self._known[key]
        if isinstance(found, MissingDataError):
            raise found
        return found

    def _read_pairs(self, task: str, split: str | None) -> Pairs:
        pairs = read_task(task, self.data, split)
        if self.limit is None or len(pairs) <= self.limit:
            return pairs
        # Graded pairs only: in some years few are, and a small limit might meet none.
        graded = [n for n, gold in enumerate(pairs.gold) if gold is not None]
        keep = [graded[n] for n in spread(len(graded), self.limit)]
        kept: dict[str, Any] = {}
        for name in ("first", "second", "gold", "subset", "rows"):
            whole = getattr(pairs, name)
            kept[name] = [whole[n] for n in keep] if whole else ()
        return replace(pairs, **kept)

    def _read_corpus(self, name: str) -> list[str]:
        if name != "nli":
            return self._read_sentences(name)
        sets, _ = read_available(NLI, self._read_sentences)
        self.found_nli |= {one: len(texts) for one, texts in sets.items()}
        return [text for texts in sets.values() for text in texts]

    def _read_sentences(self, name: str) -> list[str]:
        texts = read_sentences(name, self.data)
        if self.limit is None or len(texts) <= 2 * self.limit:
            return texts
        # Both sides of pairs that are evenly spread.
        return [t for n in spread(len(texts) // 2, self.limit) for t in texts[2 * n : 2 * n + 2]]

    def _read_labelled(self) -> NliCorpus:
        for names in (NLI, *((name,) for name in NLI)):
            try:
                return nli_corpus(names, self.data, limit=self.limit)
            except MissingDataError as error:
                reason = error
        raise reason


def spread(total: int, count: int) -> Sequence[int]:
    """So many numbers below a total, evenly spread.

    Example:
        >>> spread(10, 3)
        [0, 4, 9]
    """
    numbers: list[int] = np.linspace(0, total - 1, min(count, total)).astype(int).tolist()
    return numbers


def digest_of(texts: Iterable[str]) -> str:
    """SHA-256 of texts in order."""
    digest = hashlib.sha256()
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()
