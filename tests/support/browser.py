"""A real browser for the tests of pages."""

from __future__ import annotations

import os
import re
import shutil
import time

import pytest

CHROMIUM = os.environ.get("UNMASK_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
)  # fmt: skip


@pytest.fixture(scope="module")
def browser():
    driver = pytest.importorskip("playwright.sync_api", reason="browser tests need Playwright: pip install playwright")
    if not CHROMIUM:
        pytest.skip("browser tests need chromium: apt-get install chromium, or set UNMASK_CHROMIUM")
    with driver.sync_playwright() as p:
        found = p.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield found
        found.close()


def until(page, selector: str, pattern: str, seconds: float = 30) -> None:
    """Wait for a text. (Playwright's own wait evaluates a string, which the page's policy rightly refuses.)"""
    end = time.monotonic() + seconds
    while not re.search(pattern, " ".join(page.locator(selector).all_inner_texts())):
        assert time.monotonic() < end, f"{selector} never said {pattern}"
        time.sleep(0.05)
