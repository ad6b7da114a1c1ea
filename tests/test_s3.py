"""Corpora in S3, by the real client on a stand-in for the store.

It needs what users need (s3fs, which bertflow[remote] leaves to them) and moto[server]; without
them these tests are skipped.
"""

from __future__ import annotations

import gzip
import io
import json

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from bertflow.data import stream_corpus
from bertflow.errors import InputError
from bertflow.scale import Transform, files_of, run

pytest.importorskip("s3fs", reason="needs s3fs")
moto = pytest.importorskip("moto.server", reason="needs moto[server], the stand-in")
BUCKET = "bertflow-corpora"


@pytest.fixture
def store(monkeypatch):
    """What puts bytes into a bucket that is there for one test."""
    import boto3
    import s3fs

    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    address = "http://{}:{}".format(*server.get_host_and_port())
    for name, value in {
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": address,
    }.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    client = boto3.client("s3", endpoint_url=address)
    client.create_bucket(Bucket=BUCKET)
    yield lambda name, content: client.put_object(Bucket=BUCKET, Key=name, Body=content)
    server.stop()
    s3fs.S3FileSystem.clear_instance_cache()


def test_texts_are_streamed_from_files_folders_and_patterns(store):
    store("texts/a.txt.gz", gzip.compress(b"one\ntwo\n"))
    store("texts/deep/b.jsonl", b"".join(json.dumps({"text": t}).encode() + b"\n" for t in "xy"))
    home = f"s3://{BUCKET}/texts"
    assert list(stream_corpus(f"{home}/a.txt.gz")) == ["one", "two"]
    assert list(stream_corpus(home)) == ["one", "two", "x", "y"]
    assert list(stream_corpus(f"{home}/*.gz")) == ["one", "two"]
    with pytest.raises(InputError, match=f"^{home}/none.txt does not exist"):
        list(stream_corpus(f"{home}/none.txt"))


def test_shards_are_read_and_those_that_are_done_are_not(store, tmp_path):
    from bertflow import Standardization

    x = np.random.default_rng(0).normal(3, 2, (300, 4)).astype(np.float32)
    for number, part in enumerate(np.split(x, 3)):
        file = io.BytesIO()
        ids = range(100 * number, 100 * number + 100)
        parquet.write_table(pyarrow.table({"id": ids, "vector": part.tolist()}), file)
        store(f"in/{number}.parquet", file.getvalue())
    standardization = Standardization().fit(x)
    outcome = run(Transform(standardization), f"s3://{BUCKET}/in", tmp_path / "out")
    assert (outcome.shards, outcome.rows, outcome.done_before) == (3, 300, 0)
    found = pyarrow.concat_tables(parquet.read_table(file) for file in files_of(tmp_path / "out"))
    assert found["id"].to_pylist() == list(range(300))
    z = np.array(found["vector"].to_pylist(), dtype=np.float32)
    np.testing.assert_allclose(z, standardization.transform(x), atol=1e-6)
    again = run(Transform(standardization), f"s3://{BUCKET}/in", tmp_path / "out")
    assert again.done_before == 3
    with pytest.raises(InputError, match=f"^s3://{BUCKET}/none does not exist"):
        run(Transform(standardization), f"s3://{BUCKET}/none", tmp_path / "none")
