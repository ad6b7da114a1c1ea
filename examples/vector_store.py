"""Recall of a FAISS index before and after calibration: vector_store.py [ENCODER]."""

import sys
from pathlib import Path

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bertflow import AllButTheTop
from bertflow.data import sample_pairs, sample_sentences
from bertflow.scale import Encode, Transform, files_of, fit_folder, run

pairs = sample_pairs()  # Queries, and what each should find. Those of your users are better.
wanted = {a: b for a, b, g in zip(pairs.first, pairs.second, pairs.gold, strict=True) if g >= 4}
texts = [text for text in (*pairs.first, *pairs.second, *sample_sentences()) if text not in wanted]
ids = np.arange(1000, 1000 + len(texts))
Path("documents").mkdir(exist_ok=True)  # Of yours: many files, with millions of rows.
pq.write_table(pa.table({"id": ids, "text": texts}), "documents/part-0.parquet")

encode, calibrator = Encode(*sys.argv[1:2] or ["bert-base-uncased"]), AllButTheTop()
run(encode, "documents", "raw")
fit_folder(calibrator, "raw", "moments")
run(calibrate := Transform(calibrator), "raw", "calibrated")

queries = encode(pa.table({"text": [*wanted]}))  # They go the way that the documents went.
relevant = ids[[texts.index(text) for text in wanted.values()], None]
for folder, asked in [("raw", queries), ("calibrated", calibrate(queries))]:
    rows = np.stack(asked["vector"].to_numpy())
    index = faiss.IndexIDMap(faiss.IndexFlatIP(rows.shape[1]))
    for file in files_of(folder):
        for batch in pq.ParquetFile(file, pre_buffer=False).iter_batches(2**14):
            vectors = batch["vector"].flatten().to_numpy().reshape(len(batch), -1)
            lengths = np.linalg.norm(vectors, axis=1, keepdims=True)  # A cosine is an inner product
            index.add_with_ids(vectors / lengths, batch["id"].to_numpy())  # at length 1.
    found = index.search(rows, 10)[1] == relevant
    recalls = [f"recall@{k} {100 * found[:, :k].any(axis=1).mean():.1f}" for k in (1, 10)]
    print(f"{folder}: {', '.join(recalls)}, {len(wanted)} queries, {index.ntotal} documents")
