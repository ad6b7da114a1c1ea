"""The page in a real browser: it loads alone, and its parts work by mouse and by keyboard."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bertflow.calibrators import Flow, save_calibrator
from bertflow.report import build_report, write_report
from browser import NAMES, Browser, find_browser
from task_files import graded_rows
from test_report import NASTY

pytestmark = [pytest.mark.slow, pytest.mark.nightly]
WIDTHS = {360: 740, 375: 740, 768: 1024, 1280: 900}
ROWS = 260


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = find_browser()
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is on PATH (apt install chromium)")
    with Browser(program) as opened:
        yield opened


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    """A page with all that vectors can have, of sentences that try to break it."""
    home = tmp_path_factory.mktemp("page")
    rows = [row for seed in range(3) for row in graded_rows(24, seed)]
    texts = list(dict.fromkeys([*NASTY, *(text for row in rows for text in row[:2])]))
    texts += [f"a further sentence, number {n}" for n in range(ROWS - len(texts))]
    random = np.random.default_rng(0)
    x = (random.normal(size=(len(texts), 8)) * np.arange(1, 9) + 6).astype(np.float32)
    np.save(home / "x.npy", x)
    lines = (json.dumps({"text": text}) + "\n" for text in texts)
    (home / "texts.jsonl").write_text("".join(lines))
    save_calibrator(Flow(epochs=2).fit(x), home / "flow")
    report = build_report(home / "x.npy", corpus=home / "texts.jsonl", against=home / "flow")
    write_report(report, home / "page.html")
    return home / "page.html"


@pytest.fixture
def page(browser, written) -> Browser:
    browser.problems.clear()
    browser.requests.clear()
    browser.look(1280, 900)
    browser.open(written.as_uri())
    return browser


def middle(browser: Browser, selector: str, number: int = 0) -> tuple[float, float]:
    """Where the middle of an element is, once it is in sight."""
    found = browser.js(
        f"""(() => {{
            const found = document.querySelectorAll({json.dumps(selector)})[{number}];
            found.scrollIntoView({{block: "center", behavior: "instant"}});
            const box = found.getBoundingClientRect();
            return [box.x + box.width / 2, box.y + box.height / 2];
        }})()"""
    )
    return found[0], found[1]


def text(browser: Browser, selector: str) -> str:
    return browser.js(f"document.querySelector({json.dumps(selector)}).textContent")


def marked(browser: Browser) -> list[str]:
    """The point that is marked on each side."""
    return browser.js('[...document.querySelectorAll(".mark.core")].map(one => one.dataset.point)')


def neighbours(browser: Browser) -> list[list[str]]:
    return browser.js(
        '[...document.querySelectorAll(".lists ol")].map(list => '
        '[...list.querySelectorAll("li")].map(item => item.textContent))'
    )


def test_it_loads_from_disk_without_errors_or_requests(page, written):
    assert page.problems == []
    assert page.requests == [written.as_uri()]
    assert page.js("document.title").endswith("bertflow report")
    assert page.js('document.documentElement.classList.contains("js")')


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_it_fits_every_screen(page, written, width, dark, tmp_path):
    page.look(width, WIDTHS[width], dark=dark, phone=width < 500)
    page.open(written.as_uri())
    assert page.js("document.documentElement.scrollWidth") <= width
    ground = page.js("getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(20, 23, 26)" if dark else "rgb(255, 255, 255)")
    # What is to be touched is large enough for a finger, and nothing is too small to be read.
    heights = page.js(
        '[...document.querySelectorAll("button, input")].map(one => one.offsetHeight)'
    )
    assert min(heights) >= 40
    sizes = page.js(
        """[...document.querySelectorAll(".chart text")].map(one => {
            const scale = one.ownerSVGElement.getBoundingClientRect().width
                / one.ownerSVGElement.viewBox.baseVal.width;
            return parseFloat(getComputedStyle(one).fontSize) * scale;
        })"""
    )
    assert min(sizes) >= 9.5
    # Tables of a few columns fit, and what stands above and below wide ones does not scroll.
    wide = page.js(
        """[...document.querySelectorAll(".scroll")].filter(one => one.checkVisibility()
            && one.scrollWidth > one.clientWidth).map(one => one.querySelector("table").className)
        """
    )
    assert wide == []
    ends = page.js(
        """[...document.querySelectorAll("caption span, th small")].filter(
            one => one.checkVisibility()).map(one => one.getBoundingClientRect().right)"""
    )
    assert max(ends) <= width
    page.shoot(tmp_path / "page.png")
    assert (tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")
    assert page.problems == []


def test_no_text_of_a_picture_leaves_it_or_lies_on_another(page):
    crossing = page.js(
        """[...document.querySelectorAll(".chart")].flatMap(chart => {
            const frame = chart.getBoundingClientRect();
            const boxes = [...chart.querySelectorAll("text")].map(one =>
                [one.textContent, one.getBoundingClientRect()]);
            const found = boxes.filter(([, b]) => b.left < frame.left - 2
                || b.right > frame.right + 2 || b.bottom > frame.bottom + 2
                || b.top < frame.top - 2).map(([t]) => "leaves: " + t);
            boxes.forEach(([t, a], n) => boxes.slice(n + 1).forEach(([u, b]) => {
                if (a.left < b.right - 1 && b.left < a.right - 1
                    && a.top < b.bottom - 1 && b.top < a.bottom - 1) found.push(t + " on " + u);
            }));
            return found;
        })"""
    )
    assert crossing == []


def test_a_picture_that_stands_alone_is_not_blown_up(browser, written):
    report = build_report(written.with_name("x.npy"))
    alone = written.with_name("alone.html")
    write_report(report, alone)
    browser.look(1280, 900)
    browser.open(alone.as_uri())
    assert browser.js('document.querySelector(".lone").clientWidth') <= 600
    assert browser.js('document.querySelectorAll(".panels .chart").length') == 1
    # A label that stands upright is as high as it is long.
    sizes = browser.js(
        """[...document.querySelectorAll(".lone .chart text")].map(text => {
            const box = text.getBoundingClientRect();
            return Math.min(box.width, box.height);
        })"""
    )
    assert max(sizes) < 22


def test_the_common_direction_can_be_seen(page):
    crosses = page.js(
        """[...document.querySelectorAll(".stage svg")].map(svg => {
            const middle = box => [box.x + box.width / 2, box.y + box.height / 2];
            const frame = svg.getBoundingClientRect();
            const cross = middle(svg.querySelector(".origin").getBoundingClientRect());
            const dots = [...svg.querySelectorAll(".dots use")].map(
                one => middle(one.getBoundingClientRect())[0]);
            return [cross[0] - frame.x, frame.right - cross[0],
                dots.reduce((a, b) => a + b) / dots.length - cross[0]];
        })"""
    )
    (left, right, before), (_, _, after) = crosses
    assert left > 0
    assert right > 0
    # The cloud lies off the origin before, and less so after; both origins have one place.
    assert before > 5 * abs(after)
    assert crosses[0][:2] == pytest.approx(crosses[1][:2], abs=1)


def test_the_mouse_marks_the_same_row_on_both_sides_and_a_click_asks_for_it(page):
    before = marked(page)
    assert len(before) == 2
    x, y = middle(page, ".stage .dots use", 40)
    page.move(x, y)
    first, second = marked(page)
    assert first == second
    told = text(page, "#readout")
    assert told
    assert text(page, "#asked") != told or first == before[0]
    page.click(x, y)
    assert text(page, "#asked") == told
    # Away from the cloud the row that was asked for is marked again.
    page.move(5, 5)
    assert marked(page) == [first, second]


def test_the_cloud_can_be_walked_by_keyboard(page):
    page.js('document.querySelectorAll(".stage")[1].focus()')
    start = marked(page)[0]
    seen = {start}
    for key in ("ArrowRight", "ArrowUp", "ArrowLeft", "ArrowDown", "End", "Home"):
        page.press(key)
        one, other = marked(page)
        assert one == other
        seen.add(one)
    assert len(seen) > 3
    assert marked(page)[0] == "0"
    page.press("End")
    told = text(page, "#readout")
    page.press("Enter")
    assert text(page, "#asked") == told
    assert page.js('document.querySelectorAll(".stage")[1].getAttribute("aria-label")')


def test_an_arrow_goes_in_its_direction(page):
    page.js('document.querySelector(".stage").focus()')

    def place() -> list[float]:
        return page.js(
            '(one => [one, one].map((m, n) => Number(m.getAttribute(n ? "cy" : "cx"))))'
            '(document.querySelector(".stage .mark.core"))'
        )

    page.press("Home")
    for key, axis, sign in (("ArrowRight", 0, 1), ("ArrowLeft", 0, -1), ("ArrowDown", 1, 1)):
        old = place()
        page.press(key)
        new = place()
        assert sign * (new[axis] - old[axis]) > 0 or new == old


def test_queries_are_searched_and_chosen_by_keyboard_alone(page):
    page.js('document.getElementById("search").focus()')
    page.type("number 7")
    offered = page.js('[...document.getElementById("choice").options].map(one => one.text)')
    assert offered
    assert all("number 7" in one for one in offered)
    assert text(page, "#matches").startswith(f"{len(offered)} of {ROWS} match")
    page.press("Enter")
    assert text(page, "#asked") == offered[0]
    old = neighbours(page)
    page.js('document.getElementById("choice").focus()')
    page.press("ArrowDown")
    assert text(page, "#asked") == offered[1]
    assert neighbours(page) != old


def test_neighbours_are_those_of_the_vectors(page, written):
    x = np.load(written.with_name("x.npy")).astype(np.float64)
    lines = written.with_name("texts.jsonl").read_text().splitlines()
    texts = [" ".join(json.loads(line)["text"].split()) for line in lines]
    page.js('document.getElementById("another").click()')
    query = texts.index(text(page, "#asked"))
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    cosine = unit @ unit[query]
    cosine[query] = -np.inf
    best = np.argsort(-cosine)[:5]
    shown = neighbours(page)[0]
    for item, row in zip(shown, best, strict=True):
        assert item.startswith(f"{cosine[row]:.3f}{texts[row]}")


def test_sentences_that_look_like_code_are_text(page):
    page.js('document.getElementById("search").focus()')
    page.type("</script><script>")
    page.press("Enter")
    assert text(page, "#asked") == NASTY[0]
    assert page.js("document.title") != "broken"
    assert page.js('document.querySelectorAll("img, main script").length') == 0
    assert page.problems == []


def test_the_tab_key_reaches_every_part_in_order(page):
    page.js("document.activeElement.blur()")
    reached = []
    for _ in range(60):
        page.press("Tab")
        reached.append(
            page.js(
                "(one => one.id || one.className || one.getAttribute('href') || one.tagName)"
                "(document.activeElement)"
            )
        )
        outline = page.js("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none" or reached[-1] in ("BODY", "skip")
        if reached[-1] == "BODY":
            break
    for part in ("skip", "#spectra", "stage", "search", "another", "choice", "SUMMARY"):
        assert part in reached
    assert reached.index("stage") < reached.index("search") < reached.index("choice")


def test_without_script_it_still_says_everything(browser, written):
    browser.look(1280, 900)
    browser.open(written.as_uri(), scripts=False)
    assert all(len(items) == 5 for items in neighbours(browser))
    assert text(browser, "#asked")
    hidden = browser.js('getComputedStyle(document.querySelector(".picker")).display')
    assert hidden == "none"


def test_it_prints(page, tmp_path):
    page.pdf(tmp_path / "page.pdf")
    content = (tmp_path / "page.pdf").read_bytes()
    assert content.startswith(b"%PDF")
    pages = content.count(b"/Type /Page\n") or content.count(b"/Type /Page ")
    assert 2 <= pages <= 12
    page.call("Emulation.setEmulatedMedia", media="print")
    try:
        for selector in ("nav", ".picker", "details"):
            shown = page.js(f'getComputedStyle(document.querySelector("{selector}")).display')
            assert shown == "none"
        kept = page.js(
            """[".legend", "h2", "#cosines > p", "figure", "section", "#provenance", "tr"]
                .filter(one => document.querySelector(one)).map(one => {
                const style = getComputedStyle(document.querySelector(one));
                return [one, style.breakAfter, style.breakInside];
            })"""
        )
        told = {one: rest for one, *rest in kept}
        for one in (".legend", "h2", "#cosines > p"):
            assert told[one][0] == "avoid"
        for one in (".legend", "#cosines > p", "figure", "section", "#provenance", "tr"):
            assert told[one][1] == "avoid"
        ink = page.js("getComputedStyle(document.body).color")
        assert ink == "rgb(27, 31, 36)"
    finally:
        page.call("Emulation.setEmulatedMedia", media="")
