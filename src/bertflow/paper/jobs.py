"""Jobs: all that one result depends on, spelled out, so that it is computed once.

A job's key is the SHA-256 of its recipe. A record is found by that key, so that a changed recipe
leaves all other records valid, and tables share what they have in common.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from bertflow.calibrators import Calibrator
from bertflow.calibrators.storage import calibrator_name
from bertflow.paper.subjects import Subject

KEY_LENGTH = 20


def key_of(recipe: Mapping[str, Any]) -> str:
    """The start of a recipe's SHA-256.

    Example:
        >>> key_of({"a": 1, "b": 2}) == key_of({"b": 2, "a": 1})
        True
    """
    text = json.dumps(recipe, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_LENGTH]


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """Siamese fine-tuning of an encoder on NLI.

    Attributes:
        subject: The encoder.
        pooling: Of the sentence vectors that are trained.
        sets: The data sets' names.
        corpus: SHA-256 of the pairs, those held out among them.
        arguments: Of `bertflow.finetuning.Recipe`, without what does not change the result.
        seed: Its seed.
    """

    kind: ClassVar = "tuning"
    subject: Subject
    pooling: str
    sets: tuple[str, ...]
    corpus: str
    arguments: Mapping[str, Any]
    seed: int

    def recipe(self) -> dict[str, Any]:
        """All that the result depends on."""
        return {
            "job": self.kind,
            "encoder": self.subject.digest,
            "pooling": self.pooling,
            "max_length": self.subject.max_length,
            "sets": list(self.sets),
            "corpus": self.corpus,
            "arguments": dict(self.arguments),
            "seed": self.seed,
        }

    @property
    def key(self) -> str:
        """Of its record and of the folder of the model."""
        return key_of(self.recipe())


@dataclass(frozen=True, kw_only=True)
class Encoding:
    """How sentences become vectors.

    Attributes:
        subject: The encoder.
        pooling: As in `load_encoder`; None is its own.
        tuning: How it was fine-tuned before, or None.
    """

    subject: Subject
    pooling: str | None
    tuning: Tuning | None = None

    def recipe(self) -> dict[str, Any]:
        """All that the vectors depend on."""
        return {
            "encoder": self.subject.digest if self.tuning is None else self.tuning.recipe(),
            "pooling": self.pooling,
            "max_length": self.subject.max_length,
            "dtype": "float32",
        }

    @property
    def weights(self) -> str:
        """What two encodings that differ in their pooling alone have in common."""
        return key_of({**self.recipe(), "pooling": ""})

    @property
    def key(self) -> str:
        """Of its vectors on disk."""
        return key_of(self.recipe())


@dataclass(frozen=True, kw_only=True)
class Fitting:
    """A calibrator and what it is fitted on.

    Attributes:
        calibrator: Not fitted.
        corpus: A task, or "nli".
        corpus_digest: SHA-256 of its sentences.
        seed: Of a flow; None where there is no chance.
        dev: SHA-256 of the dev split that n_components is chosen on; None where it is not.
    """

    calibrator: Calibrator = field(compare=False)
    corpus: str
    corpus_digest: str
    seed: int | None = None
    dev: str | None = None

    def recipe(self) -> dict[str, Any]:
        """All that the fitted calibrator depends on, besides the vectors."""
        arguments = self.calibrator.get_params(deep=False)
        arguments.pop("device", None)
        if self.dev is not None:
            arguments.pop("n_components")
        return {
            "calibrator": calibrator_name(self.calibrator),
            "arguments": arguments,
            "corpus": self.corpus_digest,
            "dev": self.dev,
        }


@dataclass(frozen=True, kw_only=True)
class Score:
    """The score of vectors on a task, calibrated or not.

    Attributes:
        encoding: Where the vectors come from.
        fitting: The calibrator, or None.
        task: The task.
        split: Its part.
        pairs: SHA-256 of the pairs.
    """

    kind: ClassVar = "score"
    encoding: Encoding
    fitting: Fitting | None
    task: str
    split: str
    pairs: str

    def recipe(self) -> dict[str, Any]:
        """All that the score depends on."""
        return {
            "job": self.kind,
            "encoding": self.encoding.recipe(),
            "fitting": None if self.fitting is None else self.fitting.recipe(),
            "task": self.task,
            "split": self.split,
            "pairs": self.pairs,
        }

    @property
    def unit(self) -> str:
        """What scores that share one fit have in common."""
        fitting = None if self.fitting is None else self.fitting.recipe()
        return key_of({"encoding": self.encoding.recipe(), "fitting": fitting})

    @property
    def key(self) -> str:
        """Of its record."""
        return key_of(self.recipe())


@dataclass(frozen=True, kw_only=True)
class Words:
    """Word embeddings by frequency: the paper's Table 1.

    Attributes:
        subject: The encoder.
        ranges: Ranks from and to, the second not included.
        neighbours: The counts k.
        frequencies: Package and version that the ranks come from.
    """

    kind: ClassVar = "words"
    subject: Subject
    ranges: tuple[tuple[int, int], ...]
    neighbours: tuple[int, ...]
    frequencies: str

    def recipe(self) -> dict[str, Any]:
        """All that the result depends on."""
        return {
            "job": self.kind,
            "encoder": self.subject.digest,
            "ranges": [list(one) for one in self.ranges],
            "neighbours": list(self.neighbours),
            "frequencies": self.frequencies,
        }

    @property
    def key(self) -> str:
        """Of its record."""
        return key_of(self.recipe())


Job = Tuning | Score | Words
