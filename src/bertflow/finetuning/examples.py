"""Labelled pairs of NLI data sets, divided into pairs to train on and pairs to measure on."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from pathlib import Path

import numpy as np

from bertflow.data import NLI_LABELS, NliPairs, nli_splits, read_nli
from bertflow.errors import InputError, check_number

SEEN = "premise also trained on"


@dataclass(frozen=True)
class NliSet:
    """The part of a corpus that comes from one data set.

    Attributes:
        name: The data set.
        splits: The splits that were read.
        sources: Of each split, the file or repository@revision.
        held_out_split: The split that is held out; None where a share of the premises is.
        train: How many pairs are trained on.
        held_out: How many are held out.
        skipped: Rows that are in neither, counted by reason.
    """

    name: str
    splits: Sequence[str]
    sources: Sequence[str]
    held_out_split: str | None
    train: int
    held_out: int
    skipped: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class NliCorpus:
    """Labelled pairs to train on and others to measure on, no premise on both sides.

    Attributes:
        train: The pairs to train on.
        held_out: The pairs to measure on.
        sets: The data sets that the pairs come from.
        division: The arguments they were divided by.
    """

    train: NliPairs
    held_out: NliPairs
    sets: Sequence[NliSet]
    division: Mapping[str, float | int | None] = field(default_factory=dict)

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        """By side and label, how many pairs there are."""
        sides = {"train": self.train, "held_out": self.held_out}
        return {
            side: {label: Counter(pairs.labels)[label] for label in NLI_LABELS}
            for side, pairs in sides.items()
        }

    def texts(self) -> list[str]:
        """Every distinct sentence of both sides."""
        both = (self.train, self.held_out)
        return list(dict.fromkeys(t for pairs in both for t in (*pairs.first, *pairs.second)))

    def digest(self) -> str:
        """A SHA-256 of all pairs and labels in their order."""
        digest = hashlib.sha256()
        for pairs in (self.train, self.held_out):
            for row in zip(pairs.first, pairs.second, pairs.labels, strict=True):
                digest.update(json.dumps(row).encode())
            digest.update(b"\n")
        return digest.hexdigest()


def nli_corpus(
    names: Sequence[str],
    data: str | Path | None = None,
    *,
    held_out: float = 0.1,
    random_state: int = 0,
    limit: int | None = None,
) -> NliCorpus:
    """Read NLI data sets and divide them into pairs to train on and pairs to measure on.

    A set's train split is trained on, and its dev split (of mnli the matched one) is held out.
    Without a train split all others are divided, and without a dev split the train split is: a
    share of the premises is held out with all their pairs. A pair that would be held out although
    its premise is trained on is left out and counted.

    Args:
        names: Some of snli, mnli and sick-e.
        data: As in `bertflow.data.read_nli`: files in the folder first, else the model hub.
        held_out: Share of the premises that is held out where there is no split for it.
        random_state: Seed of that division.
        limit: Take only the first so many pairs of each split.

    Raises:
        MissingDataError: A set is nowhere; the message lists the places that were tried.
        InputError: An unknown or repeated set, a malformed row or an unknown label (named by
            line), a value out of range, or too few pairs to divide.

    Example:
        ``nli_corpus(["snli", "mnli"], "data").counts``
    """
    check_number("held_out", held_out, 0, 1, above=True)
    check_number("random_state", random_state, 0, integer=True)
    if limit is not None:
        check_number("limit", limit, 1, integer=True)
    if not names or len(set(names)) < len(names):
        raise InputError(f"give NLI data sets, each once, got {', '.join(names) or 'none'}")
    divided = [_divided(name, data, held_out, random_state, limit) for name in names]
    trained_on = {_key(premise) for train, _, _ in divided for premise in train.first}
    helds, sets = [], []
    for train, held, facts in divided:
        unseen = _chosen(held, (_key(premise) not in trained_on for premise in held.first))
        skipped = Counter(facts.skipped)
        if len(unseen) < len(held):
            skipped[SEEN] += len(held) - len(unseen)
        helds.append(unseen)
        sets.append(replace(facts, train=len(train), held_out=len(unseen), skipped=dict(skipped)))
    corpus = NliCorpus(
        train=_joined([train for train, _, _ in divided], "train"),
        held_out=_joined(helds, "held-out"),
        sets=sets,
        division={"held_out": held_out, "random_state": random_state, "limit": limit},
    )
    if not len(corpus.held_out):
        raise InputError(
            f"{corpus.held_out.source}: no pair is left to hold out, every premise is trained on"
        )
    if len(labels := set(corpus.train.labels)) < 2:
        raise InputError(
            f"{corpus.train.source}: all {len(corpus.train)} pairs to train on are "
            f"{next(iter(labels))}; training needs at least two labels"
        )
    return corpus


def _divided(
    name: str, data: str | Path | None, share: float, random_state: int, limit: int | None
) -> tuple[NliPairs, NliPairs, NliSet]:
    """One set's pairs to train on and to hold out, and where they are from."""
    there = nli_splits(name, data)
    splits, held_split = list(there), None
    if "train" in there:
        held_split = next((split for split in there if split.startswith("dev")), None)
        splits = ["train"] if held_split is None else ["train", held_split]
    whole = [read_nli(name, data, split) for split in splits]
    # No selector behind the limit: what follows is left out.
    read = [_chosen(pairs, [True] * (limit or len(pairs))) for pairs in whole]
    if held_split is None:
        train, held = _by_premise(_joined(read, "train"), share, random_state)
    else:
        train, held = read
    skipped = sum((Counter(pairs.skipped) for pairs in read), Counter())
    sources = [pairs.source for pairs in read]
    return train, held, NliSet(name, splits, sources, held_split, 0, 0, skipped)


def _by_premise(pairs: NliPairs, share: float, random_state: int) -> tuple[NliPairs, NliPairs]:
    """Hold out a share of the premises with all their pairs."""
    premises = list(dict.fromkeys(map(_key, pairs.first)))
    if len(premises) < 2:
        raise InputError(
            f"{pairs.source}: {len(premises)} premise cannot be divided; give at least 2"
        )
    count = min(max(round(share * len(premises)), 1), len(premises) - 1)
    order = np.random.default_rng(random_state).permutation(len(premises))
    chosen = {premises[place] for place in order[:count]}
    held = [_key(premise) in chosen for premise in pairs.first]
    return _chosen(pairs, (not out for out in held)), _chosen(pairs, held)


def _key(premise: str) -> str:
    """Two premises that differ in case and space alone are the same."""
    return " ".join(premise.split()).casefold()


def _chosen(pairs: NliPairs, rows: Iterable[bool]) -> NliPairs:
    chosen = list(rows)
    return replace(
        pairs,
        first=list(compress(pairs.first, chosen)),
        second=list(compress(pairs.second, chosen)),
        labels=list(compress(pairs.labels, chosen)),
    )


def _joined(parts: Sequence[NliPairs], split: str) -> NliPairs:
    return NliPairs(
        name="+".join(dict.fromkeys(part.name for part in parts)),
        split=split,
        first=[text for part in parts for text in part.first],
        second=[text for part in parts for text in part.second],
        labels=[label for part in parts for label in part.labels],
        source=", ".join(dict.fromkeys(part.source for part in parts)),
    )
