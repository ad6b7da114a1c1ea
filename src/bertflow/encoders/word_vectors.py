"""Averaged word vectors: the baseline that sentence encoders were first measured against."""

from __future__ import annotations

import gzip
import logging
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, WordEmbeddings
from sentence_transformers.sentence_transformer.modules.tokenizer import WhitespaceTokenizer

from bertflow.arrays import Array
from bertflow.errors import InputError, shown

log = logging.getLogger(__name__)

LARGEST = float(np.finfo(np.float32).max)


def load_word_vectors(path: str | Path) -> SentenceTransformer:
    r"""Read word vectors such as GloVe's, and average those of a sentence's words.

    .. math:: s = \frac1n \sum_{i=1}^n w_i

    Words are looked up as they are, without punctuation, or in lower case; stop words and unknown
    words do not count. A sentence without a known word is a zero vector.

    Args:
        path: Text, a word and its numbers a line, also with .gz. A first line of two counts, as
            word2vec writes it, is passed over.

    Raises:
        InputError: The file is missing or holds no word vectors; the message names the line that
            has another width, is not UTF-8, or has an entry that is no finite number.

    Source:
        Pennington, Socher and Manning (2014); paper, Table 2, first row.

    Example:
        >>> from tempfile import mkdtemp
        >>> file = Path(mkdtemp()) / "words.txt"
        >>> _ = file.write_text("cat 1 0\ndog 0 1\n")
        >>> load_word_vectors(file).encode(["Cat, dog!"], show_progress_bar=False).tolist()
        [[0.5, 0.5]]
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path} does not exist; give a text file of word vectors")
    try:
        vectors = dict(_vectors(path))
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} cannot be read: {error}") from None
    if not vectors:
        raise InputError(f"{path} holds no word vectors")
    width = len(next(iter(vectors.values())))
    log.info("%s: %d words of %d dimensions", path, len(vectors), width)
    # Words are padded with row 0.
    table = np.stack([np.zeros(width, dtype=np.float32), *vectors.values()])
    words = WordEmbeddings(WhitespaceTokenizer(["PADDING_TOKEN", *vectors]), table)
    pooling = Pooling(words.get_embedding_dimension(), pooling_mode="mean")
    return SentenceTransformer(modules=[words, pooling]).eval()


def _vectors(path: Path) -> Iterator[tuple[str, Array]]:
    """Each line's word and vector, all of one width."""
    width: int | None = None
    promised = number = 0
    with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                # A byte-order mark is no part of the first word.
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError:
                raise InputError(f"{path}, line {number}: it is not UTF-8") from None
            word, *entries = text.rstrip().split(" ")
            # word2vec's text form begins with the number of words and their width.
            if number == 1 and len(entries) == 1 and word.isdecimal() and entries[0].isdecimal():
                promised, width = int(word), int(entries[0])
                continue
            width = width or len(entries)
            # Some of GloVe's words hold spaces.
            while len(entries) > width > 0 and not _is_number(entries[0]):
                word = f"{word} {entries.pop(0)}"
            if not width or len(entries) != width or not all(map(_is_number, entries)):
                raise InputError(
                    f"{path}, line {number}: expected a word and {width or 'its'} finite numbers, "
                    f"got {shown(word)} and {shown(' '.join(entries))}"
                )
            yield word, np.array(entries, dtype=np.float32)
    if promised and number - 1 != promised:
        raise InputError(f"{path} holds {number - 1} of the {promised} words it promises")


def _is_number(text: str) -> bool:
    try:
        finite = abs(float(text)) <= LARGEST
    except ValueError:
        return False
    return finite and "_" not in text  # float() would take 1_0 for 10.
