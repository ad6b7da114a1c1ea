"""JSON of strangers: what Python's parser lets pass and ours does not."""

from __future__ import annotations

import json

import pytest

from bertflow.calibrators import Standardization, load_calibrator, save_calibrator
from bertflow.data import read_corpus
from bertflow.encoders.checks import read_modules
from bertflow.errors import InputError, ModelError
from bertflow.io.reading import LARGEST, parse_json, read_json
from bertflow.io.result_store import ResultStore

GOOD = ['{"a": [1, -2.5, "x", null, true, {"b": {}}]}', "[]", "3", '"\\u00e9"', " {} "]
BAD = {
    "twice": ('{"a": 1, "b": 2, "a": 3}', "it has the key 'a' twice"),
    "twice inside": ('[{"x": {"a": 1, "a": 1}}]', "it has the key 'a' twice"),
    "NaN": ('{"a": {"rate": NaN}}', "it holds NaN, expected finite numbers"),
    "Infinity": ('{"a": [1, [Infinity]]}', "it holds Infinity"),
    "minus": ("-Infinity", "it holds -Infinity"),
    "too large": ('{"a": 1e999}', "it holds 1e999"),
    "deep": ("[" * 100_000, "nested too deep"),
    "deep objects": ('{"a":' * 100_000, "nested too deep"),
    "long number": ("1" * 5000, "limit"),
    "cut": ('{"a": ', "line 1, column 7"),
    "empty": ("", "Expecting value"),
    "more": ("{} {}", "Extra data"),
    "quotes": ("{'a': 1}", "double quotes"),
}


def test_what_is_json_is_parsed_as_python_does():
    for text in GOOD:
        assert parse_json(text) == json.loads(text)


def test_what_is_none_is_refused_in_one_line():
    for case in BAD:
        text, said = BAD[case]
        with pytest.raises(ValueError, match=said) as caught:
            parse_json(text)
        assert "\n" not in str(caught.value)


def test_a_file_is_named(tmp_path):
    for case in BAD:
        path = tmp_path / "x.json"
        path.write_text(BAD[case][0])
        with pytest.raises(ModelError, match=r"x\.json is no JSON: "):
            read_json(path)


@pytest.mark.parametrize(
    ("content", "said"),
    [(b" " * (LARGEST + 1), "more than"), (b"\xff", "no JSON"), (None, "cannot be read")],
)
def test_a_file_that_cannot_be_read_is_named(content, said, tmp_path):
    path = tmp_path / "x.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ModelError, match=rf"x\.json .*{said}"):
        read_json(path)
    with pytest.raises(ModelError, match=f"{tmp_path} cannot be read: Is a directory"):
        read_json(tmp_path)


@pytest.mark.parametrize("case", ["twice", "NaN", "deep"])
def test_every_reader_of_json_refuses_it(case, tmp_path, rng):
    text, _ = BAD[case]
    (tmp_path / "modules.json").write_text(text)
    with pytest.raises(ModelError, match=r"modules\.json is no JSON"):
        read_modules(tmp_path / "modules.json")
    (tmp_path / "ab.json").write_text(text)
    assert ResultStore(tmp_path).get("ab") is None
    folder = tmp_path / "saved"
    save_calibrator(Standardization().fit(rng.normal(size=(9, 3))), folder)
    config = json.loads((folder / "config.json").read_text())
    for name, other in [
        ("config.json", text),
        ("config.json", json.dumps(config)[:-1] + ', "format": 1}'),
    ]:
        (folder / name).write_text(other)
        with pytest.raises(ModelError, match=r"config\.json is no JSON"):
            load_calibrator(folder)
    (tmp_path / "c.jsonl").write_text('{"text": "a"}\n{"text": "b", "text": "c"}\n')
    with pytest.raises(
        InputError, match=r"c\.jsonl, line 2: not JSON \(it has the key 'text' twice"
    ):
        read_corpus([tmp_path / "c.jsonl"])


def test_what_could_not_be_read_back_is_not_written(tmp_path, rng):
    fitted = Standardization().fit(rng.normal(size=(9, 3)))
    with pytest.raises(InputError, match="provenance"):
        save_calibrator(fitted, tmp_path / "saved", provenance={"x": object()})
    assert list(tmp_path.iterdir()) == []
