"""Who is measured: encoders, and what makes two of them the same before either is loaded."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from huggingface_hub import HfApi, try_to_load_from_cache

from bertflow.errors import ModelError
from bertflow.network import hub_answers

Size = Literal["base", "large"]

# What an encoder's vectors depend on; a changed model card changes nothing.
PARTS = (".safetensors", ".bin", ".gguf", ".json", ".txt", ".model", ".jinja", ".gz", ".py")
PAPER = {"bert-base-uncased": "base", "bert-large-uncased": "large"}
BLOCK = 1 << 22


@dataclass(frozen=True, kw_only=True)
class Subject:
    """An encoder, or averaged word vectors.

    Attributes:
        name: Hub name, folder or file, as given.
        label: Its name in a table.
        digest: SHA-256 of its files, or the hub's commit: what a record depends on.
        revision: The hub's commit; None for what lies here.
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
        name: A folder, a .gguf file, a text file of word vectors, or a hub name.
        pooling: As in `Subject`.
        max_length: As in `Subject`.

    Raises:
        ModelError: It is neither here nor on the hub.
    """
    path = Path(name)
    short = _label(path)
    size: Size | None = {"base": "base", "large": "large"}.get(PAPER.get(path.name, ""))  # type: ignore[assignment]
    if size is not None:
        short = f"BERT-{size}"
    if path.exists():
        digest, revision = _files_digest(path), None
    else:
        revision = _commit(str(name))
        digest = f"hub:{revision}"
    words = path.is_file() and path.suffix != ".gguf"
    return Subject(
        name=str(name),
        label=short,
        digest=digest,
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
    files = (
        [path] if path.is_file() else [file for file in sorted(path.rglob("*")) if file.is_file()]
    )
    digest = hashlib.sha256()
    for file in files:
        inside = file.relative_to(path)
        hidden = any(part.startswith(".") for part in inside.parts)
        if file != path and (hidden or file.suffix.lower() not in PARTS):
            continue
        name = "" if file == path else inside.as_posix()  # Its own name is no part of it.
        digest.update(f"{name} {file.stat().st_size}\n".encode())
        with file.open("rb") as content:
            while block := content.read(BLOCK):
                digest.update(block)
    return digest.hexdigest()


def _commit(name: str) -> str:
    """The commit of a hub name: the newest if the hub answers, else the one in the cache."""
    if name.startswith((".", "/", "~")) or name.count("/") > 1 or not name:
        raise ModelError(f"{name} does not exist; give a folder, a file or a hub name")
    # A name alone may be one of sentence-transformers', as `load_encoder` reads it.
    candidates = [name] if "/" in name else [name, f"sentence-transformers/{name}"]
    detail = "no connection, and it is not in the cache"
    online = hub_answers()
    for candidate in candidates:
        try:
            if online:
                return str(HfApi().model_info(candidate).sha)
            for file in ("config.json", "modules.json"):
                cached = try_to_load_from_cache(candidate, file)
                if isinstance(cached, str):
                    return Path(cached).parent.name
        except Exception as error:  # The hub client has many; all mean that it cannot be had.
            detail = str(error).strip().split("\n")[0]
    raise ModelError(
        f"{name} is no folder here and cannot be had from the model hub ({detail}); check the "
        "name and the network, or give a folder or a .gguf file"
    )
