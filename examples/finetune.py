"""Fine-tune an encoder on labelled pairs, then calibrate it: finetune.py [ENCODER] [DATA].

Needs pip install 'bertflow[train]', and SNLI in the folder DATA, or bertflow[hub] to fetch it.
"""

import sys

from bertflow import calibrate, load_encoder
from bertflow.data import sample_pairs
from bertflow.evaluation import difference, score_pairs
from bertflow.finetuning import Recipe, finetune, nli_corpus

ENCODER = sys.argv[1] if len(sys.argv) > 1 else "bert-base-uncased"
DATA = sys.argv[2] if len(sys.argv) > 2 else None
LIMIT = 20_000  # Pairs; the paper takes all 942,000 of SNLI and MultiNLI.

corpus = nli_corpus(["snli"], DATA, limit=LIMIT)
encoder = load_encoder(ENCODER, pooling="mean")
tuned = finetune(encoder, corpus, Recipe(epochs=1.0))
print(f"accuracy on pairs held out: {tuned.accuracy.value:.2f}")

model = calibrate(tuned.model, corpus.texts())
model.save_pretrained("tuned-and-calibrated")

pairs = sample_pairs()  # Take pairs of your own: bertflow.data.read_pairs(FILE).
before, after = score_pairs(tuned.model, pairs), score_pairs(model, pairs)
print(f"Spearman x 100: {100 * before.all.value:.1f}, calibrated {100 * after.all.value:.1f}")
print("more than chance" if difference(before, after).real else "may be chance")
