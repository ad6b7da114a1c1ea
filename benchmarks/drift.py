"""Whether drift is found, and found only where there is some.

Sentences of STS12 to STS16 by their source: news, captions, forums, questions, students' answers.
Each source is fitted on a half of its distinct sentences, and compared with its other half and with
the others. Then both halves are drawn anew again and again, in several sizes: how often is there a
false alarm? Last, what is found after the other source was learned beside the first, and what
a flow that was updated so has learned and forgotten.

    python -m benchmarks.drift [--clouds minilm:6 smollm2:6] [--draws 50]

Needs BERTFLOW_DATA or ../shared/data, and both packaged encoders.
"""

from __future__ import annotations

import argparse
import copy
import warnings
from collections.abc import Iterator, Mapping

import numpy as np

from benchmarks.adaptive import DATA, encoder_of
from bertflow import Calibrator, Flow, SentenceCache, drift
from bertflow.arrays import Array
from bertflow.calibrators import named_calibrator
from bertflow.data import read_task
from bertflow.encoders import embed
from bertflow.errors import FewRowsWarning

CLOUDS = ["minilm:6", "smollm2:6"]
SOURCES = {
    "news": ["MSRpar", "surprise.SMTnews", "deft-news", "headlines"],
    "captions": ["images", "MSRvid"],
    "forums": ["answers-forums", "deft-forum", "belief"],
    "questions": ["question-question"],
    "students": ["answers-students"],
}
# The first compares rows at unit length. All others compare rows as whitening does.
NAMES = ["adaptive-whitening", "whitening"]
# Fitted rows and new ones of the false alarms.
SIZES = [(200, 100), (500, 100), (500, 300), (800, 700)]
SHARES = [0.1, 0.25, 1 / 3, 0.5]


def texts() -> dict[str, list[str]]:
    """The distinct sentences of each source, in random order."""
    of_subset = {subset: source for source, subsets in SOURCES.items() for subset in subsets}
    found: dict[str, set[str]] = {source: set() for source in SOURCES}
    for task in ("sts12", "sts13", "sts14", "sts15", "sts16"):
        pairs = read_task(task, DATA)
        for *both, subset in zip(pairs.first, pairs.second, pairs.subset, strict=True):
            if subset in of_subset:
                found[of_subset[subset]].update(both)
    random = np.random.default_rng(0)
    return {name: random.permutation(sorted(some)).tolist() for name, some in found.items()}


def halves(rows: Array) -> tuple[Array, Array]:
    """The rows to fit on, and the others, at most 2,000 of each."""
    half = len(rows) // 2
    return rows[:half][:2000], rows[half:][:2000]


def pairs_of(name: str, clouds: Mapping[str, Array]) -> Iterator[tuple[Calibrator, str, str]]:
    """Each calibrator with the source it is fitted on, beside each source."""
    for fitted, rows in clouds.items():
        calibrator = named_calibrator(name).fit(halves(rows)[0])
        for new in clouds:
            yield calibrator, fitted, new


def found_table(name: str, clouds: Mapping[str, Array]) -> None:
    """What is found between each two sources."""
    print(f"\n{name}: farther out / less typical, %; ! is refit\n")
    print("| fitted on |", " | ".join(clouds), "|")
    print("|---|" + "---:|" * len(clouds), end="")
    for calibrator, fitted, new in pairs_of(name, clouds):
        if new == next(iter(clouds)):
            print(f"\n| {fitted} |", end="")
        one = drift(calibrator, halves(clouds[new])[1])
        shares = f"{100 * one.elsewhere.value:.0f} / {100 * one.less_typical.value:.0f}"
        print(f" {shares}{' !' if one.refit else ''} |", end="", flush=True)
    print()


def false_alarms(name: str, clouds: Mapping[str, Array], draws: int) -> None:
    """How often two samples of one source are told apart."""
    for fitted, new in SIZES:
        shares, refits = [], 0
        for rows in clouds.values():
            for seed in range(draws):
                drawn = rows[np.random.default_rng(seed).permutation(len(rows))[: fitted + new]]
                one = drift(named_calibrator(name).fit(drawn[:fitted]), drawn[fitted:])
                refits += one.refit
                shares.append((one.elsewhere.value, one.less_typical.value))
        most = " / ".join(f"{100 * share:.0f}" for share in np.max(shares, axis=0))
        counts = f"{fitted:,} | {new:,} | {len(shares):,} | {refits}"
        print(f"| {name} | {counts} | {most} |", flush=True)


def after_updates(name: str, clouds: Mapping[str, Array]) -> None:
    """What is found once some of the new source was learned."""
    for fitted, new in (("news", "captions"), ("captions", "news"), ("news", "forums")):
        calibrator = named_calibrator(name).fit(halves(clouds[fitted])[0])
        found = []
        for share in SHARES:
            more = round(calibrator.n_samples_ * share / (1 - share))
            updated = copy.deepcopy(calibrator).partial_fit(halves(clouds[new])[0][:more])
            one = drift(updated, halves(clouds[new])[1])
            found.append(f"{100 * one.elsewhere.value:.0f}{' !' if one.refit else ''}")
        print(f"| {name} | {fitted} | {new} | {' | '.join(found)} |", flush=True)


def flow_updates(clouds: Mapping[str, Array]) -> None:
    """Bits per dimension of held-out rows, before and after an update and by a fit on all rows."""
    print("\n| flow fitted on | held-out | fitted | updated | fitted on both | on the new alone |")
    print("|---|---|---:|---:|---:|---:|")
    for old, new in (("news", "captions"), ("captions", "news")):
        first, more = halves(clouds[old])[0], halves(clouds[new])[0]
        flows = [
            Flow().fit(first),
            Flow().fit(first).partial_fit(more),
            Flow().fit(np.concatenate([first, more])),
            Flow().fit(more),
        ]
        for kind in (old, new):
            rows = halves(clouds[kind])[1]
            bits = [-flow.score(rows) / (rows.shape[1] * np.log(2)) for flow in flows]
            print(f"| {old}, then {new} | {kind} | {' | '.join(f'{one:.3f}' for one in bits)} |")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--clouds", nargs="*", default=CLOUDS)
    parser.add_argument("--draws", type=int, default=50)
    given = parser.parse_args()
    warnings.simplefilter("ignore", FewRowsWarning)
    by_source = texts()
    print({source: len(some) for source, some in by_source.items()})
    for cloud in given.clouds:
        encoder, cache = encoder_of(cloud), SentenceCache()
        clouds = {
            source: embed(encoder, some, precision="float32", cache=cache).rows()
            for source, some in by_source.items()
        }
        print(f"\n## {cloud}")
        for name in NAMES:
            found_table(name, clouds)
        print("\n| calibrator | fitted | new | draws | false alarms | largest shares |")
        print("|---|---:|---:|---:|---:|---:|")
        for name in NAMES:
            false_alarms(name, clouds, given.draws)
        learned = " | ".join(f"{share:.0%} of the fitted" for share in SHARES)
        print(f"\n| calibrator | fitted on | new, farther out | {learned} |")
        print("|---|---|---|" + "---:|" * len(SHARES))
        for name in NAMES:
            after_updates(name, clouds)
        flow_updates(clouds)


if __name__ == "__main__":
    main()
