"""What a notebook shows: nothing a model wrote can be markup there."""

from __future__ import annotations

import html
from dataclasses import replace

import unmask
from unmask.views.trace import record


def test_a_generation(model):
    shown = replace(unmask.generate(model, "What is 12 * 7?", length=24, steps=2), text="<script>1 & 2")._repr_html_()
    assert "&lt;script&gt;1 &amp; 2</pre>" in shown and "<th>forwards</th>" in shown and "<td>2</td>" in shown


def test_a_run(model):
    (run,) = record(
        model, ["What is 12 * 7?"], {"top-probability": unmask.Strategy()}, unmask.Decoding(length=16, steps=2)
    )
    shown = replace(run, text='"><script>')._repr_html_()
    inside = shown.removeprefix('<iframe srcdoc="').partition('"')[0]
    assert html.unescape(inside).startswith("<!") and "UnmaskViewer.mount" in html.unescape(inside)
    assert shown.endswith('border: 0"></iframe>') and 'sandbox="allow-scripts"' in shown
