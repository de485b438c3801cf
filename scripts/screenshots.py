"""Makes the pictures in docs/ by the commands that the docs show beside them: python scripts/screenshots.py [NAME ...]

Needs the bundled model, matplotlib, Playwright and chromium (UNMASK_CHROMIUM says where, if it is not in the PATH).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from unmask.paper.demo import SHOWN

DOCS = Path(__file__).parent.parent / "docs"
TASK, ROW = SHOWN[0], str(SHOWN[1])
METHODS = ("top-probability", "suffix-anchor", "sacm")
FIGURES = {
    "failure-modes": ["figure", "failure-modes", "--task", TASK, "--split", "tuning", "--rows", ROW],
    "progress": ["figure", "progress", "--task", TASK, "--split", "tuning", "--rows", ROW],
    "effects": ["figure", "effects", "--task", "stories", "--split", "tuning", "--limit", "48"],
    "parallelism": ["figure", "parallelism", "--task", "stories", "--split", "tuning", "--limit", "48"],
    "sensitivity": ["figure", "sensitivity", "--task", "stories", "--split", "tuning", "--limit", "48"],
    "anchors": ["figure", "anchors", "--task", "stories", "--split", "tuning", "--limit", "48"],
}
# name: width, height, colour scheme, how far along, and whether a token is pointed at
PAGES = {
    "replay": (1280, 1250, "light", 0.3, True),
    "replay-dark": (1280, 1250, "dark", 0.6, False),
    "replay-phone": (390, 844, "light", 0.5, False),
}
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip


def unmask(*arguments: str) -> None:
    print("unmask", *arguments, flush=True)
    subprocess.run([sys.executable, "-m", "unmask", *arguments], check=True, stdout=subprocess.DEVNULL)


def pages(names: list[str]) -> None:
    from playwright.sync_api import sync_playwright

    chromium = os.environ.get("UNMASK_CHROMIUM") or shutil.which("chromium")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        replay = Path(folder) / "replay.html"
        unmask(
            "trace",
            "--task",
            TASK,
            "--split",
            "tuning",
            "--rows",
            ROW,
            "--methods",
            ",".join(METHODS),
            "-o",
            str(replay),
        )
        browser = driver.chromium.launch(executable_path=chromium, args=FLAGS)
        for name in names:
            width, height, scheme, share, point = PAGES[name]
            page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
            page.set_default_timeout(120_000)
            page.goto(replay.as_uri())
            last = int(page.get_attribute("input[type=range]", "max"))
            page.fill("input[type=range]", str(round(share * last)))
            page.evaluate("document.activeElement.blur()")
            if point:
                page.hover(".um-run >> nth=0 >> .um-new >> nth=0")
            page.screenshot(path=DOCS / f"{name}.png")
            print(DOCS / f"{name}.png")
        browser.close()


def playground() -> None:
    """`unmask serve` and its page, a third of the way through a decode."""
    from playwright.sync_api import sync_playwright

    chromium = os.environ.get("UNMASK_CHROMIUM") or shutil.which("chromium")
    server = subprocess.Popen(
        [sys.executable, "-m", "unmask", "serve", "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        url = server.stdout.readline().decode().strip()
        with sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=chromium, args=FLAGS)
            page = browser.new_page(viewport={"width": 1280, "height": 1370})
            page.set_default_timeout(120_000)
            page.goto(url)
            page.wait_for_selector(".pg-curve[aria-label]")
            page.click("#decode")
            page.wait_for_selector("#download:not(:disabled)")
            page.wait_for_selector(".um-badge >> nth=2")
            last = int(page.get_attribute(".um-controls input[type=range]", "max"))
            page.fill(".um-controls input[type=range]", str(last // 3))
            page.evaluate("document.activeElement.blur()")
            page.screenshot(path=DOCS / "playground.png")
            print(DOCS / "playground.png")
            browser.close()
    finally:
        server.terminate()


def live() -> None:
    """The last screen of `unmask compare --live`, as the terminal shows it."""
    from rich.console import Console

    import unmask as package
    from unmask.evaluation.recipe import for_task
    from unmask.tasks import find
    from unmask.views.live import Column, View

    model, task = package.load("tiny"), find(TASK)
    row = task.tuning_rows().rows[int(ROW)]
    columns = []
    for name in METHODS:
        columns.append(column := Column(name, model))
        made = package.generate(
            model, row["question"], for_task(task, [name])[name], length=task.length, watch=[column]
        )
        column.finish(f"{made.forwards} forwards, EOT {made.eot_ratio:.2f}")
    console = Console(record=True, width=120, file=open(os.devnull, "w"), force_terminal=True)  # noqa: SIM115
    console.print(View(columns, whole=True))
    svg = console.export_svg(title='unmask compare "..." --live')
    (DOCS / "live.svg").write_text(re.sub(r"@font-face \{.*?\}", "", svg, flags=re.S))  # fonts that would be fetched
    print(DOCS / "live.svg")


def main(names: list[str]) -> None:
    known = [*PAGES, *FIGURES, "live", "playground"]
    wanted = names or known
    if unknown := set(wanted) - {*known}:
        sys.exit(f"no picture {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    if some := [name for name in wanted if name in PAGES]:
        pages(some)
    for name in wanted:
        if name in FIGURES:
            unmask(*FIGURES[name], "-o", str(DOCS / f"{name}.png"))
    if "live" in wanted:
        live()
    if "playground" in wanted:
        playground()


if __name__ == "__main__":
    main(sys.argv[1:])
