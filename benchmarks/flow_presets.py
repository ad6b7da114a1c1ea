"""What was tried on the way to Flow.tempered(), on dev splits alone.

Vectors: SmolLM2-135M, state 1, on STS-B dev and SICK trial, and its states 1 and 30 averaged, as
stored in ../shared/data, on STS-B dev. Everything is fitted on the text of all splits of a task,
without labels. Dev figures of some thirty settings lie within 0.2 points, which is less than
their intervals tell apart; docs/results.md says how the preset was fixed among them.

    python -m benchmarks.flow_presets [--flows | --test]

With --test it prints instead what settings on that plateau have on the seven test sets.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator

import numpy as np
from scipy.stats import norm
from sklearn.cluster import KMeans

from benchmarks.measuring import DATA, stored_vectors, table_line, versions
from bertflow.arrays import Array
from bertflow.calibrators import Flow
from bertflow.data import STS_TASKS, read_sentences, read_task
from bertflow.demo import default_encoder
from bertflow.encoders import embed, load_encoder
from bertflow.evaluation import correlate, figures, paired_cosine
from bertflow.evaluation.scores import average

Map = Callable[[Array], Array]
Fit = Callable[[Array], Map]
Weights = Callable[[Array], Array]
WIDEST = 192


def unit(x: Array) -> Array:
    """Rows of length 1."""
    return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True))


def spectral(weights: Weights, *, normalize: bool = True, centring: float = 1.0) -> Fit:
    """Principal axes, each multiplied by a function of all variances."""

    def fit(rows: Array) -> Map:
        rows = unit(rows) if normalize else rows
        mean = rows.mean(axis=0)
        variance, axes = np.linalg.eigh(np.cov(rows.T, ddof=0))
        variance, axes = variance[::-1].clip(variance[-1] * 1e-12), axes[:, ::-1]
        matrix = axes * weights(variance)
        return lambda x: ((unit(x) if normalize else x) - centring * mean) @ matrix

    return fit


def power(p: float, dim: int | None = None) -> Weights:
    """Soft whitening."""
    return lambda v: np.where(np.arange(len(v)) < (dim or len(v)), v ** (-p / 2), 0.0)


def wiener(noise: float, exponent: float = 1.0, leading: int = 0, gain: float = 1.0) -> Weights:
    """Whitening, each axis weighted by its share of signal; the leading ones damped."""

    def weights(v: Array) -> Array:
        w = v**-0.5 * (v / (v + v[round(noise * len(v))])) ** exponent
        w[:leading] *= gain
        return np.asarray(w)

    return weights


def ridge(share: float, exponent: float) -> Weights:
    """The same with noise as a share of the mean variance."""
    return lambda v: v**-0.5 * (v / (v + share * v.mean())) ** exponent


def then(fit: Fit, make: Callable[[Array], Map]) -> Fit:
    """A second map, learned on what the first gives."""

    def both(rows: Array) -> Map:
        first = fit(rows)
        second = make(first(rows))
        return lambda x: second(first(x))

    return both


def bent(exponent: float) -> Callable[[Array], Map]:
    """Each coordinate to a power, its sign kept."""
    return lambda rows: lambda z: np.sign(z) * np.abs(z) ** exponent


def gaussian(rows: Array) -> Map:
    """Each coordinate to normal quantiles."""
    ordered, deviation = np.sort(rows, axis=0), rows.std(axis=0)

    def apply(z: Array) -> Array:
        out = np.empty_like(z)
        for column in range(z.shape[1]):
            low = np.searchsorted(ordered[:, column], z[:, column])
            high = np.searchsorted(ordered[:, column], z[:, column], side="right")
            out[:, column] = norm.ppf((low + high + 1) / 2 / (len(ordered) + 1))
        return out * deviation

    return apply


def less_clusters(count: int, share: float) -> Callable[[Array], Map]:
    """A share of the soft cluster's centre is taken away."""

    def make(rows: Array) -> Map:
        points = unit(np.unique(rows, axis=0))
        centres = KMeans(count, n_init=1, random_state=0, max_iter=30).fit(points).cluster_centers_

        def apply(z: Array) -> Array:
            z = unit(z)
            weight = np.exp(20 * z @ centres.T)
            weight /= weight.sum(axis=1, keepdims=True)
            return np.asarray(z - share * weight @ centres)

        return apply

    return make


def by_neighbours(strength: float) -> Callable[[Array], Map]:
    """Directions in which nearest neighbours differ are weakened, or strengthened if negative."""

    def make(rows: Array) -> Map:
        points = np.unique(np.round(rows, 9), axis=0)
        directions = unit(points).astype(np.float32)
        nearest = np.empty(len(points), dtype=np.int64)
        for start in range(0, len(points), 2000):
            cosine = directions[start : start + 2000] @ directions.T
            own = np.arange(start, start + len(cosine))
            cosine[np.arange(len(cosine)), own] = -2
            nearest[own] = cosine.argmax(axis=1)
        here = np.arange(len(points))
        mutual = here[(nearest[nearest] == here) & (here < nearest)]
        apart = unit(points[mutual] - points[nearest[mutual]])
        spread = apart.T @ apart
        spread = 0.9 * spread / np.trace(spread) * len(spread) + 0.1 * np.eye(len(spread))
        values, axes = np.linalg.eigh(spread)
        matrix = axes * values ** (-strength / 2) @ axes.T
        return lambda z: z @ matrix

    return make


def standardized(fit: Fit) -> Fit:
    """The same after standardization."""

    def both(rows: Array) -> Map:
        mean, deviation = rows.mean(axis=0), rows.std(axis=0)
        inner = fit((rows - mean) / deviation)
        return lambda x: inner((x - mean) / deviation)

    return both


def flow(make: Callable[[], Flow], *, normalize: bool = False) -> Fit:
    """A flow."""

    def fit(rows: Array) -> Map:
        fitted = make().fit(unit(rows) if normalize else rows)
        return lambda x: fitted.transform(unit(x) if normalize else x)

    return fit


def linear_attempts() -> Iterator[tuple[str, Fit]]:
    """Groups in the order in which they were tried."""
    yield "none", lambda rows: lambda x: x
    for normalize in (False, True):
        how = "unit length, " if normalize else ""
        for dim in (128, WIDEST, 256, None):
            for p in (0.5, 0.75, 1.0):
                name = f"{how}soft whitening, {dim or 'all'} axes, power {p}"
                yield name, spectral(power(p, dim), normalize=normalize)
    for share in (0.2, 0.4, 0.8):
        for exponent in (1.0, 1.5, 2.0):
            name = f"gain with noise {share} of the mean variance, exponent {exponent}"
            yield name, spectral(ridge(share, exponent))
    for noise in (0.1, 0.15, 0.2, 0.25, 0.3, 0.4):
        for exponent in (1.0, 1.5):
            name = f"gain with noise at rank {noise} D, exponent {exponent}"
            yield name, spectral(wiener(noise, exponent))
    for noise in (0.15, 0.2, 0.25, 0.3, 0.4):
        for leading, gain in ((3, 0.3), (3, 0.5), (5, 0.3)):
            for centring in (1.0, 0.95, 0.9):
                name = f"rank {noise} D, leading {leading} × {gain}, centring {centring}"
                yield name, spectral(wiener(noise, 1.0, leading, gain), centring=centring)
    base = spectral(power(0.75, WIDEST))
    for exponent in (0.5, 0.75, 1.25, 1.5):
        yield f"coordinates to the power {exponent}", then(base, bent(exponent))
    yield "coordinates to normal quantiles", then(base, gaussian)
    for count, share in ((5, 0.3), (20, 0.3), (20, 0.6)):
        yield (
            f"less {share} of the centre of {count} clusters",
            then(base, less_clusters(count, share)),
        )
    for strength in (0.25, 0.5, -0.25, -0.5, -1.0):
        how = "weakened" if strength > 0 else "strengthened"
        yield f"where neighbours differ, {how} {abs(strength)}", then(base, by_neighbours(strength))
    for p in (0.5, 0.75):
        yield (
            f"standardization, then soft whitening 256, power {p}",
            standardized(spectral(power(p, 256))),
        )


def flow_attempts() -> Iterator[tuple[str, Fit]]:
    """Flows, the chosen one last."""
    yield "Flow()", flow(Flow)
    yield "Flow(), unit length", flow(Flow, normalize=True)
    for changes in (
        {"epochs": 4.0},
        {"learning_rate": 1e-3},
        {"learning_rate": 3e-3},
        {"width": 128},
        {"depth": 6},
        {"levels": 1},
        {"permutation": "reverse"},
        {"normalize": False},
        {"noise": 0.0},
        {"leading": 0},
        {"centring": 1.0},
        {},
    ):
        said = ", ".join(f"{key}={value}" for key, value in changes.items())
        yield f"Flow.tempered({said})", flow(lambda changes=changes: Flow.tempered(**changes))


def print_tests() -> None:
    """Test averages of settings whose dev figures cannot be told apart."""
    tests = [read_task(task, DATA) for task in STS_TASKS]
    corpora = {task: read_sentences(task, DATA) for task in STS_TASKS}
    encoder = load_encoder(default_encoder(None)[0], pooling="layers:1")
    text = sorted({text for corpus in corpora.values() for text in corpus})
    vectors = dict(
        zip(text, embed(encoder, text, precision="float32").rows().astype(np.float64), strict=True)
    )
    settings: list[tuple[str, Fit]] = [
        (
            f"rank {noise} D, leading {leading} × {gain}, centring {centring}",
            spectral(wiener(noise, 1.0, leading, gain), centring=centring),
        )
        for noise in (0.15, 0.2, 0.25, 0.3)
        for leading, gain in ((3, 0.3), (5, 0.3))
        for centring in (0.95, 0.9)
    ]
    settings.append(("Flow.tempered()", flow(Flow.tempered)))
    print("seven test sets, Spearman x 100\n")
    print("| setting | wmean | all |")
    print("|---|---:|---:|")
    for name, fit in settings:
        scores = {}
        for pairs in tests:
            transform = fit(np.stack([vectors[text] for text in corpora[pairs.task]]))
            sides = [
                transform(np.stack([vectors[text] for text in side]))
                for side in (pairs.first, pairs.second)
            ]
            scores[pairs.task] = figures(pairs, paired_cosine(*sides)[None], resamples=2)[0]
        cells = [100 * (average(scores, how).value or np.nan) for how in ("wmean", "all")]
        print(table_line([name, *(f"{cell:.2f}" for cell in cells)]), flush=True)
    print(f"\n{versions()}")


def main() -> None:
    """Fit, score on dev splits and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--flows", action="store_true", help="only the flows")
    parser.add_argument("--test", action="store_true", help="test averages on the plateau")
    arguments = parser.parse_args()
    if arguments.test:
        print_tests()
        return
    only_flows = arguments.flows
    attempts = [*([] if only_flows else linear_attempts()), *flow_attempts()]
    corpora = {task: read_sentences(task, DATA) for task in ("stsb", "sick-r")}
    encoder = load_encoder(default_encoder(None)[0], pooling="layers:1")
    text = sorted({text for corpus in corpora.values() for text in corpus})
    low = dict(
        zip(text, embed(encoder, text, precision="float32").rows().astype(np.float64), strict=True)
    )
    row_of, stored = stored_vectors("first-last-avg")
    both = {text: stored[row].astype(np.float64) for text, row in row_of.items()}
    judges = [("stsb", low), ("sick-r", low), ("stsb", both)]
    print(
        "dev, Spearman x 100: state 1 on STS-B and SICK-R, their mean; states 1 and 30 on STS-B\n"
    )
    print("| attempt | STS-B | SICK-R | mean | STS-B, 1 and 30 | mean of the two |")
    print("|---|---:|---:|---:|---:|---:|")
    for name, fit in attempts:
        scores = []
        for task, vectors in judges:
            transform = fit(np.stack([vectors[text] for text in corpora[task]]))
            pairs = read_task(task, DATA, "dev")
            sides = [
                transform(np.stack([vectors[text] for text in side]))
                for side in (pairs.first, pairs.second)
            ]
            found = correlate(paired_cosine(*sides), np.array(pairs.gold)).spearman
            scores.append(100 * (found or np.nan))
        mean = (scores[0] + scores[1]) / 2
        cells = [*scores[:2], mean, scores[2], (mean + scores[2]) / 2]
        print(table_line([name, *(f"{cell:.2f}" for cell in cells)]), flush=True)
    print(f"\n{versions()}")


if __name__ == "__main__":
    main()
