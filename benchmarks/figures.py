"""Draw the figures of the documentation, always the same from the same seeds.

    python -m benchmarks.figures [NAME ...]

They lie in docs/figures as SVG, with text as text. What is drawn in INK takes the colour of the
page they stand on. `demo`, of the README, passes some 3,000 sentences through SmolLM2; `report`
takes a picture of a page by Chromium, for which some 3,000 and those of STS-B (BERTFLOW_DATA) pass
through it; the others are synthetic.
"""

from __future__ import annotations

import argparse
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from bertflow.analysis import effective_rank, isoscore, mean_cosine, partition_isotropy
from bertflow.arrays import Array
from bertflow.calibrators import AllButTheTop, Calibrator, Flow, Standardization, Whitening
from bertflow.report import save_figure

PLACE = Path(__file__).resolve().parent.parent / "docs" / "figures"
# Replaced by the colour of the text around; on its own a figure is dark on light or light on dark.
INK = "#101112"
BLUE, ORANGE, GREEN, GREY = "#3b82c4", "#d9792b", "#3a9d6e", "#8a8f98"
ALONE = "<style>svg{color:#222}@media(prefers-color-scheme:dark){svg{color:#ddd}}</style>"


def panels(
    count: int, width: float, height: float, *, stacked: bool = False
) -> tuple[Figure, list[Axes]]:
    """A figure of panels in a row, or one below the other, without a background."""
    figure = Figure(figsize=(width, height), layout="constrained")
    figure.patch.set_visible(False)
    shape = (count, 1) if stacked else (1, count)
    axes = list(figure.subplots(*shape, sharex=stacked, squeeze=False).ravel())
    for one in axes:
        one.patch.set_visible(False)
        one.tick_params(colors=INK, labelsize=8)
        one.title.set(color=INK, fontsize=9)
        one.xaxis.label.set(color=INK, fontsize=9)
        one.yaxis.label.set(color=INK, fontsize=9)
        for name, spine in one.spines.items():
            spine.set(color=INK, linewidth=0.7, visible=name in ("left", "bottom"))
    return figure, axes


def legend(axes: Axes, **where: object) -> None:
    """A legend without a frame."""
    axes.legend(frameon=False, fontsize=8, labelcolor=INK, **where)


def bare(axes: Axes, title: str, adjustable: Literal["box", "datalim"] = "box") -> None:
    """A plane with nothing but a title: equal units, no ticks."""
    axes.set_title(title, color=INK, fontsize=9)
    axes.set_aspect("equal", adjustable=adjustable)
    axes.set(xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set_visible(False)


def demo() -> Figure:
    """What the demonstration measures: cosines of the graded pairs, before and after."""
    from bertflow import SentenceCache, calibrate, load_encoder
    from bertflow.analysis.gains import measure_gains
    from bertflow.data import sample_pairs, sample_texts
    from bertflow.demo import default_encoder, documentation_sentences
    from bertflow.encoders import embed
    from bertflow.evaluation import paired_cosine

    path, pooling = default_encoder(None)
    encoder, cache = load_encoder(path, pooling=pooling), SentenceCache()
    pairs, texts = sample_pairs(), sample_texts()
    how = {"cache": cache, "precision": "float32"}
    model = calibrate(encoder, [*texts, *documentation_sentences()], **how)
    sides = [embed(one, texts, **how).rows() for one in (encoder, model)]
    gains = measure_gains(pairs, texts, *sides)
    halves = [[texts.index(text) for text in half] for half in (pairs.first, pairs.second)]
    gold = np.array(pairs.gold)
    shift = np.random.default_rng(0).uniform(-0.16, 0.16, size=len(gold))
    figure, axes = panels(2, 7.4, 3.5)
    told = [
        ("Before: everything looks alike", ORANGE, gains.spearman.before, gains.first_hit.before),
        ("After: cosine follows meaning", BLUE, gains.spearman.after, gains.first_hit.after),
    ]
    for one, rows, mean, (title, colour, spearman, hits) in zip(
        axes, sides, gains.mean_cosine, told, strict=True
    ):
        cosine = paired_cosine(rows[halves[0]], rows[halves[1]])
        one.axhline(mean, color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
        one.scatter(gold + shift, cosine, s=13, color=colour, linewidths=0, alpha=0.75)
        found = f"{100 * hits.value:.0f} % of paraphrases found first"
        one.set_title(title, color=INK, fontsize=10.5, fontweight="bold", loc="left", pad=20)
        score = f"Spearman {100 * spearman.value:.0f}, {found}"
        one.text(0, 1.03, score, color=INK, fontsize=9, transform=one.transAxes)
        one.set(xlim=(-0.4, 5.4), ylim=(-0.2, 1.05), yticks=[0, 0.5, 1], xticks=range(6))
        one.set_xticklabels(["0\nunrelated", *"1234", "5\nsame meaning"])
        one.set(xlabel="how alike two sentences are (grade)")
        one.text(
            5.4, mean - 0.03, "two random sentences", color=INK, fontsize=8, ha="right", va="top"
        )
    axes[0].set(ylabel="cosine of their vectors")
    return figure


def crescents(count: int) -> Array:
    """Two crescents away from the origin, shape (count, 2)."""
    random = np.random.default_rng(0)
    angle = np.pi * random.random(count)
    side = np.where(np.arange(count) % 2 == 0, 1, -1)
    rows = np.stack([np.cos(angle) + 0.5 * (1 - side), side * (np.sin(angle) - 0.25)], axis=1)
    return 1.6 * rows + 0.17 * random.normal(size=rows.shape) + np.array([2.5, 1.5])


def flow() -> Figure:
    """Two crescents, what the flow makes of them, and its circles brought back."""
    rows = crescents(6000)
    fitted = Flow(levels=1, depth=16, epochs=40, learning_rate=3e-3, random_state=0).fit(rows)
    shown = rows[:240]
    upper = np.arange(len(shown)) % 2 == 0
    latent = fitted.transform(shown)
    figure, axes = panels(3, 7.2, 2.1)
    for one, points, title in [
        (axes[0], shown, "vectors x"),
        (axes[1], latent, "z = f(x)"),
        (axes[2], shown, "density: circles of z, brought back"),
    ]:
        bare(one, title, "datalim")
        for part, colour in [(upper, BLUE), (~upper, ORANGE)]:
            one.scatter(*points[part].T, s=3, color=colour, linewidths=0)
    turn = np.linspace(0, 2 * np.pi, 161)
    for radius in (0.5, 1.0, 1.5, 2.0):
        circle = radius * np.stack([np.cos(turn), np.sin(turn)], axis=1)
        axes[1].plot(*circle.T, color=INK, linewidth=0.6)
        axes[2].plot(*fitted.inverse_transform(circle).T, color=INK, linewidth=0.6)
    axes[0].plot(0, 0, "+", color=INK, markersize=8)
    axes[0].annotate("origin", (0, 0), (6, -3), textcoords="offset points", color=INK, fontsize=8)
    return figure


def box(axes: Axes, left: float, bottom: float, width: float, text: str, colour: str) -> None:
    """A labelled box of height 0.6."""
    patch = FancyBboxPatch(
        (left, bottom), width, 0.6, boxstyle="round,pad=0,rounding_size=0.08",
        facecolor=colour, edgecolor="none", alpha=0.3,
    )  # fmt: skip
    axes.add_patch(patch)
    style = {"ha": "center", "va": "center", "color": INK, "fontsize": 8}
    axes.text(left + width / 2, bottom + 0.3, text, **style)


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    """An arrow."""
    style = {"arrowstyle": "-|>", "color": INK, "linewidth": 0.8, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", end, start, arrowprops=style)


def multiscale() -> Figure:
    """A step, three of them a level, and what is split off after a level."""
    figure, (axes,) = panels(1, 7.2, 2.1)
    bare(axes, "")
    axes.set_aspect("auto")
    axes.set(xlim=(0, 12.4), ylim=(-0.1, 3.3))
    for y, level, width in [(2.0, "level 1", "D"), (0.3, "level 2", "D/2")]:
        left = 0.9 if y > 1 else 5.4
        style = {"ha": "right", "va": "center", "color": INK, "fontsize": 8}
        axes.text(left - 0.15, y + 0.75, f"{level}, {width} dimensions", **{**style, "ha": "left"})
        for name, colour, at, size in [
            ("ActNorm", GREY, 0.0, 1.1), ("permutation", BLUE, 1.2, 1.3),
            ("coupling", GREEN, 2.6, 1.1),
        ]:  # fmt: skip
            box(axes, left + at, y, size, name, colour)
        axes.text(left + 3.82, y + 0.3, "× 3", **{**style, "ha": "left"})
    axes.text(0.25, 2.3, "x", color=INK, fontsize=10, va="center")
    arrow(axes, (0.45, 2.3), (0.85, 2.3))
    arrow(axes, (5.3, 2.3), (10.6, 2.3))
    axes.text(8.0, 2.45, "second half: done", ha="center", color=INK, fontsize=8)
    axes.plot([5.0, 5.0], [1.9, 0.6], color=INK, linewidth=0.8)
    arrow(axes, (5.0, 0.6), (5.35, 0.6))
    axes.text(4.85, 1.15, "first half", ha="right", color=INK, fontsize=8)
    arrow(axes, (9.85, 0.6), (10.6, 0.6))
    box(axes, 10.7, 2.0, 0.7, "z₁", ORANGE)
    box(axes, 10.7, 0.3, 0.7, "z₂", ORANGE)
    axes.text(11.6, 1.45, "z", color=INK, fontsize=10, va="center")
    for y in (2.3, 0.6):
        axes.plot([11.4, 11.55], [y, 1.45 + 0.12 * np.sign(y - 1.45)], color=INK, linewidth=0.8)
    return figure


def linear() -> Figure:
    """What the affine calibrators do to a slanted cloud away from the origin."""
    random = np.random.default_rng(1)
    rows = random.normal(size=(160, 2)) @ np.array([[2.2, 0.9], [0.0, 0.45]]) + [6.0, 4.0]
    side = (rows - rows.mean(axis=0)) @ [0.35, 1.0] > 0
    made: list[tuple[str, Calibrator | None]] = [
        ("vectors", None),
        ("Standardization", Standardization()),
        ("AllButTheTop(1)", AllButTheTop(n_components=1)),
        ("Whitening", Whitening()),
    ]
    figure, axes = panels(4, 7.2, 1.85)
    for one, (name, calibrator) in zip(axes, made, strict=True):
        points = rows if calibrator is None else calibrator.fit_transform(rows)
        bare(one, name)
        for part, colour in [(side, BLUE), (~side, ORANGE)]:
            one.scatter(*points[part].T, s=4, color=colour, linewidths=0)
        reach = 10.5 if calibrator is None else 3.2
        corner = -1.0 if calibrator is None else -reach
        one.set(xlim=(corner, reach), ylim=(corner, reach))
        one.plot(0, 0, "+", color=INK, markersize=8)
    return figure


def gain() -> Figure:
    """The Wiener gain of each axis of a spectrum that falls as many do."""
    width = 576
    variance = np.arange(1, width + 1) ** -1.2
    figure, axes = panels(2, 7.2, 2.3)
    axes[0].loglog(np.arange(1, width + 1), variance / variance[0], color=INK, linewidth=1)
    axes[0].set(xlabel="axis", ylabel="variance λ, of the first")
    for noise, colour in [(0.25, GREY), (0.5, GREEN), (0.75, BLUE)]:
        level = variance[round((1 - noise) * width)]
        weights = variance / (variance + level)
        axes[1].semilogx(
            np.arange(1, width + 1), weights, color=colour, linewidth=1.4, label=f"noise = {noise}"
        )
        if noise == 0.75:
            leading = np.where(np.arange(width) < 3, 0.3, 1.0)
            axes[1].semilogx(
                np.arange(1, width + 1), weights * leading, color=ORANGE, linewidth=1.2,
                linestyle="--", label="Flow.tempered()",
            )  # fmt: skip
    axes[1].set(xlabel="axis", ylabel="gain g", ylim=(0, 1.05))
    legend(axes[0], loc="lower left", handles=axes[1].lines)
    for one in axes:
        one.tick_params(which="minor", colors=INK)
    return figure


def measures() -> Figure:
    """What the measures say of a cloud that is moved, and of one that is stretched."""
    cloud = np.random.default_rng(0).normal(size=(3000, 32))
    figure, axes = panels(2, 7.2, 2.6)
    away = np.linspace(0, 3, 13)
    stretch = np.geomspace(1, 20, 13)
    moved = [cloud + step * np.ones(32) for step in away]
    longer = [cloud * np.where(np.arange(32) == 0, step, 1.0) for step in stretch]
    for one, steps, clouds, label in [
        (axes[0], away, moved, "distance of the centre, in deviations a dimension"),
        (axes[1], stretch, longer, "deviation of one dimension of 32"),
    ]:
        lengths = [np.linalg.norm(x, axis=1).mean() for x in clouds]
        lines: list[tuple[str, str, list[float]]] = [
            ("mean cosine", ORANGE, [mean_cosine(x) for x in clouds]),
            (
                "partition function",
                BLUE,
                [partition_isotropy(x / size) for x, size in zip(clouds, lengths, strict=True)],
            ),
            ("IsoScore", GREEN, [isoscore(x) for x in clouds]),
            ("effective rank / D", GREY, [effective_rank(x) / 32 for x in clouds]),
        ]
        for name, colour, values in lines:
            one.plot(steps, values, color=colour, linewidth=1.4, label=name)
        one.set(xlabel=label, ylim=(-0.03, 1.05))
    legend(axes[0], loc=(0.48, 0.36))
    return figure


def report(path: Path) -> None:
    """The upper part of a report's page, of SmolLM2 and the tempered flow."""
    from tests.browser import Browser, find_browser

    from bertflow import SentenceCache, calibrate, load_encoder
    from bertflow.data import sample_sentences
    from bertflow.demo import default_encoder, documentation_sentences
    from bertflow.models import save_model
    from bertflow.report import build_report, write_report

    program = find_browser()
    if program is None:
        raise SystemExit("the picture of a report takes Chromium, which is not on PATH")
    name, pooling = default_encoder("layers:1")
    cache = SentenceCache()
    with tempfile.TemporaryDirectory() as place, Browser(program) as browser:
        home, page = Path(place), Path(place) / "page.html"
        sentences = [*sample_sentences(), *documentation_sentences()]
        (home / "sentences.txt").write_text("\n".join(sentences), encoding="utf-8")
        encoder = load_encoder(name, pooling=pooling)
        save_model(calibrate(encoder, sentences, Flow.tempered(), cache=cache), home / "my-model")
        data = os.environ.get("BERTFLOW_DATA")
        built = build_report(home / "my-model", corpus=home / "sentences.txt", data=data)
        write_report(built, page)
        browser.look(760, 900)
        browser.open(page.as_uri())
        shown = ["verdict", "cosines", "cloud"]
        browser.js(
            f"""(() => {{
                for (const one of document.querySelectorAll("section, footer, details"))
                    one.hidden = !{shown}.includes(one.id);
            }})()"""
        )
        browser.settle()
        browser.shoot(path)


DRAWN: dict[str, Callable[[], Figure]] = {
    one.__name__: one for one in (demo, flow, multiscale, linear, gain, measures)
}


def themed(path: Path) -> None:
    """Let ink take the colour of the page, and drop names that nothing refers to."""
    text = path.read_text(encoding="utf-8").replace(INK, "currentColor")
    used = set(re.findall(r"(?:url\(#|href=\"#)([^)\"]+)", text))
    text = re.sub(r' id="([^"]+)"', lambda found: found[0] if found[1] in used else "", text)
    text = re.sub(r"<metadata>.*?</metadata>\s*|<!--.*?-->\s*", "", text, flags=re.DOTALL)
    text = re.sub(r"-?\d+\.\d{2,}", lambda found: f"{float(found[0]):.2f}", text)
    text = re.sub(r"(<svg\b[^>]*>)", rf"\1\n {ALONE}", text, count=1)
    path.write_text(text, encoding="utf-8")


def main() -> None:
    """Draw those that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    for name in parser.parse_args().names or [*DRAWN, "report"]:
        if name == "report":
            path = PLACE / "report.png"
            report(path)
        else:
            path = PLACE / f"{name}.svg"
            save_figure(DRAWN[name](), path)
            themed(path)
        print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
