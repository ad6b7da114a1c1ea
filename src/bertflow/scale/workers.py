"""Workers, which encode or transform batches of rows, or take their moments.

An instance maps a `pyarrow.Table` to another, as `ray.data.Dataset.map_batches` wants it. It loads
its model when the first batch comes, and travels to other processes without it.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, asdict, dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow
import torch
from safetensors.torch import save

from bertflow.arrays import Array, as_tensor, finite, unit_length
from bertflow.calibrators import Calibrator, Moments, load_calibrator
from bertflow.calibrators.moments import ROLES
from bertflow.calibrators.readme import calibrator_name
from bertflow.data.tables import check_text, column_index, is_text, only_text
from bertflow.errors import BertflowError, InputError, check_choice
from bertflow.scale.shards import (
    BATCH,
    VECTOR,
    check_vectors,
    storage_type,
    vector_column,
    vectors_of,
)

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from bertflow.encoders import Precision
    from bertflow.encoders.encoding import Encoding

TYPES = {"float32": np.float32, "float16": np.float16}
# Of `Encode`, beside what the encoder depends on.
SETTINGS = ("column", "keep", "vector", "numbers", "blank")
LOADING = ("pooling", "max_length", "device", "trust_remote_code")


@dataclass(frozen=True)
class Part:
    """Where rows come from: the file, its first row's number, a folder for unfinished work."""

    place: str = BATCH
    first: int = 0
    unfinished: Path | None = None


class Worker(ABC):
    """Maps the rows of a shard to those of its output."""

    # Whether each row gives one row, unless it is left out.
    row_by_row = True

    def __getstate__(self) -> dict[str, Any]:
        # Without the model, which is loaded when a batch comes.
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """All that the output depends on, as JSON can hold it. This loads the model."""

    @abstractmethod
    def columns(self, schema: Any, place: str) -> list[str]:
        """The columns of a schema that are read; an InputError if it lacks one."""

    @abstractmethod
    def schema(self, read: Any) -> Any:
        """The schema of the output, from the schema of what is read."""

    @abstractmethod
    def process(self, batches: Iterable[Any], part: Part) -> Iterator[Any]:
        """Map record batches of the columns to read, in order; an InputError names a bad row."""

    def __call__(self, batch: Any) -> Any:
        """Map a `pyarrow.Table`, as map_batches gives it with `batch_format="pyarrow"`."""
        if not isinstance(batch, pyarrow.Table):
            kind = type(batch).__name__
            raise InputError(f"a batch is {kind}, not a pyarrow.Table; give batch_format='pyarrow'")
        read = batch.select(self.columns(batch.schema, BATCH))
        mapped = self.process(read.combine_chunks().to_batches(), Part())
        return pyarrow.Table.from_batches(mapped, self.schema(read.schema))


@dataclass(eq=False)
class Encode(Worker):
    """Sentences to vectors; text is stripped, and equal sentences of a batch are encoded once.

    Args:
        model: What every worker can open: a saved model, a folder, a hub name or a .gguf file; or a
            loaded SentenceTransformer, or a function that gives one.
        column: Where the text is; None where there is one column of text.
        keep: Columns that the output has beside the vector; None for all but the text.
        vector: The output's column of vectors, lists of one length.
        numbers: "float32" or "float16": what the vectors are written in.
        blank: "refuse" rows without text, null or blank, or "skip" them.
        role: "query" or "document": that side's prompt and map; None encodes as `encode` does.
        pooling, max_length, device, trust_remote_code: As in `load_encoder`.
        batch_size, precision: As in `Encoding`.

    Raises:
        InputError: An argument is none of its choices.

    Example:
        >>> import numpy as np
        >>> from sentence_transformers import SentenceTransformer
        >>> class Lengths(SentenceTransformer):
        ...     def encode(self, texts, **keywords):
        ...         return np.array([[len(text), 1.0] for text in texts], dtype=np.float32)
        >>> class Two(torch.nn.Module):
        ...     def get_embedding_dimension(self):
        ...         return 2
        >>> encode = Encode(lambda: Lengths(modules=[Two()], device="cpu"), column="text")
        >>> encode(pyarrow.table({"id": [7, 8], "text": ["one", "three"]})).to_pydict()
        {'id': [7, 8], 'vector': [[3.0, 1.0], [5.0, 1.0]]}
    """

    model: str | Path | SentenceTransformer | Callable[[], SentenceTransformer]
    _: KW_ONLY
    column: str | None = None
    keep: Sequence[str] | None = None
    vector: str = VECTOR
    numbers: str = "float32"
    blank: Literal["refuse", "skip"] = "refuse"
    role: str | None = None
    pooling: str | None = None
    max_length: int | None = None
    device: str | None = None
    batch_size: int = 32
    precision: Precision = "auto"
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        check_choice("numbers", self.numbers, tuple(TYPES))
        check_choice("blank", self.blank, ("refuse", "skip"))
        check_choice("role", self.role, (None, *ROLES))

    def describe(self) -> dict[str, Any]:
        """All that the vectors depend on: encoder, its settings and versions, columns, types."""
        from bertflow.encoders.description import describe_vectors

        found = describe_vectors(self._encoding.encoder, self._encoding.kind)
        return {
            "task": "encode",
            # Without the probe's vectors, which another machine may round otherwise.
            **{name: one for name, one in found.items() if name != "probe"},
            **{name: getattr(self, name) for name in SETTINGS},
            **({"role": self.role} if self.role else {}),
        }

    def columns(self, schema: Any, place: str) -> list[str]:
        """The text, and what is kept."""
        text = self._text(schema, place)
        kept = [name for name in schema.names if name != text] if self.keep is None else self.keep
        for name in kept:
            column_index(name, schema.names, place)
        if self.vector in kept:
            raise InputError(f"{place} has a column {self.vector!r} already; name another")
        return [text, *(name for name in kept if name != text)]

    def schema(self, read: Any) -> Any:
        """What is kept, and lists of as many numbers as the encoder gives."""
        number = pyarrow.from_numpy_dtype(TYPES[self.numbers])
        vectors = pyarrow.field(self.vector, pyarrow.list_(number, self._width))
        return pyarrow.schema([*map(read.field, self._kept(read)), vectors])

    def process(self, batches: Iterable[Any], part: Part) -> Iterator[Any]:
        """Encode record batches, the next of which is tokenized while one is encoded."""
        from bertflow.encoders.embedding import encode_lists, first_not_finite
        from bertflow.encoders.sentence_cache import Unfinished

        unfinished = None if part.unfinished is None else Unfinished(part.unfinished)
        begun: deque[tuple[Any, list[str], Array]] = deque()

        def lists() -> Iterator[list[str]]:
            start = part.first
            for batch in batches:
                begun.append(self._with_text(batch, part.place, start))
                start += batch.num_rows
                yield begun[-1][1]

        for encoded in encode_lists(self._encoding, lists(), unfinished):
            batch, texts, numbers = begun.popleft()
            vectors = encoded.reshape(len(texts), self._width)
            vectors = vectors.astype(TYPES[self.numbers], copy=False)
            if (bad := first_not_finite(vectors)) is not None:
                raise InputError(
                    f"{part.place}, row {numbers[bad]}: the encoder's vector is not finite in "
                    f"{self.numbers}: {texts[bad][:80]!r}"
                )
            kept = [batch.column(name) for name in self._kept(batch.schema)]
            columns, schema = [*kept, vector_column(vectors)], self.schema(batch.schema)
            yield pyarrow.RecordBatch.from_arrays(columns, schema=schema)

    @cached_property
    def _encoding(self) -> Encoding:
        from sentence_transformers import SentenceTransformer

        from bertflow.encoders import side_of
        from bertflow.encoders.encoding import Encoding
        from bertflow.models import open_model

        if isinstance(self.model, SentenceTransformer):
            encoder = self.model
        elif callable(self.model):
            encoder = self.model()
        else:
            loading = {name: getattr(self, name) for name in LOADING}
            encoder = open_model(str(self.model), **loading)
        if self.role is not None:
            encoder = side_of(encoder, self.role)
        return Encoding(encoder, batch_size=self.batch_size, precision=self.precision)

    @property
    def _width(self) -> int:
        return self._encoding.encoder.get_embedding_dimension() or 0

    def _text(self, schema: Any, place: str) -> str:
        if self.column is not None:
            check_text(schema, self.column, place)
            return self.column
        texts = [field.name for field in schema if is_text(field.type)]
        return only_text(place, texts)[0]

    def _kept(self, read: Any) -> list[str]:
        # The text comes first of what is read, and stays if that is asked for.
        names = list(read.names)
        return names[1:] if self.keep is None or names[0] not in self.keep else names

    def _with_text(self, batch: Any, place: str, first: int) -> tuple[Any, list[str], Array]:
        """The rows of a batch that have text, their texts, and their numbers in the file."""
        try:
            cells = batch.column(0).to_pylist()
        except UnicodeDecodeError:
            raise InputError(f"{place}: column {batch.schema.names[0]!r} is not UTF-8") from None
        texts = ["" if cell is None else cell.strip() for cell in cells]
        numbers = np.flatnonzero([bool(text) for text in texts])
        if len(numbers) < len(texts):
            if self.blank == "refuse":
                blank = next(row for row, text in enumerate(texts, first) if not text)
                raise InputError(
                    f"{place}, row {blank} has no text: it would have no vector; leave such rows "
                    "out by --skip-blank (in Python blank='skip')"
                )
            texts = [text for text in texts if text]
            batch = batch.take(numbers)
        return batch, texts, first + numbers


@dataclass(eq=False)
class Transform(Worker):
    """Vectors to calibrated vectors, in their own type; all other columns stay.

    Args:
        calibrator: Fitted, or the folder of a saved one.
        vector: The column of vectors.
        inverse: Undo the calibration instead.
        role: "query" or "document": what the rows are.

    Example:
        >>> from bertflow import Standardization
        >>> x = [[0.0, 10.0], [2.0, 30.0]]
        >>> transform = Transform(Standardization().fit(x))
        >>> transform(pyarrow.table({"vector": x})).to_pydict()
        {'vector': [[-1.0, -1.0], [1.0, 1.0]]}
    """

    calibrator: str | Path | Calibrator
    _: KW_ONLY
    vector: str = VECTOR
    inverse: bool = False
    role: str = "document"

    def __post_init__(self) -> None:
        check_choice("role", self.role, ROLES)

    def describe(self) -> dict[str, Any]:
        """All that the output depends on: what the calibrator has learned, and the direction."""
        calibrator = self._fitted
        tensors = calibrator._tensors().items()
        learned = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors}
        # The device on which it was trained makes no difference to what it has learned.
        arguments = calibrator.get_params(deep=False)
        return {
            "task": "transform",
            "calibrator": calibrator_name(calibrator),
            "arguments": {k: repr(v) for k, v in sorted(arguments.items()) if k != "device"},
            "learned": hashlib.sha256(save(learned)).hexdigest(),
            "vector": self.vector,
            "inverse": self.inverse,
            **({} if self.role == "document" else {"role": self.role}),
        }

    def columns(self, schema: Any, place: str) -> list[str]:
        """All of them."""
        check_vectors(schema, self.vector, place)
        return list(schema.names)

    def schema(self, read: Any) -> Any:
        """The same with vectors of another width."""
        calibrator = self._fitted
        width = calibrator.n_features_in_ if self.inverse else calibrator._n_features_out
        at = read.get_field_index(self.vector)
        kind = storage_type(read.field(at).type)
        number = pyarrow.float32() if str(kind) == "null" else kind.value_type
        return read.set(at, pyarrow.field(self.vector, pyarrow.list_(number, width)))

    def process(self, batches: Iterable[Any], part: Part) -> Iterator[Any]:
        """Map record batches."""
        apply = self._fitted.inverse_transform if self.inverse else self._fitted._rows
        for batch, rows, first in _with_vectors(batches, self.vector, part):
            with _rows_named(part.place, first):
                vectors = vector_column(apply(rows, self.role))
            at = batch.schema.get_field_index(self.vector)
            columns = [*batch.columns[:at], vectors, *batch.columns[at + 1 :]]
            yield pyarrow.RecordBatch.from_arrays(columns, schema=self.schema(batch.schema))

    @cached_property
    def _fitted(self) -> Calibrator:
        if isinstance(self.calibrator, Calibrator):
            return self.calibrator
        return load_calibrator(self.calibrator)


@dataclass(eq=False)
class BlockMoments(Worker):
    r"""The moments of the vectors of a block, as one row; those of all blocks are merged exactly.

    Args:
        vector: The column of vectors.
        covariance: Take sums of products (D, D), otherwise of squares alone (D,).
        normalize: Scale rows to unit length first, as `AdaptiveWhitening` does.

    Example:
        >>> import numpy as np
        >>> x = np.random.default_rng(0).normal(size=(100, 3)) + 5.0
        >>> take = BlockMoments()
        >>> blocks = [take(pyarrow.table({"vector": part.tolist()})) for part in (x[:30], x[30:])]
        >>> moments = merged_moments(blocks)
        >>> moments.count, np.allclose(moments.covariance(), np.cov(x.T, ddof=0))
        (100, True)
    """

    row_by_row = False
    _: KW_ONLY
    vector: str = VECTOR
    covariance: bool = True
    normalize: bool = False

    def describe(self) -> dict[str, Any]:
        """Which column, and which moments."""
        return {"task": "moments", **asdict(self)}

    def columns(self, schema: Any, place: str) -> list[str]:
        """The vectors alone."""
        check_vectors(schema, self.vector, place)
        return [self.vector]

    def schema(self, read: Any) -> Any:
        """A count, a mean, and second moments: the upper half of the matrix, row after row."""
        numbers = pyarrow.list_(pyarrow.float64())
        return pyarrow.schema([("count", pyarrow.int64()), ("mean", numbers), ("second", numbers)])

    def process(self, batches: Iterable[Any], part: Part) -> Iterator[Any]:
        """Take moments of all of them together; nothing where there is no row."""
        moments: Moments | None = None
        for _, rows, first in _with_vectors(batches, self.vector, part):
            moments = moments or Moments(rows.shape[1], covariance=self.covariance)
            with _rows_named(part.place, first):
                if rows.shape[1] != len(moments.mean):
                    raise InputError(
                        f"vectors of {rows.shape[1]} numbers and of {len(moments.mean)}"
                    )
                wide = as_tensor(finite(rows))
                moments.update(unit_length(wide.double()) if self.normalize else wide)
        if moments is not None:
            yield pyarrow.RecordBatch.from_pylist([_packed(moments)], schema=self.schema(None))


def _with_vectors(
    batches: Iterable[Any], column: str, part: Part
) -> Iterator[tuple[Any, Array, int]]:
    """Each batch that has rows, its vectors (N, D), and the number of its first row in the file."""
    first = part.first
    for batch in batches:
        if batch.num_rows:
            yield batch, vectors_of(batch.column(column), part.place, first), first
        first += batch.num_rows


@contextmanager
def _rows_named(place: str, first: int) -> Iterator[None]:
    """Say of which file an error's row is, and which of its rows is counted as 0."""
    try:
        yield
    except BertflowError as error:
        start = f", with row {first} counted as 0" if first else ""
        raise InputError(f"{place}{start}: {error}") from None


def merged_moments(blocks: Iterable[Any]) -> Moments:
    """Merge what `BlockMoments` gives, in order: tables, or rows of them as mappings.

    Raises:
        InputError: There is no block, or they are of different widths or kinds.
    """
    rows = (block.to_pylist() if hasattr(block, "to_pylist") else [block] for block in blocks)
    parts = map(_unpacked, chain.from_iterable(rows))
    merged = next(parts, None)
    if merged is None:
        raise InputError("there are no moments to merge: the input holds no vector")
    for moments in parts:
        if moments.second.shape != merged.second.shape:
            raise InputError(
                f"moments of shape {tuple(moments.second.shape)} do not go with those of shape "
                f"{tuple(merged.second.shape)}; take all of vectors of one width"
            )
        merged.merge(moments)
    return merged


def _packed(moments: Moments) -> dict[str, Any]:
    second = moments.second
    if second.ndim == 2:
        second = second[tuple(torch.triu_indices(*second.shape))]
    return {"count": moments.count, "mean": moments.mean.numpy(), "second": second.numpy()}


def _unpacked(row: Mapping[str, Any]) -> Moments:
    mean = torch.from_numpy(np.array(row["mean"], dtype=np.float64))
    second = torch.from_numpy(np.array(row["second"], dtype=np.float64))
    # A matrix of one entry is its diagonal, too, so it gives all that the diagonal would.
    if len(second) > len(mean) or len(mean) == 1:
        upper, above = second, tuple(torch.triu_indices(len(mean), len(mean)))
        second = torch.zeros(len(mean), len(mean), dtype=torch.float64)
        second[above] = second.T[above] = upper
    return Moments.restored(int(row["count"]), mean, second)
