"""The sentence that a report comes to, and what it rests on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bertflow.analysis import Diagnosis
from bertflow.display.tables import fixed, span
from bertflow.evaluation import Difference

BEFORE, AFTER = "before", "after"
LIKELY = {
    "yes": "Calibration is likely to help",
    "no": "These vectors can be left as they are",
    "unclear": "Whether calibration helps cannot be told without trying",
    "uninformative": "These vectors tell nothing apart",
}
# What a mean cosine means for whoever searches.
MEANS = {
    "yes": "all vectors point much the same way, so that a high cosine says little about meaning",
    "no": "the vectors point in all directions already, and there is little to mend",
    "unclear": "the vectors lean one way, but not by much",
    "uninformative": "all pairs are equally alike, so that a cosine says nothing; a map fitted on "
    "too few of these very rows does that",
}
SENTENCES, VECTORS = "sentences", "vectors"


@dataclass(frozen=True, eq=False, kw_only=True)
class Headline:
    """The difference that a report's verdict is about.

    Attributes:
        what: What is scored.
        before: The first side's score, times 100.
        after: The last side's.
        difference: After less before, times 100.
        grades: Whose grades they are.
    """

    what: str
    before: float
    after: float
    difference: Difference
    grades: str = "people's grades"


def conclude(
    names: Sequence[str],
    diagnoses: Mapping[str, Diagnosis],
    headline: Headline | None,
    *,
    scored: bool = False,
    lacking: str = "",
    rows: str = SENTENCES,
) -> tuple[str, str]:
    """Say what the scores tell, or else what the cloud does, to someone who has not heard of it.

    Args:
        names: Of the sides.
        diagnoses: Of each side whose vectors are there.
        headline: The difference in score; None where there is none.
        scored: Whether there are scores at all.
        lacking: What would fill the sections about vectors, where there are none.
        rows: What the vectors are of.

    Returns:
        The verdict, and what it rests on, which may be empty.

    Example:
        >>> from bertflow.evaluation import Difference
        >>> rise = Difference(2.0, 1.0, 3.0, p=0.001, adjusted=0.001)
        >>> found = Headline(what="STS-B", before=58.0, after=60.0, difference=rise)
        >>> conclude(["before", "after"], {}, found)[0].partition(" (")[0]
        "Calibration helped: on STS-B, cosines agree better with people's grades than before"
    """
    usual = list(names) in ([BEFORE], [BEFORE, AFTER])
    first = next(iter(diagnoses.values()), None)
    if headline is not None:
        return _of_headline(headline, names), _crowding(diagnoses, rows, usual=usual)
    if first is None:
        if scored:
            return "No score tells before and after apart.", ""
        reason = lacking.rstrip(".")
        told = f"{reason[:1].upper()}{reason[1:]}." if reason else ""
        return "Nothing here tells whether calibration helps.", told
    if not usual:
        told = _crowding(diagnoses, rows, usual=False)
        return "Without scores, which of the two is better cannot be told.", told
    if AFTER not in diagnoses:
        return (
            f"{LIKELY[first.verdict]}: any two unrelated {rows} look {_alike(first)} alike (mean "
            f"cosine {_cosine(first)}; it should be near 0).",
            _sentence(MEANS[first.verdict]),
        )
    after = diagnoses[AFTER]
    if after.verdict == "uninformative" != first.verdict:
        return (
            f"Calibration has left nothing to tell apart: before, any two unrelated {rows} look "
            f"{_alike(first)} alike (mean cosine {_cosine(first)}), and after, all pairs are "
            f"equally alike ({_cosine(after)}, with hardly a difference).",
            _sentence(MEANS[after.verdict]),
        )
    return (
        f"{LIKELY[first.verdict]}: before, any two unrelated {rows} look {_alike(first)} alike "
        f"(mean cosine {_cosine(first)}; it should be near 0), and after {_alike(after)} "
        f"({_cosine(after)}).",
        f"{_sentence(f'before, {MEANS[first.verdict]}')} {_evenness(diagnoses)}",
    )


def _crowding(diagnoses: Mapping[str, Diagnosis], rows: str, *, usual: bool) -> str:
    """How alike all rows look on two sides, and what comes of that."""
    if len(diagnoses) < 2:
        return ""
    (name, first), *_, (other, last) = diagnoses.items()
    if usual:
        told = (
            f"Before, any two unrelated {rows} look {_alike(first)} alike (mean cosine "
            f"{_cosine(first)}; it should be near 0): {MEANS[first.verdict]}. After, they look "
            f"{_alike(last)} alike ({_cosine(last)})."
        )
    else:
        told = (
            f"Any two unrelated {rows} look {_alike(first)} alike by {name} (mean cosine "
            f"{_cosine(first)}; it should be near 0), and {_alike(last)} by {other} "
            f"({_cosine(last)})."
        )
    return f"{told} {_evenness(diagnoses)}"


def _evenness(diagnoses: Mapping[str, Diagnosis]) -> str:
    scores = [f"{one.isoscore:.2f} {name}" for name, one in diagnoses.items()]
    told = f"How evenly they spread over all dimensions (IsoScore, 1 at best): {', '.join(scores)}."
    even = [name for name, one in diagnoses.items() if one.verdict == "uninformative"]
    return f"{told} Equally alike are all pairs {' and '.join(even)}." if even else told


def _alike(one: Diagnosis) -> str:
    """A mean cosine as someone says it who has none."""
    return f"{max(round(100 * one.mean_cosine), 0)} %"


def _cosine(one: Diagnosis) -> str:
    return fixed(one.mean_cosine)


def _sentence(told: str) -> str:
    return f"{told[:1].upper()}{told[1:]}."


def _of_headline(found: Headline, names: Sequence[str]) -> str:
    change = found.difference
    ends = span(change.low, change.high, signed=True)
    figures = (
        f"(Spearman × 100 from {fixed(found.before)} to {fixed(found.after)}: "
        f"{fixed(change.value or 0.0, signed=True)}{f', 95 % {ends}' if ends else ''})"
    )
    usual = list(names) == [BEFORE, AFTER]
    better = (change.value or 0.0) > 0
    if not change.real:
        whom = "calibration" if usual else f"{names[-1]} beside {names[0]}"
        return (
            f"What {whom} changes on {found.what} may be chance: how well cosines agree with "
            f"{found.grades} hardly differs {figures}."
        )
    how = "better" if better else "less"
    if usual:
        came = "helped" if better else "made it worse"
        return (
            f"Calibration {came}: on {found.what}, cosines agree {how} with {found.grades} than "
            f"before {figures}."
        )
    return (
        f"{names[-1]} is {'ahead of' if better else 'behind'} {names[0]}: on {found.what}, its "
        f"cosines agree {how} with {found.grades} {figures}."
    )
