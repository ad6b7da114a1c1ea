"""Averaged word vectors: the baseline that sentence encoders were first measured against."""

from __future__ import annotations

from pathlib import Path

from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, WordEmbeddings

from bertflow.errors import InputError


def load_word_vectors(path: str | Path) -> SentenceTransformer:
    r"""Read word vectors such as GloVe's, and average those of a sentence's words.

    .. math:: s = \frac1n \sum_{i=1}^n w_i

    Words are split at white space, looked up as they are, without punctuation, or in lower case;
    stop words and unknown words do not count. A sentence without a known word is a zero vector.

    Args:
        path: Text, a word and its numbers a line, also with .gz.

    Returns:
        An encoder of built-in modules.

    Raises:
        InputError: The file is missing, or holds no word vectors.

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
        words = WordEmbeddings.from_text_file(str(path))
    except (ValueError, TypeError, OSError, EOFError) as error:
        detail = str(error).split("\n")[0]
        raise InputError(f"{path} holds no word vectors: {detail}") from None
    pooling = Pooling(words.get_embedding_dimension(), pooling_mode="mean")
    return SentenceTransformer(modules=[words, pooling]).eval()
