"""The sentence that a report comes to, and what it rests on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bertflow.analysis import Diagnosis
from bertflow.report.scores import Headline

BEFORE, AFTER = "before", "after"
LIKELY = {
    "yes": "Calibration is likely to help",
    "no": "Calibration is not likely to help, and may cost",
    "unclear": "Whether calibration helps cannot be told without trying",
}


def conclude(
    names: Sequence[str],
    diagnoses: Mapping[str, Diagnosis],
    headline: Headline | None,
    *,
    scored: bool = False,
    lacking: str = "",
) -> tuple[str, str]:
    """Say what the scores tell, or else what the cloud does.

    Args:
        names: Of the sides.
        diagnoses: Of each side whose vectors are there.
        headline: The difference in score; None where there is none.
        scored: Whether there are scores at all.
        lacking: What would fill the sections about vectors, where there are none.

    Returns:
        The verdict, and what it rests on, which may be empty.

    Example:
        >>> from bertflow.evaluation import Difference
        >>> rise = Difference(2.0, 1.0, 3.0, p=0.001, adjusted=0.001)
        >>> found = Headline(what="STS-B", before=58.0, after=60.0, difference=rise)
        >>> conclude(["before", "after"], {}, found)[0].partition(",")[0]
        'Calibration helped: on STS-B'
    """
    crowd = _crowding(diagnoses)
    if headline is not None:
        return _of_headline(headline, names), crowd
    first = next(iter(diagnoses.values()), None)
    if first is None:
        if scored:
            return "No score tells before and after apart.", ""
        reason = lacking.rstrip(".")
        told = f"{reason[:1].upper()}{reason[1:]}." if reason else ""
        return "Nothing here tells whether calibration helps.", told
    if list(names) not in ([BEFORE], [BEFORE, AFTER]):
        return "Without scores, which of the two is better cannot be told.", crowd
    said = f"{LIKELY[first.verdict]}: random pairs have a mean cosine of {first.mean_cosine:.2f}"
    if AFTER in diagnoses:
        said += f" before, and of {diagnoses[AFTER].mean_cosine:.2f} after"
    return f"{said}.".replace("-0.00", "0.00").replace("-", "−"), crowd


def _crowding(diagnoses: Mapping[str, Diagnosis]) -> str:
    if len(diagnoses) < 2:
        return ""
    cosines = [f"{one.mean_cosine:.2f} {name}" for name, one in diagnoses.items()]
    scores = [f"{one.isoscore:.2f} {name}" for name, one in diagnoses.items()]
    return (
        f"Mean cosine of random pairs: {', '.join(cosines)} (0 at best). "
        f"IsoScore: {', '.join(scores)} (1 at best)."
    ).replace("-0.00", "0.00")


def _of_headline(found: Headline, names: Sequence[str]) -> str:
    one = found.difference
    span = "" if one.low is None else f", 95 % {_signed(one.low)} to {_signed(one.high or 0.0)}"
    figures = f"{found.before:.2f} to {found.after:.2f} ({_signed(one.value or 0.0)}{span})"
    usual = list(names) == [BEFORE, AFTER]
    up = (one.value or 0.0) > 0
    if not one.real:
        whom = "calibration" if usual else f"{names[-1]} beside {names[0]}"
        what = f"What {whom} changes on {found.what} may be chance"
        return f"{what}: Spearman × 100 goes from {figures}."
    if usual:
        what = "Calibration helped" if up else "Calibration cost"
        return f"{what}: on {found.what}, Spearman × 100 went from {figures}."
    order = "ahead of" if up else "behind"
    return (
        f"{names[-1]} is {order} {names[0]}: on {found.what}, Spearman × 100 goes from {figures}."
    )


def _signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")
