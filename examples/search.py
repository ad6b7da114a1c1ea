"""Calibrate an encoder on your documents, and search them: search.py [ENCODER] [FILE]."""

import sys
from pathlib import Path

from bertflow import calibrate, load_encoder
from bertflow.data import sample_sentences
from bertflow.evaluation import exact_search

ENCODER = sys.argv[1] if len(sys.argv) > 1 else "bert-base-uncased"
FILE = sys.argv[2] if len(sys.argv) > 2 else None  # One document a line.
QUESTIONS = ["How do I get a stain out of a carpet?", "Is the train late?"]

documents = Path(FILE).read_text("utf-8").splitlines() if FILE else sample_sentences()
encoder = load_encoder(ENCODER)
model = calibrate(encoder, documents)

for name, side in [("before", encoder), ("after", model)]:
    rows, cosines = exact_search(side.encode(QUESTIONS), side.encode(documents), k=3)
    for question, found, values in zip(QUESTIONS, rows, cosines, strict=True):
        print(f"\n{name}: {question}")
        for row, value in zip(found, values, strict=True):
            print(f"  {value:.3f}  {documents[row]}")

model.save_pretrained("my-model")  # SentenceTransformer("my-model") loads it anywhere.
