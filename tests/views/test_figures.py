"""The figures: what they count, by hand; every kind in every format; and the command, from traces, from runs, afresh."""

from __future__ import annotations

import json
import subprocess
import sys
from xml.etree import ElementTree

import pytest
from support.tracing import SCRIPTS, made

from unmask.decoding.algorithm import AnchorModulation, Strategy, SuffixAnchor
from unmask.errors import UserError
from unmask.evaluation.recipe import settings
from unmask.evaluation.significance import wilson
from unmask.paper.experiments import figure_runs
from unmask.views import figures, trace

pytest.importorskip("matplotlib", reason='tests of the figures need matplotlib: pip install "unmask[figures]"')

RUNS = [made(name, 48, 24, correct=name == "sacm", gold="12") for name in ("top-probability", "suffix-anchor", "sacm")]


def record(method: str, strategy: Strategy, right: int, steps: int = 32, eot: float = 0.1) -> dict:
    summary = {"accuracy": right / 50, "interval": list(wilson(right, 50)), "eot_ratio": eot}
    recipe = {"strategy": repr(strategy), "steps": steps, "length": 64}
    return {"method": method, "recipe": recipe, "settings": settings(strategy), "summary": summary}


def sacm(**changes) -> Strategy:
    return Strategy(anchors=(SuffixAnchor(),), modifiers=(AnchorModulation(14, 1.3, 0.85),)).with_(**changes)


def heights(axis) -> list[float]:
    return [bar.get_height() for bar in axis.patches]


def test_first_15_percent_by_hand():
    """T = 20: the first floor(3.0) steps, 0 to 2. Of 64 slots two go to a bin; four slots were early, one of them in bin 0."""
    order = [19] * 64
    order[0], order[10], order[11], order[63], order[40], order[41] = 2, 0, 1, 2, 3, -1
    bins = figures.early(order, 20)
    assert {i: b for i, b in enumerate(bins) if b} == {0: 0.25, 5: 0.5, 31: 0.25}
    assert figures.early([0, 1, 2, 3], 4)[0] == 1.0  # at least one step counts


def test_effects_means_and_anchor():
    free = [(0.8, [0, 1, 2, 3], 4), (0.6, [0, 1, 2, 3], 4)]
    held = [(0.2, [3, 2, 0, -1], 4), (0.0, [3, 2, 0, -1], 4)]
    figure = figures.effects({"top-probability": free, "suffix-anchor": held})
    ratios, where = figure.axes
    assert heights(ratios) == pytest.approx([0.7, 0.1])
    bars = heights(where)
    assert sum(bars) == pytest.approx(1) and bars[16] == 1.0  # slot 2 of 4 is bin 16 of 32
    assert [line.get_xdata()[0] for line in where.lines] == [3.5]


def test_parallelism_has_intervals():
    records = [record("sacm", sacm(), n, t) for n, t in ((40, 64), (20, 16))] + [
        record("semi-ar-8", Strategy(block=8), 5, 16)
    ]
    (axis,) = figures.parallelism(records).axes
    names = axis.get_legend_handles_labels()[1]
    assert names == ["sacm", "semi-AR, block 8"]
    line = axis.containers[0]
    assert list(line[0].get_xdata()) == [16, 64] and list(line[0].get_ydata()) == [40, 80]
    low, high = (100 * end for end in wilson(20, 50))
    assert line[2][0].get_segments()[0][:, 1] == pytest.approx([low, high])


def test_sensitivity_varies_one_at_a_time():
    varied = [{"kappa": 6}, {"kappa": 16}, {"beta": 1.0}, {"gamma": 0.4}, {"gamma": 1.15}, {}]
    records = [record("sacm", sacm(**change), 10 + i) for i, change in enumerate(varied)]
    axes = figures.sensitivity(records).axes
    assert [list(axis.containers[0][0].get_xdata()) for axis in axes] == [[6, 14, 16], [1.0, 1.3], [0.4, 0.85, 1.15]]
    with pytest.raises(UserError, match="no run here has a modulation"):
        figures.sensitivity([record("top-probability", Strategy(), 3)])


def test_anchors_by_text_and_place():
    alone = Strategy(anchors=(SuffixAnchor(),))
    records = [record("suffix-anchor", alone.with_(text=text), 20) for text in ("The answer is", 'it\'s "so"', ".")]
    records += [record("sacm", sacm(text=text), 40) for text in ("The answer is", 'it\'s "so"', ".")]
    records += [record("sacm", sacm(at=at), 30) for at in (-30, -40)]
    texts, _, places = figures.anchors(records).axes
    assert [label.get_text() for label in texts.get_yticklabels()] == ["“The answer is”", '“it\'s "so"”', "“.”"]
    assert list(places.containers[1][0].get_xdata()) == [20, 30, 40]


@pytest.mark.parametrize(("length", "places"), [(256, [-20, -30, -40, -50, -60]), (96, [-8, -11, -15, -19, -23])])
def test_anchors_stand_in_proportion_to_the_response(length, places):
    runs = figure_runs("anchors", "stories", length)
    found = {
        run.strategy.anchors[0].at
        for run in runs
        if run.method == "sacm" and run.strategy.anchors[0].text == "The answer is"
    }
    assert found == {*places, -20}


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_panels_in_every_format(kind, tmp_path):
    path = tmp_path / f"fig.{kind}"
    figures.write(figures.failure_modes(RUNS), path)
    data = path.read_bytes()
    assert data.startswith({"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[kind]) and len(data) > 20_000
    if kind == "svg":
        assert ElementTree.fromstring(data).tag.endswith("svg")
        figures.write(figures.failure_modes(RUNS), tmp_path / "again.svg")
        assert (tmp_path / "again.svg").read_bytes() == data  # the same runs, the same file


def test_grey_is_the_confidence_before_all_modifiers():
    steps = [{"forward": 0, "ms": 1, "chosen": [0, 1], "guess": [0, 1, 1, 2], "base": [8000, 5000], "between": [[4000, 2000]],
              "score": [3000, 1000]}]  # fmt: skip
    run = trace.Run(length=2, mask_id=9, eot_ids=[8], tokens={"1": "a", "2": "b"}, steps=steps, modifiers=["A", "B"])
    for figure in (figures.failure_modes([run]), figures.progress([run])):
        assert heights(figure.axes[0]) == pytest.approx([0.8, 0.5, 0.3, 0.1])  # the grey ones, then those that decide


def test_progress_and_negative_confidence(tmp_path):
    """Entropy's confidence is negative: bars still rise with it. A single step is enough for a figure."""
    run = trace.Run(length=2, mask_id=9, eot_ids=[8], tokens={"1": "a", "2": "$b_{$"}, text="ab", method="entropy",
                    steps=[{"forward": 0, "ms": 1, "chosen": [0, 1], "guess": [0, 1, 1, 2], "base": [-20000, -500]}])  # fmt: skip
    figure = figures.progress([run])
    low, high = figure.axes[0].get_ylim()
    assert (low, high) == (-2, 0) and heights(figure.axes[0]) == pytest.approx([0, 1.95])
    figures.write(figure, tmp_path / "fig.png")


def test_hostile_text_is_drawn(tmp_path):
    figures.write(
        figures.failure_modes([made(words={**SCRIPTS, "8": "$\\frac{1$", "9": "漢字"}, length=48)]),
        tmp_path / "fig.svg",
    )
    assert "<script" not in (tmp_path / "fig.svg").read_text()


def test_bad_ends(tmp_path):
    with pytest.raises(UserError, match=r"ends in \.png, \.svg or \.pdf"):
        figures.write(figures.progress(RUNS), tmp_path / "fig.gif")
    with pytest.raises(UserError, match="cannot write"):
        figures.write(figures.progress(RUNS), tmp_path / "no" / "fig.png")
    with pytest.raises(UserError, match="no decoded run"):
        figures.failure_modes([])


def unmask(*arguments: str, cwd) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", "unmask", *arguments], capture_output=True, text=True, cwd=cwd)


def test_command_from_a_prompt_to_a_trace_to_pages_and_figures(checkpoint, tmp_path):
    made_ = unmask("trace", "so we add", "--raw", "--length", "24", "--steps", "6", "--model", str(checkpoint), "-o", "run.json.gz",
                   "-o", "replay.html", cwd=tmp_path)  # fmt: skip
    assert made_.returncode == 0 and made_.stdout.split() == ["run.json.gz", "replay.html"], made_.stderr
    assert [run.method for run in trace.load(tmp_path / "run.json.gz")] == ["top-probability", "suffix-anchor", "sacm"]
    assert "UnmaskViewer.mount" in (tmp_path / "replay.html").read_text()
    for kind in ("failure-modes", "effects"):
        done = unmask("figure", kind, "run.json.gz", "-o", f"{kind}.svg", cwd=tmp_path)
        assert done.returncode == 0 and done.stdout.strip() == f"{kind}.svg", done.stderr


def test_command_afresh_and_from_its_runs(checkpoint, tmp_path):
    """The folder that a figure made afresh keeps is one of `unmask eval`, and gives the same figure again."""
    asked = ("--task", "cups", "--limit", "2", "--length", "32", "--steps", "4", "--model", str(checkpoint))
    done = unmask("figure", "effects", *asked, "--keep", "runs/x", "-o", "a.svg", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    records = [json.loads(file.read_text()) for file in (tmp_path / "runs" / "x").glob("*-*.json")]
    assert sorted(r["method"] for r in records) == ["sacm", "suffix-anchor", "top-probability"]
    assert unmask("figure", "effects", "runs/x", "-o", "b.svg", cwd=tmp_path).returncode == 0
    assert (tmp_path / "a.svg").stat().st_size == pytest.approx((tmp_path / "b.svg").stat().st_size, rel=0.05)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["figure", "effects", "-o", "fig.gif"], "a figure ends in"),
        (["figure", "progress", "none.json.gz", "-o", "fig.png"], "cannot be read"),
        (["figure", "parallelism", "none", "-o", "fig.png"], "there is no run none"),
        (["trace", "hi", "-o", "x.txt"], "a page ends in .html"),
        (["trace", "hi", "-o", "no/x.html"], "there is no folder no"),
        (["trace", "none.json.gz", "-o", "x.html"], "cannot be read"),
    ],
)
def test_commands_refuse_in_one_line(arguments, says, tmp_path):
    done = unmask(*arguments, cwd=tmp_path)
    assert done.returncode == 2 and says in done.stderr and done.stderr.strip().count("\n") == 0, done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_front_names_every_method_once_and_none_over_another():
    import matplotlib.pyplot as pyplot
    from matplotlib.text import Text

    crowd = [figures.Reached("", f"method-{i}", 48 + i % 3, 80 + i / 10, 70, 90) for i in range(24)]
    best, made = figures.Reached("", "best", 40, 99, 97, 100), figures.Reached("", "best+method-0", 60, 90, 85, 95)
    figure = figures.front([*crowd, best, made], [best], {"best+method-0": "method-0"})
    names = [text for text in figure.axes[0].texts if text.get_text()]
    assert sorted(text.get_text() for text in names) == sorted(
        point.method for point in crowd
    )  # the best is in the legend
    figure.draw_without_rendering()
    boxes = [Text.get_window_extent(text) for text in names]  # without the line that leads to the point
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
    arrows = [text for text in figure.axes[0].texts if not text.get_text()]
    assert [(arrow.xyann, arrow.xy) for arrow in arrows] == [((48, 80), (60, 90))]
    pyplot.close(figure)
