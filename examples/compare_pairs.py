"""Which calibrator is best on pairs of your own? compare_pairs.py [ENCODER] [PAIRS.csv]."""

import sys

from bertflow import SentenceCache, compare, load_encoder
from bertflow.data import read_pairs, sample_pairs, sample_sentences

ENCODER = sys.argv[1] if len(sys.argv) > 1 else "bert-base-uncased"
# Two columns of text and one of scores. Those that come along are a demonstration.
pairs = read_pairs(sys.argv[2]) if len(sys.argv) > 2 else sample_pairs()

result = compare(
    load_encoder(ENCODER),
    [pairs],
    fit=[*pairs.first, *pairs.second, *sample_sentences()],  # Unlabelled: the more the better.
    methods=["none", "adaptive-whitening", "whitening", "soft-whitening", "flow"],
    seeds=2,
    cache=SentenceCache(),  # A second run encodes nothing.
)

against = result.against("none", "all")
print(f"Spearman x 100 on {len(pairs)} pairs")
for name, entry in result.entries.items():
    score = entry.overall("all")
    line = f"{name:20} {100 * score.value:6.2f}"
    if name in against:
        gain = against[name]
        line += f"  {100 * gain.value:+6.2f} ({100 * gain.low:+.1f} to {100 * gain.high:+.1f})"
        line += "  more than chance" if gain.real else "  may be chance"
    print(line)
