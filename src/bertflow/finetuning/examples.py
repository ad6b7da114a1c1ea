"""Labelled pairs of NLI data sets, divided into pairs to train on and pairs to measure on."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from bertflow.data import NLI_LABELS, NliPairs, read_nli
from bertflow.data.readers import nli_splits
from bertflow.errors import InputError, check_number

Row = tuple[str, str, str]
SEEN = "premise also trained on"


@dataclass(frozen=True)
class NliSet:
    """The part of a corpus that comes from one data set.

    Attributes:
        splits: Those that were read.
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

    `sets` are the data sets they come from, and `division` the arguments they were divided by.
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
    Where one lacks, a share of the premises is held out with all their pairs. A pair that would be
    held out although its premise is trained on is left out and counted.

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
    trained_on = {_key(premise) for train, _, _ in divided for premise, *_ in train}
    train, held, sets = [], [], []
    for own, others, facts in divided:
        unseen = [row for row in others if _key(row[0]) not in trained_on]
        # Adding to a counter drops what is 0.
        skipped = Counter(facts.skipped) + Counter({SEEN: len(others) - len(unseen)})
        sets.append(replace(facts, train=len(own), held_out=len(unseen), skipped=dict(skipped)))
        train += own
        held += unseen
    source = ", ".join(dict.fromkeys(place for part in sets for place in part.sources))
    if not held:
        raise InputError(f"{source}: no pair is left to hold out, every premise is trained on")
    if len(labels := {label for *_, label in train}) < 2:
        raise InputError(
            f"{source}: all {len(train)} pairs to train on are {next(iter(labels))}; training "
            "needs at least two labels"
        )
    name = "+".join(names)
    return NliCorpus(
        train=_pairs(name, "train", train, source),
        held_out=_pairs(name, "held-out", held, source),
        sets=sets,
        division={"held_out": held_out, "random_state": random_state, "limit": limit},
    )


def _divided(
    name: str, data: str | Path | None, share: float, random_state: int, limit: int | None
) -> tuple[list[Row], list[Row], NliSet]:
    """One set's rows to train on and to hold out, and where they are from."""
    splits, held_split = list(nli_splits(name, data)), None
    if "train" in splits:
        held_split = next((split for split in splits if split.startswith("dev")), None)
        splits = ["train", held_split] if held_split else ["train"]
    read = [read_nli(name, data, split) for split in splits]
    parts = [[*zip(one.first, one.second, one.labels, strict=True)][:limit] for one in read]
    if held_split is None:
        parts = _by_premise([row for part in parts for row in part], share, random_state)
    skipped = sum((Counter(one.skipped) for one in read), Counter())
    facts = NliSet(name, splits, [one.source for one in read], held_split, 0, 0, skipped)
    return parts[0], parts[1], facts


def _by_premise(rows: list[Row], share: float, random_state: int) -> list[list[Row]]:
    """Hold out a share of the premises with all their rows."""
    premises = list(dict.fromkeys(_key(premise) for premise, *_ in rows))
    count = min(max(round(share * len(premises)), 1), len(premises) - 1)
    order = np.random.default_rng(random_state).permutation(len(premises))
    chosen = {premises[place] for place in order[: max(count, 0)]}
    return [[row for row in rows if (_key(row[0]) in chosen) == out] for out in (False, True)]


def _key(premise: str) -> str:
    """Two premises that differ in case and space alone are the same."""
    return " ".join(premise.split()).casefold()


def _pairs(name: str, split: str, rows: list[Row], source: str) -> NliPairs:
    first, second, labels = (list(column) for column in zip(*rows, strict=True))
    return NliPairs(name, split, first, second, labels, source)
