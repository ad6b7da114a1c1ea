"""The sentence that a report comes to, and its evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bertflow.analysis import Diagnosis
from bertflow.analysis.diagnosis import VERDICTS
from bertflow.display.grid import fixed, span
from bertflow.evaluation import Difference

BEFORE, AFTER = "before", "after"


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

    def sentence(self, names: Sequence[str]) -> str:
        """The difference in plain words.

        Args:
            names: Of the sides.

        Example:
            >>> rise = Difference(2.0, 1.0, 3.0, p=0.001, adjusted=0.001)
            >>> found = Headline(what="STS-B", before=58.0, after=60.0, difference=rise)
            >>> found.sentence(["before", "after"]).partition(" (")[0]
            "Calibration helped: on STS-B, cosines agree better with people's grades than before"
        """
        change = self.difference
        ends = span(change.low, change.high, signed=True)
        figures = (
            f"(Spearman × 100 from {fixed(self.before)} to {fixed(self.after)}: "
            f"{fixed(change.value or 0.0, signed=True)}{f', 95 % {ends}' if ends else ''})"
        )
        usual = list(names) == [BEFORE, AFTER]
        better = (change.value or 0.0) > 0
        how = "better" if better else "less"
        if not change.real:
            whom = "calibration" if usual else f"{names[-1]} beside {names[0]}"
            return (
                f"What {whom} changes on {self.what} may be chance: how well cosines agree with "
                f"{self.grades} hardly differs {figures}."
            )
        if usual:
            came = "helped" if better else "made it worse"
            return (
                f"Calibration {came}: on {self.what}, cosines agree {how} with {self.grades} than "
                f"before {figures}."
            )
        return (
            f"{names[-1]} is {'ahead of' if better else 'behind'} {names[0]}: on {self.what}, its "
            f"cosines agree {how} with {self.grades} {figures}."
        )


def conclude(
    names: Sequence[str],
    diagnoses: Mapping[str, Diagnosis],
    headline: Headline | None,
    *,
    scored: bool = False,
    lacking: str = "",
    rows: str = "sentences",
) -> tuple[str, str]:
    """Say what the scores tell, or else what the cloud does, in plain words.

    Args:
        names: Of the sides.
        diagnoses: Of each side whose vectors are there.
        headline: The difference in score; None where there is none.
        scored: Whether there are scores at all.
        lacking: What would fill the sections about vectors, where there are none.
        rows: What the vectors are of.

    Returns:
        The verdict and its evidence, which may be empty.
    """
    usual = set(names) <= {BEFORE, AFTER}
    evenness = _evenness(diagnoses)
    crowding = _crowding(diagnoses, rows, by="" if usual else "by ")
    if headline is not None:
        return headline.sentence(names), f"{_sentence(crowding)} {evenness}".strip()
    if not diagnoses:
        if scored:
            return "No score tells before and after apart.", ""
        return "Nothing here tells whether calibration helps.", _sentence(lacking)
    if not usual:
        verdict = "Without scores, which of the two is better cannot be told."
        return verdict, f"{_sentence(crowding)} {evenness}"
    several = list(diagnoses.values())
    first, last = several[0], several[-1]
    verdict, reason = VERDICTS[first.verdict], first.reason
    if last.verdict == "uninformative" != first.verdict:
        verdict, reason = "Calibration has left nothing to tell apart", last.reason
    return f"{verdict}: {crowding}.", f"{_sentence(reason)} {evenness}".strip()


def _crowding(diagnoses: Mapping[str, Diagnosis], rows: str, *, by: str) -> str:
    """How alike all rows look, side by side."""
    told: list[str] = []
    for name, one in diagnoses.items():
        side = f"{by}{name}" if len(diagnoses) > 1 else ""
        alike, cosine = f"{max(round(100 * one.mean_cosine), 0)} %", fixed(one.mean_cosine)
        if told:
            told.append(f"{side} {alike} ({cosine})")
        else:
            start = f"{side}, " if side else ""
            told.append(
                f"{start}any two unrelated {rows} look {alike} alike (mean cosine {cosine}; it "
                "should be near 0)"
            )
    return ", and ".join(told)


def _evenness(diagnoses: Mapping[str, Diagnosis]) -> str:
    if len(diagnoses) < 2:
        return ""
    scores = [f"{one.isoscore:.2f} {name}" for name, one in diagnoses.items()]
    return f"How evenly they spread over all dimensions (IsoScore, 1 at best): {', '.join(scores)}."


def _sentence(told: str) -> str:
    return f"{told[:1].upper()}{told[1:].rstrip('.')}." if told else ""
