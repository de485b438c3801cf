"""Traces -> one self-contained HTML page. Nothing is fetched, and nothing a model wrote can run."""

from __future__ import annotations

import html
import json
from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from string import Template

from unmask.errors import UserError
from unmask.files import write_text
from unmask.views.trace import Run, packed

# In JSON these characters can stand only inside strings, where \u escapes mean the same; unescaped, "</script>" or
# "<!--" would end the script element early, whatever its type.
ESCAPES = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}
BODY = "body { margin: 0; background: #ffffff; } @media (prefers-color-scheme: dark) { body { background: #0d1117; } }"
START = 'UnmaskViewer.mount(document.querySelector("main"), JSON.parse(document.querySelector("#trace").textContent));'


def page(runs: Sequence[Run], title: str = "unmask replay") -> str:
    """The page as text. Its policy lets exactly our script and style run, by their hashes, and no request be made."""
    if not runs:
        raise UserError("there is no run to show")
    viewer = files("unmask.views") / "viewer"
    style = BODY + (viewer / "viewer.css").read_text()
    script = (viewer / "viewer.js").read_text() + START
    return Template((viewer / "page.html").read_text()).substitute(
        policy=f"default-src 'none'; script-src '{_hashed(script)}'; style-src '{_hashed(style)}'",
        title=html.escape(title), style=style, script=script,
        data=json.dumps(packed(runs), ensure_ascii=False, separators=(",", ":")).translate(ESCAPES),
    )  # fmt: skip


def write(path: str | Path, runs: Sequence[Run], title: str = "unmask replay") -> None:
    write_text(path, page(runs, title))


def _hashed(text: str) -> str:
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"
