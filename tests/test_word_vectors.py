"""Word vectors read from text: what is accepted, and the line of what is not."""

from __future__ import annotations

import gzip

import numpy as np
import pytest

from bertflow.encoders import load_word_vectors
from bertflow.errors import InputError

GOOD = "cat 1 0\ndog 0 1\n"


def mean(*rows: list[float]) -> np.ndarray:
    return np.mean(rows, axis=0)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        *((GOOD, name) for name in ["words.txt", "words.txt.gz", "words.vec", "WORDS.TXT.GZ"]),
        ("2 2\n" + GOOD, "words.txt"),
        ("cat 1 0 \ndog 0 1 \n", "words.txt"),
        (GOOD.replace("\n", "\r\n"), "words.txt"),
        (GOOD.rstrip(), "words.txt"),
        ("bird 5 5\n. . . 3 3\nat name@domain.com 4 4\n" + GOOD, "words.txt.gz"),
        ("cat 9 9\n" + GOOD, "words.txt"),
        ("\ufeff" + GOOD, "words.txt.gz"),
        ("\ufeff2 2\n" + GOOD, "words.txt"),
        ("\" 7 7\n\"cat 8 8\n'' 6 6\n" + GOOD, "words.txt"),
        ("one\u2028two 5 5\nx\x0cy 4 4\n" + GOOD, "words.txt"),
        (GOOD + "a_b 1_0 3 3\n", "words.txt"),
    ],
    ids=[
        *("plain", "gzip", "another ending", "large letters"),
        *("header", "trailing", "Windows", "no end", "spaces in words", "twice"),
        *("byte-order mark", "mark and header", "quotes", "odd ends of lines", "underscore"),
    ],
)
def test_forms_that_are_read(text, name, tmp_path, capfd):
    write = gzip.compress if name.lower().endswith(".gz") else bytes
    (tmp_path / name).write_bytes(write(text.encode()))
    encoder = load_word_vectors(tmp_path / name)
    vectors = encoder.encode(["Cat, dog!", "dog", "unknown"], show_progress_bar=False)
    expected = [mean([1, 0], [0, 1]), [0, 1], [0, 0]]
    np.testing.assert_array_equal(vectors, np.array(expected, dtype=np.float32))
    assert capfd.readouterr() == ("", "")


def test_what_is_wrong_is_named_with_its_line(tmp_path):
    for content, message in [
        (b"", "holds no word vectors"),
        (b"cat 1 0\ndog 0\n", "line 2: expected a word and 2 finite numbers, got 'dog' and '0'"),
        (
            b"cat 1 0\ndog 0 1 2\n",
            "line 2: expected a word and 2 finite numbers, got 'dog' and '0 1",
        ),
        (b"cat 1 0\n\ndog 0 1\n", "line 2: expected a word and 2 finite numbers, got '' and ''"),
        (b"\ncat 1 0\n", "line 1: expected a word and its finite numbers, got '' and ''"),
        (b"cat\ndog\n", "line 1: expected a word and its finite numbers, got 'cat' and ''"),
        (b"2 3\ncat 1 0\ndog 0 1\n", "line 2: expected a word and 3 finite numbers, got 'cat'"),
        (b"3 2\ncat 1 0\ndog 0 1\n", "holds 2 of the 3 words it promises"),
        (b"cat 1 0\nd\xffg 0 1\n", "line 2: it is not UTF-8"),
        (b"cat 1 0\ndog 0 x\n", "line 2: expected a word and 2 finite numbers, got 'dog"),
        (b"cat 1 0\ndog 0 1_0\n", "line 2: expected a word and 2 finite numbers, got 'dog"),
        (b"cat 1 0\n\xef\xbb\xbfdog 0 1 2\n", "line 2: expected a word and 2 finite numbers"),
        (b"cat 1 0\ndog 0 nan\n", "line 2: expected a word and 2 finite numbers, got 'dog'"),
        (b"cat 1 0\ndog 0 -inf\n", "line 2: expected a word and 2 finite numbers, got 'dog'"),
        (b"cat 1 0\ndog 0 1e39\n", "line 2: expected a word and 2 finite numbers, got 'dog'"),
    ]:
        (tmp_path / "words.txt").write_bytes(content)
        with pytest.raises(InputError) as caught:
            load_word_vectors(tmp_path / "words.txt")
        assert str(tmp_path / "words.txt") in str(caught.value)
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("damage", ["no gzip", "cut", "changed"])
def test_a_damaged_gzip_is_one_error(damage, tmp_path):
    content = gzip.compress(("".join(f"w{i} {i} {i * i}\n" for i in range(500))).encode())
    changed = bytearray(content)
    changed[len(content) // 2] ^= 255
    damaged = {"no gzip": GOOD.encode(), "cut": content[:-40], "changed": bytes(changed)}[damage]
    (tmp_path / "words.gz").write_bytes(damaged)
    with pytest.raises(InputError, match=r"words\.gz"):
        load_word_vectors(tmp_path / "words.gz")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"nowhere\.txt does not exist"):
        load_word_vectors(tmp_path / "nowhere.txt")
