"""The replay in a real browser, as a person uses it: play, slider, keyboard, hover, dark, phone, hostile text."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace

import pytest
from support.browser import until
from support.tracing import EOT, MASK, SCRIPTS, made

from unmask.errors import UserError
from unmask.views import replay
from unmask.views.trace import Run

RUNS = [
    made("top-probability", prompt="How many apples?", gold="12", correct=False),
    made("sacm", steps=20, prompt="How many apples?", gold="12", correct=True),
]


def test_page_is_one_safe_file():
    """Without a browser: nothing of a model's text can end the data's script element, and no address is in the page."""
    text = replay.page([made(words=SCRIPTS, prompt="</script><b>hi", gold="<i>")], title="<title>&")
    data = re.search(r'id="trace">(.*?)</script>', text, re.S)
    assert data and not re.search("[<>&\u2028\u2029]", data[1])
    assert json.loads(data[1])["runs"][0]["tokens"]["1"] == SCRIPTS["1"]
    assert "<title>&lt;title&gt;&amp;</title>" in text and text.count("</script>") == 2
    assert not re.search(r"https?://|@import|url\(", text)


def test_no_runs_and_nowhere_to_write(tmp_path):
    with pytest.raises(UserError, match="no run"):
        replay.page([])
    with pytest.raises(UserError, match="cannot write"):
        replay.write(tmp_path / "no" / "where.html", RUNS)


@pytest.fixture
def show(browser, tmp_path):
    """Open a replay of runs; at the end, nothing was logged, nothing failed and nothing was fetched but the file."""
    pages, troubles = [], []

    def opened(runs, width=1280, height=900, scheme="light", **options):
        replay.write(tmp_path / "replay.html", runs)
        page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme, **options)
        page.set_default_timeout(60_000)
        page.on("console", lambda message: troubles.append(message.text))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("request", lambda request: request.url.startswith("file://") or troubles.append(request.url))
        page.goto((tmp_path / "replay.html").as_uri())
        pages.append(page)
        return page

    yield opened
    for page in pages:
        page.close()
    assert troubles == []


def decoded(page, run: int = 0) -> int:
    return page.locator(f".um-run >> nth={run} >> .um-box:not(.um-masked)").count()


def test_load_slider_and_keyboard(show):
    page = show(RUNS)
    assert page.locator(".um-run h2").all_inner_texts() == ["top-probability", "sacm"]
    assert page.inner_text(".um-prompt") == "How many apples?" and "12" in page.inner_text(".um-gold")
    assert page.locator(".um-badge").all_inner_texts() == ["✗ wrong", "✓ right"]
    assert page.inner_text(".um-step") == "0 / 31" and decoded(page) == 2  # the anchor alone
    page.keyboard.press("ArrowRight")
    assert page.inner_text(".um-step") == "1 / 31" and decoded(page) == 4
    assert page.locator(".um-run >> nth=0 >> .um-new").count() == 2
    page.fill("input[type=range]", "10")
    assert decoded(page) == 22
    page.keyboard.press("End")
    assert page.inner_text(".um-step") == "31 / 31" and decoded(page) == decoded(page, 1) == 64
    assert page.locator(".um-run >> nth=0 >> .um-eot").all_inner_texts() == ["∅"] * 4
    assert page.locator(".um-run >> nth=0 >> .um-anchor").all_inner_texts() == ["The answer", "is"]
    page.locator("body").press("Home")
    assert decoded(page) == 2


def test_play_pause_and_end(show):
    page = show(RUNS)
    page.keyboard.press("Space")
    until(page, ".um-play", "Pause")
    until(page, ".um-step", r"^([2-9]|\d\d) /")
    page.keyboard.press("Space")
    stood = page.inner_text(".um-step")
    time.sleep(0.6)
    assert page.inner_text(".um-step") == stood and "Play" in page.inner_text(".um-play")
    page.select_option("[aria-label=Speed]", "4")
    page.click(".um-play")
    until(page, ".um-step", "^31 /")
    until(page, ".um-play", "Play")
    assert decoded(page) == 64


def test_darker_is_later(show):
    page = show(RUNS)
    page.keyboard.press("End")
    shades = page.evaluate(
        "[...document.querySelectorAll('.um-run:first-child .um-box')].map(b => getComputedStyle(b).backgroundColor)"
    )
    grey = {slot: sum(map(int, re.findall(r"\d+", shade)[:3])) for slot, shade in enumerate(shades)}
    first, last = RUNS[0].steps[0]["chosen"][0], RUNS[0].steps[-1]["chosen"][0]
    order = [grey[step["chosen"][0]] for step in RUNS[0].steps]
    assert grey[first] > grey[last] + 300 and order == sorted(order, reverse=True)


def test_hover_and_focus_tell_the_same(show):
    page = show(RUNS)
    page.fill("input[type=range]", "5")
    slot = RUNS[0].steps[2]["chosen"][0]
    page.hover(f".um-run >> nth=0 >> .um-box >> nth={slot}")
    tip = page.inner_text(".um-tip")
    assert "decoded at step 3 of 31" in tip and f"position {slot}" in tip and "→" in tip and "anchor weight" in tip
    assert page.locator(".um-tip tr").count() == 3 and "0.700" in tip
    masked = RUNS[0].steps[9]["chosen"][0]
    page.hover(f".um-run >> nth=0 >> .um-box >> nth={masked}")
    assert "still masked" in page.inner_text(".um-tip") and "predicted:" in page.inner_text(".um-tip")
    page.mouse.move(0, 0)
    assert page.locator(".um-tip").is_hidden()
    page.focus(".um-run >> nth=0 >> .um-grid")
    for _ in range(slot):
        page.keyboard.press("ArrowRight")
    assert page.inner_text(".um-tip") == tip
    active = page.locator(".um-grid >> nth=0").get_attribute("aria-activedescendant")
    assert "decoded at step 3" in str(page.locator(f"#{active}").get_attribute("aria-label"))
    page.keyboard.press("ArrowDown")
    assert page.inner_text(".um-tip") != tip
    page.keyboard.press("Escape")
    assert page.locator(".um-tip").is_hidden()


def test_hover_tells_what_each_modifier_did(show):
    """Only where there are several: with one, the two numbers say it all. A score of 0 has no factor after it."""
    steps = [{"forward": 0, "ms": 1, "chosen": [0], "guess": [0, 1, 1, 2], "base": [8000, 5000], "score": [3000, 10]},
             {"forward": 1, "ms": 1, "chosen": [1], "guess": [], "base": [5000], "score": [10]}]  # fmt: skip
    one = Run(length=2, mask_id=MASK, eot_ids=[EOT], tokens={"1": "yes", "2": "no"}, steps=steps)
    between = [{**steps[0], "between": [[4000, 0]]}, {**steps[1], "between": [[0]]}]
    two = replace(one, steps=between, modifiers=["AnchorModulation", "PositionDecay"])
    page = show([two, one])
    page.keyboard.press("ArrowRight")
    said = []
    for run in (0, 1):
        for slot in (0, 1):
            page.hover(f".um-run >> nth={run} >> .um-box >> nth={slot}")
            said += re.findall("confidence.*", page.inner_text(".um-tip"))
    assert said == [
        "confidence 0.800 → 0.300 (anchor × 0.50, position decay × 0.75)",
        "confidence 0.500 → 0.001 (anchor × 0.00, position decay → 0.001)",
        "confidence 0.800 → 0.300",
        "confidence 0.500 → 0.001",
    ]


def test_chart_shows_the_modulation(show):
    """At a step: the base in grey behind, the score in blue, the chosen in orange, the anchor; hover names a slot."""
    page = show(RUNS)
    page.fill("input[type=range]", "3")
    inks = page.evaluate(
        """() => {
          const c = document.querySelector('canvas'), n = {};
          const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
          for (let i = 0; i < d.length; i += 4) { const k = d.slice(i, i + 4).join(); n[k] = (n[k] ?? 0) + 1 }
          return n }"""
    )
    for ink in ("194,201,209,255", "43,108,176,255", "213,94,0,255", "185,122,0,255"):  # base, score, chosen, anchor
        assert inks.get(ink, 0) > 20, (ink, inks)
    box = page.locator("canvas >> nth=0").bounding_box()
    page.mouse.move(box["x"] + 30 + (box["width"] - 34) * 10.5 / 64, box["y"] + 60)
    assert "position 10" in page.inner_text(".um-tip")
    assert page.locator(".um-pointed").get_attribute("data-slot") == "10"


def test_guesses(show):
    page = show(RUNS)
    assert page.locator(".um-guess").count() == 0
    page.keyboard.press("g")
    assert page.locator(".um-run >> nth=0 >> .um-guess").count() == 62
    page.keyboard.press("End")
    assert page.locator(".um-guess").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_themes_are_readable(show, scheme):
    """Every kind of text has a contrast of at least 4.5 on what is behind it."""
    page = show(RUNS, scheme=scheme)
    page.fill("input[type=range]", "20")
    worst = page.evaluate(
        """() => {
          const rgb = (s) => s.match(/[\\d.]+/g).map(Number);
          const part = (v) => (v /= 255) <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
          const light = ([r, g, b]) => .2126 * part(r) + .7152 * part(g) + .0722 * part(b);
          const behind = (e) => {
            const c = rgb(getComputedStyle(e).backgroundColor);
            return c.length < 4 || c[3] > .99 ? c : behind(e.parentElement) };
          const told = (e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()) && e.offsetWidth;
          return [...document.querySelectorAll('.um :not(option)')].filter(told).map((e) => {
            const [a, b] = [light(rgb(getComputedStyle(e).color)), light(behind(e))].sort((x, y) => y - x);
            return [(a + .05) / (b + .05), `${e.className} ${e.textContent.slice(0, 20)}`]
          }).sort((x, y) => x[0] - y[0])[0] }"""
    )
    assert worst[0] >= 4.5, worst
    body = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert body == ("rgb(13, 17, 23)" if scheme == "dark" else "rgb(255, 255, 255)")


def test_phone(show):
    page = show(RUNS, width=360, height=740, has_touch=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.tap(".um-play")
    page.tap(".um-play")
    for control in page.locator(".um-controls button, .um-controls select").all():
        assert control.bounding_box()["height"] >= 32
    page.fill("input[type=range]", "31")
    page.tap(".um-run >> nth=0 >> .um-box >> nth=3")
    tip = page.locator(".um-tip").bounding_box()
    assert tip["x"] >= 0 and tip["x"] + tip["width"] <= 360


@pytest.mark.parametrize("where", ["tokens", "everything"])
def test_hostile_text_is_shown_and_never_run(show, where):
    bad = made(words=SCRIPTS)
    if where == "everything":
        worst = SCRIPTS["1"] + SCRIPTS["2"]
        bad = replace(bad, text=worst, prompt=worst, gold=worst, method=worst, model=worst, recipe=worst, correct=False)
    page = show([bad])
    page.keyboard.press("g")
    page.keyboard.press("End")
    for slot in range(0, 64, 3):
        page.hover(f".um-box >> nth={slot}")
    shown = page.inner_text(".um-text")
    assert "<script>window.pwned=1</script>" in shown and "<img src=x" in shown
    assert page.evaluate("window.pwned") is None
    assert page.locator(".um img, .um script, .um svg, .um b").count() == 0


def test_quick_at_1024(show):
    """Three methods of 1,024 tokens: a step is drawn within two frames (4 ms, measured on one core of a busy machine).
    The best of many counts, so that what else runs on the machine does not decide."""
    page = show([made(name, 1024, 256) for name in ("top-probability", "suffix-anchor", "sacm")])
    step = page.evaluate(
        """() => {
          const slider = document.querySelector('input[type=range]'), times = [];
          for (let t = 1; t <= 256; t += 3) {
            const begun = performance.now();
            slider.value = t;
            slider.dispatchEvent(new Event('input'));
            times.push(performance.now() - begun) }
          return Math.min(...times) }"""
    )
    assert step < 33, f"{step:.1f} ms a step"
    page.keyboard.press("End")
    assert decoded(page, 2) == 1024


def test_several_questions_and_remasking(show):
    """A slot that ReMDM reopens is empty again at that step; the questions of a batch are chosen from a list."""
    again = Run(
        length=2, mask_id=MASK, eot_ids=[EOT], tokens={"1": "yes", "2": "no"}, text="no yes", prompt="second <b>?",
        steps=[
            {"forward": 0, "ms": 1, "chosen": [0, 1], "guess": [0, 1, 1, 1], "base": [9000, 8000]},
            {"forward": 1, "ms": 1, "reopened": [0], "chosen": [], "guess": [0, 2], "base": [7000]},
            {"forward": 2, "ms": 1, "chosen": [0], "guess": [], "base": [7000]},
        ],
    )  # fmt: skip
    page = show([*RUNS, again])
    page.select_option("[aria-label=Question]", "1")
    seen = []
    for _ in range(4):
        seen.append(page.locator(".um-box").filter(has_text=re.compile(".")).all_inner_texts()[:2])
        page.locator("body").press("ArrowRight")
    boxes = [[text for text in step if text in ("yes", "no")] for step in seen]
    assert boxes == [[], ["yes", "yes"], ["yes"], ["no", "yes"]]
    assert page.inner_text(".um-prompt") == "second <b>?"


def test_not_a_trace(show):
    page = show(RUNS)
    said = page.evaluate("(UnmaskViewer.mount(document.body, {format: 'else'}), document.body.textContent)")
    assert "not a trace" in said
