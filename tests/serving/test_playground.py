"""The playground in a real browser, served by a real process: decoding live, settings, links, keys, and what may go wrong."""

from __future__ import annotations

import json
import re
import time
from urllib.parse import parse_qs, urlsplit

import pytest
from support.browser import until
from support.command import run
from support.serving import fetched, post, served
from support.tracing import SCRIPTS, made

pytest.importorskip("fastapi")

from unmask.decoding.methods import METHODS
from unmask.generation import Decoding, generate
from unmask.models.loading import load
from unmask.serving.playground import POLICY, SITE
from unmask.views import trace

TWO = "#prompt=Where+is+the+ball%3F&L=24&m1=top-probability&m2=sacm&m2.kappa=9"
HOLLOW = {"length": 2, "mask_id": 9, "eot_ids": [8], "tokens": {"1": "a"}, "steps": [{"forward": 0, "ms": 1, "chosen": [0, 1], "guess": [0, 1, 1, 1], "base": [1, 1]}]}  # fmt: skip


@pytest.fixture(scope="module")
def server():
    with served("--max-length", "512") as (url, process):
        yield url, process


@pytest.fixture
def show(browser, server):
    """Open the playground; at the end nothing was logged, nothing failed, and nothing else was asked."""
    pages, troubles = [], []

    def opened(
        fragment="", width=1280, height=900, scheme="light", url=server[0], ready="#form:not([hidden])", **options
    ):
        page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme, **options)
        page.set_default_timeout(60_000)
        page.troubles = troubles
        page.on("console", lambda message: troubles.append(message.text))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on(
            "request", lambda request: request.url.startswith((url, "data:", "blob:")) or troubles.append(request.url)
        )
        page.goto(url + fragment)
        page.wait_for_selector(ready)
        if "#form" in ready:
            page.wait_for_selector(".pg-card")
        pages.append(page)
        return page

    yield opened
    for page in pages:
        page.close()
    assert troubles == []


def decode(page, seconds: float = 60) -> None:
    page.click("#decode")
    until(page, "#say", "Done in", seconds)


def grid(page, run: int = 0) -> list[str]:
    return page.locator(f".um-run >> nth={run} >> .um-box").all_inner_texts()


def test_three_methods_decode_live_and_are_graded(show):
    page = show()
    assert page.locator(".pg-card select").evaluate_all("(all) => all.map((s) => s.value)") == [
        "top-probability",
        "suffix-anchor",
        "sacm",
    ]
    page.click("#decode")
    until(page, ".um-status", r"[1-9]\d? % decoded")  # seen while it is under way
    until(page, "#say", "Done in")
    assert page.locator(".um-run h2").all_inner_texts() == ["top-probability", "suffix-anchor", "sacm"]
    until(page, ".um-badge", "right")
    assert page.locator(".um-badge").all_inner_texts() == ["✗ wrong", "✗ wrong", "✓ right"]
    assert page.inner_text(".um-step") == "48 / 48" and "∅" in grid(page)
    assert page.locator(".um-run >> nth=2 >> .um-anchor").all_inner_texts() == ["The", "answer", "is"]


def test_the_tokens_are_those_of_generate(show):
    """What the page shows in the end is what `generate` writes with the same seed."""
    page = show(TWO)
    decode(page)
    model = load("tiny", dtype="float32")
    for i, (name, wanted) in enumerate({"top-probability": {}, "sacm": {"kappa": 9}}.items()):
        (own,) = generate(model, ["Where is the ball?"], METHODS[name].with_(**wanted), length=24, seed=0)
        assert page.locator(".um-text").nth(i).inner_text() in (own.text, "(empty)" if not own.text.strip() else "")
        shown = [
            model.tokenizer.decode([token]).strip() if token != model.vocab.eot_ids[0] else "∅" for token in own.tokens
        ]
        assert grid(page, i) == shown


def test_scrubbing_stays_and_the_end_is_followed(show):
    page = show("#prompt=Where&L=96&T=96&m1=sacm")
    page.click("#decode")
    until(page, ".um-step", r"^([4-9]|\d\d) /")
    page.locator("body").press("Home")
    assert page.inner_text(".um-step").startswith("0 /")
    until(page, "#say", "Done in")
    assert page.inner_text(".um-step") == "0 / 93"  # it stayed where it was put
    page.fill(".um-controls input[type=range]", "93")
    assert page.locator(".um-masked:not(.um-legend *)").count() == 0
    page.hover(".um-box >> nth=3")
    assert "position 3" in page.inner_text(".um-tip") and page.locator(".um-tip tr").count() == 5


def test_sliders_move_the_curve_and_the_decode(show):
    page = show("#prompt=Where+is+the+ball%3F&L=24&m1=sacm")
    until(page, ".pg-words", "anchor")
    label = page.locator(".pg-curve")
    page.wait_for_selector(".pg-curve[aria-label]")
    before = label.get_attribute("aria-label")
    names = page.locator(".pg-card .pg-settings label").all_inner_texts()
    assert names[:5] == ["kappa", "beta", "gamma", "text", "at"]
    beta = page.locator("input[type=range][aria-label='beta, slider']")
    beta.fill("0.5")
    end = time.monotonic() + 20
    while label.get_attribute("aria-label") == before:
        assert time.monotonic() < end
        time.sleep(0.05)
    assert "at the anchor 0.50 at the start" in str(label.get_attribute("aria-label"))
    decode(page)
    assert page.inner_text(".um-run h2") == "sacm beta=0.5"
    assert "beta=0.5" in str(page.locator(".um-facts").get_attribute("title"))
    page.get_by_label("kappa", exact=True).fill("-3")
    until(page, ".pg-wrong", "kappa is a number")
    page.troubles[:] = [text for text in page.troubles if "400" not in text]  # the browser's own note of the refusal


def test_the_curve_is_the_methods_own(server):
    """The weights behind the curve are those a trace of the decode holds."""
    asked = {"method": "sacm", "settings": {"kappa": 6, "at": -9, "text": "The answer is"}}
    status, told, _ = post(f"{server[0]}/v1/unmask/weight", {"unmask": asked, "max_tokens": 40})
    model = load("tiny", dtype="float32")
    (own,) = trace.record(model, ["Where?"], {"sacm": METHODS["sacm"].with_(kappa=6, at=-9)}, Decoding(length=40))
    assert (
        status == 200
        and told["weight"] == own.weight
        and told["anchors"] == own.anchors == [31, 32, 33]
        and told["gamma"] == 0.85
    )


def test_stop_one_and_all(show):
    page = show("#prompt=Where&L=400&T=400&m1=top-probability&m2=sacm")
    page.click("#decode")
    until(page, ".um-status", r"\d % decoded.*\d % decoded")
    page.locator(".pg-card").nth(0).get_by_role("button", name="Stop").click()
    until(page, ".um-run:nth-child(1) .um-status", "^stopped")
    assert "% decoded" in page.inner_text(".um-run:nth-child(2) .um-status")  # the other one goes on
    page.click("#stop")
    until(page, ".um-run:nth-child(2) .um-status", "^stopped")
    page.wait_for_selector("#stop:disabled")
    assert page.inner_text("#say") == "" and not any(page.locator(".pg-wrong").all_inner_texts())


def test_a_link_is_opened_anew(show, server):
    page = show()
    page.fill("#prompt", "Where is the ball?")
    page.fill("#L", "32")
    page.get_by_label("kappa", exact=True).fill("9")
    page.locator(".pg-card").nth(0).get_by_role("button", name="Remove").click()
    page.click("#share")
    until(page, "#say", "address bar")
    link = page.url
    assert parse_qs(urlsplit(link).fragment)["m2.kappa"] == ["9"] and "key" not in link
    again = show(link.removeprefix(server[0]))
    assert again.input_value("#prompt") == "Where is the ball?" and again.input_value("#L") == "32"
    assert again.locator(".pg-card select").evaluate_all("(all) => all.map((s) => s.value)") == [
        "suffix-anchor",
        "sacm",
    ]
    assert (
        again.get_by_label("kappa", exact=True).input_value() == "9" and again.locator(".um-run").count() == 0
    )  # it waits for a click
    decode(again)
    assert again.locator(".um-run h2").all_inner_texts() == ["suffix-anchor", "sacm kappa=9"]


def test_a_link_that_asks_for_too_much(show):
    """What is not here is named, and the rest is used. (The page asks the server about every setting, and is told 400.)"""
    page = show(
        "#prompt=Where&L=900&seed=x&cache=fridge&what=1&m1=sacm&m1.kappa=-1&m1.foo=2&m1.beta=2&m2=nope&m3=sacm-support&m3.rho=0"
    )
    until(page, "#say", "not here")
    said = page.inner_text("#say")
    for word in (
        "L 900",
        "seed x",
        "cache fridge",
        "what",
        "kappa -1 of sacm",
        "foo 2 of sacm",
        "the method nope",
        "rho 0 of sacm-support",
    ):
        assert word in said, word
    assert "beta" not in said and page.input_value("#L") == "96"
    assert page.get_by_label("beta", exact=True).first.input_value() == "2"
    assert page.locator(".pg-card select").evaluate_all("(all) => all.map((s) => s.value)") == ["sacm", "sacm-support"]
    refused = [text for text in page.troubles if "400" in text]
    assert len(refused) >= 2  # kappa and rho: the browser notes what the server refused
    time.sleep(0.5)
    assert not any(page.locator(".pg-wrong").all_inner_texts())  # they were put back
    page.troubles[:] = [text for text in page.troubles if "400" not in text]


def test_a_link_keeps_what_depends_on_something_else(show, server):
    """At L = 12 kappa can only be set once the anchor has moved; block may be none, and a flag may be set."""
    page = show("#prompt=Where&L=12&temperature=0.25&m1=sacm&m1.kappa=9&m1.at=-5&m2=semi-ar&m2.block=")
    page.wait_for_selector("#decode:not(:disabled)")
    assert page.inner_text("#say") == "" and page.input_value("#temperature") == "0.25"
    assert (
        page.get_by_label("kappa", exact=True).input_value() == "9"
        and page.get_by_label("at", exact=True).input_value() == "-5"
    )
    decode(page)
    assert page.locator(".um-run h2").all_inner_texts() == ["sacm kappa=9 at=-5", "semi-ar block=null"]
    page.click("#share")
    assert parse_qs(urlsplit(page.url).fragment, keep_blank_values=True)["m2.block"] == [""]
    page.troubles[:] = [text for text in page.troubles if "400" not in text]  # kappa was asked for before at


def test_decode_again_and_removal_in_mid_decode(show):
    page = show("#prompt=Where&L=200&T=200&m1=top-probability&m2=sacm")
    page.click("#decode")
    until(page, ".um-status", r"\d % decoded.*\d % decoded")
    page.locator(".pg-card").nth(0).get_by_role("button", name="Remove").click()
    until(page, ".um-run:nth-child(1) .um-status", "^stopped|% decoded")
    page.fill("#L", "24")
    page.fill("#T", "")
    page.click("#decode")  # the first round is dropped
    page.click("#decode")
    until(page, "#say", "Done in")
    assert page.locator(".um-run h2").all_inner_texts() == ["sacm"] and page.locator(".um-run .um-box").count() == 24
    assert not any(page.locator(".pg-wrong").all_inner_texts())
    page.evaluate(
        "location.hash = 'prompt=Who&m1=entropy&m1.block=8'; location.hash = 'prompt=What&m1=uncode'"
    )  # two links at once
    page.wait_for_selector(".pg-card >> nth=0")
    page.wait_for_selector("#decode:not(:disabled)")
    assert page.locator(".pg-card").count() == 1 and page.input_value("#prompt") == "What"


def test_settings_of_the_operators_that_some_methods_cannot_take():
    with served("--set", "gamma=1") as (url, _):
        told = {row["name"]: row for row in fetched(f"{url}/v1/unmask")[1]["methods"]}
        assert "sacm-support-eb" not in told  # it has two settings of that name
        assert {s["name"]: s["value"] for s in told["sacm"]["settings"]}["gamma"] == 1


def test_the_download_opens_from_disk(show, browser, tmp_path):
    page = show(TWO)
    decode(page)
    with page.expect_download() as download:
        page.click("#download")
    download.value.save_as(tmp_path / "kept.html")
    kept = browser.new_page()
    kept.goto((tmp_path / "kept.html").as_uri())
    assert kept.locator(".um-run h2").all_inner_texts() == ["top-probability", "sacm kappa=9"]
    kept.locator("body").press("End")
    assert grid(kept, 1) == grid(page, 1) and kept.inner_text(".um-prompt") == "Where is the ball?"
    kept.close()


def test_the_server_goes_away_and_comes_back(show):
    with served("--max-length", "512") as (url, process):
        page = show("#prompt=Where&L=300&T=300&m1=sacm", url=url)
        page.click("#decode")
        until(page, ".um-status", r"\d % decoded")
        process.kill()
        process.wait()
        until(page, ".pg-wrong", "The server went away|does not answer")
        assert page.get_by_role("button", name="Go on").is_visible() and page.locator(".um-run").count() == 1
    with served("--port", url.rpartition(":")[2]):
        page.fill("#L", "24")
        page.fill("#T", "")
        page.get_by_role("button", name="Go on").click()
        until(page, ".um-status", "done")
        assert not any(page.locator(".pg-wrong").all_inner_texts())
    page.troubles[:] = [
        text for text in page.troubles if "ERR_" not in text
    ]  # the browser's own word about the lost connection


def test_hostile_text_is_text(show):
    """A model that writes markup: it is shown as it stands, in boxes, text, tooltips, the method's name and an error."""
    page = show("#prompt=Where&L=64&m1=sacm")
    bad = made(words=SCRIPTS)
    worst = SCRIPTS["1"] + SCRIPTS["2"]
    head = {k: v for k, v in vars(bad).items() if k not in ("steps", "tokens", "text", "method")} | {
        "tokens": SCRIPTS,
        "recipe": worst,
    }
    pieces = [{"run": head}, *({"step": step, "tokens": {}} for step in bad.steps), {"end": {"text": worst}}]
    chunks = [{"choices": [], "unmask": piece} for piece in pieces]
    stream = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    page.route("**/v1/chat/completions", lambda route: route.fulfill(content_type="text/event-stream", body=stream))
    decode(page)
    assert "<script>window.pwned=1</script>" in page.inner_text(".um-text")
    for slot in range(0, 64, 9):
        page.hover(f".um-box >> nth={slot}")
    page.unroute("**/v1/chat/completions")
    wrong = json.dumps({"error": {"message": worst}})
    page.route(
        "**/v1/chat/completions",
        lambda route: route.fulfill(content_type="text/event-stream", body=f"data: {wrong}\n\n"),
    )
    page.click("#decode")
    until(page, ".pg-wrong", "<script>")
    assert page.evaluate("window.pwned") is None
    assert page.locator(".um img, .um script, .um svg, .um b").count() == 0


def test_keyboard_alone(show):
    page = show()
    page.focus("#example")
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == "decode":
            break
    page.keyboard.press("Enter")
    until(page, "#say", "Done in")
    for _ in range(30):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.className").startswith("um-grid"):
            break
    page.keyboard.press("ArrowRight")
    assert "position 1" in page.inner_text(".um-tip")
    page.focus("#prompt")
    page.keyboard.press("Control+Enter")
    until(page, "#say", "Decoding")


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 1280), ("light", 360)])
def test_nothing_serious_for_axe(show, scheme, width):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="pip install axe-playwright-python")
    page = show(TWO, width=width, scheme=scheme, bypass_csp=True)  # axe runs as a script of its own
    decode(page)
    page.locator("summary").last.click()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    found = axe.Axe().run(page).response["violations"]
    assert [(v["id"], v["nodes"][0]["html"][:200]) for v in found if v["impact"] in ("serious", "critical")] == []


def test_a_key_is_asked_for_and_stays_in_the_page(show):
    with served(env={"UNMASK_API_KEY": "open sesame"}) as (url, _):
        assert all(fetched(url + path)[0] == 200 for path in SITE) and fetched(f"{url}/v1/unmask")[0] == 401
        page = show(TWO, url=url, ready="#keyform:not([hidden])")
        page.fill("#key", "wrong")
        page.keyboard.press("Enter")
        until(page, "#model", "key is missing or wrong")
        page.fill("#key", "open sesame")
        page.keyboard.press("Enter")
        page.wait_for_selector(".pg-card")
        decode(page)
        page.click("#share")
        until(page, "#say", "address bar")
        held = page.evaluate(
            "[location.href, document.cookie, JSON.stringify(localStorage), JSON.stringify(sessionStorage)].join()"
        )
        assert "sesame" not in held
        page.troubles[:] = [text for text in page.troubles if "401" not in text]


def test_quick(show):
    """A step of three methods at L = 96 is drawn within an animation frame, and the page is soon usable; the best of many counts,
    so that what else runs on the machine does not decide."""
    page = show()
    opened = []
    for _ in range(3):
        page.reload()
        page.wait_for_selector(".pg-card")
        opened.append(page.evaluate("performance.now()"))
    assert min(opened) < 1000, f"{opened} ms"
    runs = [made(name, 96, 48) for name in ("top-probability", "suffix-anchor", "sacm")]
    heads = [{k: v for k, v in vars(run).items() if k != "steps"} for run in runs]
    best = page.evaluate(
        """([heads, steps]) => {
          const place = document.createElement('div');
          document.body.append(place);
          const viewer = UnmaskViewer.mount(place, {format: 'unmask-trace', version: 1, runs: []}, {live: true}), times = [];
          heads.forEach((run, i) => viewer.push({run}, i));
          for (let t = 0; t < 47; t++) {
            const begun = performance.now();
            steps.forEach((of, i) => of[t] && viewer.push({step: of[t], tokens: {}}, i));
            times.push(performance.now() - begun) }
          return Math.min(...times.slice(5)) }""",
        [heads, [run.steps for run in runs]],
    )
    assert best < 16.7, f"{best:.1f} ms for a step of three methods"


def test_methods_and_settings_come_from_the_methods(server):
    status, told, headers = fetched(f"{server[0]}/v1/unmask")
    assert status == 200 and [row["name"] for row in told["methods"]] == list(METHODS)
    sacm = next(row for row in told["methods"] if row["name"] == "sacm")
    assert [(s["name"], s["value"]) for s in sacm["settings"]][:5] == [
        ("kappa", 14),
        ("beta", 1.3),
        ("gamma", 0.85),
        ("text", "The answer is"),
        ("at", -20),
    ]
    assert [row["name"] for row in told["methods"] if not row["live"]] == ["daedal", "rho-eos"]
    assert len(told["examples"]) == 96 and "row" not in told["examples"][0]
    assert fetched(server[0])[2]["content-security-policy"] == POLICY and "unsafe" not in POLICY
    assert "script-src" not in headers["content-security-policy"]
    for path in SITE:
        assert not re.search(r"https?://|@import|url\(|<script>|style=|onclick=", fetched(server[0] + path)[1])


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        ("weight", {"unmask": {"method": "sacm", "settings": {"kappa": 0}}}, 400, "kappa is a number"),
        ("weight", {"unmask": {"method": "nope"}}, 400, "no method"),
        ("weight", {"unmask": {"method": "os.py:system"}}, 400, "no method"),
        ("weight", {"unmask": {"settings": {"at": -4000}}}, 400, "outside a response"),
        ("weight", {"unmask": {}, "max_tokens": 10**9}, 400, "L is a number from 1 to 512"),
        ("weight", {"unmask": {}, "max_tokens": 0}, 400, "at least 1"),
        ("weight", {}, 400, "unmask: this is missing"),
        ("grade", {"example": "cups-999", "text": "x"}, 404, "no example"),
        ("grade", {"example": "cups-0"}, 400, "missing"),
        ("replay", {}, 400, "not a trace"),
        ("replay", {"format": "unmask-trace", "version": 1, "runs": []}, 400, "no run"),
        ("replay", {"format": "unmask-trace", "version": 1, "runs": [{"length": 10**12}]}, 400, "damaged"),
        ("replay", {"format": "unmask-trace", "version": 1, "runs": [7]}, 400, "damaged"),
        ("replay", {"format": "unmask-trace", "version": 1, "runs": [HOLLOW | {"length": 10**6}]}, 400, "larger than"),
        ("replay", {"format": "unmask-trace", "version": 1, "runs": [HOLLOW] * 4}, 400, "larger than"),
        ("replay", {"format": "unmask-trace", "version": 1, "runs": [HOLLOW | {"scale": 0}]}, 400, "damaged"),
        ("replay", {"format": "unmask-trace", "version": 1, "runs": [HOLLOW | {"text": "\ud800"}]}, 400, "surrogate"),
        ("weight", {"unmask": {"settings": {"self": 1}}}, 400, "settings"),
        ("weight", {"unmask": {"settings": {"kappa": 1e12}}}, 400, "kappa is a number"),
        ("weight", {"unmask": {"settings": {f"s{i}": 1 for i in range(40)}}}, 400, "there are 40 settings"),
    ],
)
def test_bad_input(server, path, body, status, says):
    got, told, _ = post(f"{server[0]}/v1/unmask/{path}", body)
    assert got == status and says in told["error"]["message"], told


def test_a_trace_of_the_command_is_a_replay_too(server, tmp_path, capsys):
    """What `unmask trace` keeps, the page's download would show."""
    run(capsys, "trace", "Where is the ball?", "--methods", "sacm", "--length", "24", "-o", str(tmp_path / "run.json"))
    status, page, headers = post(f"{server[0]}/v1/unmask/replay", json.loads((tmp_path / "run.json").read_text()))
    assert status == 200 and "UnmaskViewer.mount" in page and headers["content-disposition"].startswith("attachment")
