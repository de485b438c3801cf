"""The paper's figures: token panels from traces (Fig. 1, 3, qualitative appendix), statistics and curves from saved runs.

A figure is a function of Runs (unmask/views/trace.py) or of the records of `unmask eval`; `write` saves it as PNG, SVG or PDF.
Colours are Okabe and Ito's, and every line has a marker of its own, so nothing is told by colour alone.
"""

from __future__ import annotations

import io
import math
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.decoding.methods import METHODS
from unmask.errors import UserError
from unmask.evaluation.metrics import early_steps
from unmask.evaluation.report import examples
from unmask.files import write_bytes
from unmask.views.live import RAMP, boxed
from unmask.views.trace import Moment, Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SCORE, BASE, NEW, ANCHOR = "#0072B2", "#C4C9CF", "#D55E00", "#F0B429"
LINES = (("#0072B2", "o"), ("#D55E00", "s"), ("#009E73", "^"), ("#CC79A7", "D"), ("#E69F00", "v"), ("#56B4E9", "P"), ("#000000", "X"),
         ("#7F7F7F", "*"))  # fmt: skip
BINS = 32  # of the response, in Fig. 2
STYLE: Any = {"font.size": 7.5, "axes.titlesize": 8, "axes.labelsize": 7.5, "legend.fontsize": 6.5, "xtick.labelsize": 6.5,
         "ytick.labelsize": 6.5, "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.6, "pdf.fonttype": 42,
         "svg.fonttype": "path", "svg.hashsalt": "unmask", "figure.dpi": 100, "lines.linewidth": 1.3, "lines.markersize": 4}  # fmt: skip


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError:
        raise UserError('figures need matplotlib: pip install "unmask[figures]"') from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams.update(STYLE)
    return pyplot


def write(figure: Figure, path: str | Path) -> None:
    path = Path(path)
    known = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}, ".png": {}}  # the same data gives the same file
    if path.suffix.lower() not in known:
        raise UserError(f"{path}: a figure ends in .png, .svg or .pdf")
    kind, drawn = path.suffix.lower(), io.BytesIO()
    try:
        figure.savefig(drawn, format=kind[1:], dpi=220, bbox_inches="tight", pad_inches=0.04, metadata=known[kind])
    finally:
        _pyplot().close(figure)
    write_bytes(path, drawn.getvalue())  # whole or not at all


# ---------------------------------------------------------------- token panels

FONT = 5.2  # points; a monospaced character is 0.602 of it wide
LINE = FONT * 1.75


def _cells(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _boxes(run: Run, width: float) -> list[tuple[float, int, float]]:
    """Where each slot's box goes: x, line, width, in points. A masked box is as wide as the token that will go there."""
    final, x, line, out = run.final().ids, 0.0, 0, []
    for token in final:
        wide = _cells(_piece(run, token)) * FONT * 0.602 + 3
        if x and x + wide > width:
            x, line = 0.0, line + 1
        out.append((x, line, wide))
        x += wide + 1.6
    return out


def _piece(run: Run, token: int) -> str:
    if token in run.eot_ids[:1]:
        return "∅"
    text = boxed(run.tokens.get(str(token), f"#{token}"))
    return text if _cells(text) <= 18 else text[:17] + "…"


def _shade(fraction: float) -> tuple[str, str]:
    """A colour of the ramp, darker for later, and a text colour that reads on it."""
    i = min(len(RAMP) - 1, int(fraction * len(RAMP)))
    return RAMP[i], "#000000" if i < 5 else "#ffffff"


def _tokens(axes: Axes, run: Run, moment: Moment, width: float, new: Iterable[int] = ()) -> None:
    """The canvas of a moment as boxes: darker = later, anchor outlined in amber, new ones in vermilion, masks dashed."""
    from matplotlib.patches import FancyBboxPatch

    places, last, new = _boxes(run, width), max(1, len(run.steps) - 1), set(new)
    given = {slot for slot, _ in run.given}
    lines = places[-1][1] + 1
    axes.set(xlim=(-1, width + 1), ylim=(lines * LINE + 1, -1))
    axes.axis("off")
    for slot, (token, when) in enumerate(zip(moment.ids, moment.when, strict=True)):
        (x, line, wide), masked = places[slot], token == run.mask_id
        back, front = (
            ("none", "#000000") if masked else ("#FFF3D0", "#000000") if slot in given else _shade(when / last)
        )
        edge = ANCHOR if slot in run.anchors else NEW if slot in new else "#B8BEC5" if masked else "#8FA3B8"
        axes.add_patch(FancyBboxPatch(
            (x + 0.6, line * LINE + 0.6), wide - 1.2, LINE - 2.4, boxstyle="round,pad=0.6,rounding_size=1.2",
            facecolor=back, edgecolor=edge, linewidth=1.0 if slot in run.anchors or slot in new else 0.35,
            linestyle=(0, (2, 2)) if masked else "-",
        ))  # fmt: skip
        if not masked:  # what a model writes is never taken for mathematics
            axes.text(x + wide / 2, line * LINE + LINE / 2 - 0.6, _piece(run, token), family="DejaVu Sans Mono", fontsize=FONT, color=front,
                      ha="center", va="center", parse_math=False)  # fmt: skip


def _bars(axes: Axes, run: Run, moment: Moment) -> None:
    """Confidence over positions: the score that decides, the one before modulation behind it, the chosen in vermilion."""
    values = [v for step in run.steps for v in (*step["base"], *step.get("score", ()))]
    low, high = (
        min([0, *values]) / run.scale,
        max([1 if min([0, *values]) == 0 else 0, *(v / run.scale for v in values)]),
    )
    if run.anchors:
        axes.axvspan(min(run.anchors) - 0.5, max(run.anchors) + 0.5, color=ANCHOR, alpha=0.35, linewidth=0)
    if "score" in run.steps[0]:
        axes.bar(moment.slots, [b - low for b in moment.base], width=0.9, bottom=low, color=BASE, linewidth=0)
    colours = [NEW if slot in set(moment.chosen) else SCORE for slot in moment.slots]
    axes.bar(moment.slots, [s - low for s in moment.score], width=0.9, bottom=low, color=colours, linewidth=0)
    axes.set(
        xlim=(-1, run.length), ylim=(low, high), yticks=[low, high] if low else [0, 0.5, 1] if high == 1 else [0, high]
    )
    axes.tick_params(length=2, pad=1.5)


def _settled(moment: Moment, run: Run) -> Moment:
    """The moment with its own choices written, as the replay shows it."""
    guess = dict(zip(moment.slots, moment.guess, strict=True))
    ids, when = list(moment.ids), list(moment.when)
    for slot in moment.chosen:
        ids[slot], when[slot] = guess[slot], moment.index
    return replace(moment, ids=ids, when=when)


def _panels(rows: Sequence[tuple[str, Run, Moment | None]], heads: Mapping[int, str], legend: bool) -> Figure:
    """Rows of bars (left) and boxes (right); a row without a moment is the final output, over the whole width."""
    pyplot = _pyplot()
    wide, left, gap = 500.0, 190.0, 16.0  # points
    right = wide - left - gap
    heights = []
    for i, (_, run, moment) in enumerate(rows):
        lines = _boxes(run, right if moment else wide)[-1][1] + 1
        heights.append(max(54.0, lines * LINE + 4) if moment else lines * LINE + 4)
        heights[-1] += 11 + (13 if i in heads else 0)
    total = sum(heights) + 8 * len(rows) + 18
    figure = pyplot.figure(figsize=(wide / 72, total / 72))
    y = total
    for i, ((label, run, moment), height) in enumerate(zip(rows, heights, strict=True)):
        if i in heads:
            figure.text(0, (y - 9) / total, heads[i], fontsize=8.5, fontweight="bold", va="center", parse_math=False)
            y, height = y - 13, height - 13
        figure.text(0, (y - 5) / total, label, fontsize=6.5, color="#444444", va="center", parse_math=False)
        body = height - 11
        if moment:
            bars = figure.add_axes(
                (14 / wide, (y - height + 2) / total, (left - 14) / wide, (min(body, 80) - 4) / total)
            )
            _bars(bars, run, moment)
        lines = _boxes(run, right if moment else wide)[-1][1] + 1
        at = (left + gap) / wide if moment else 0
        tall = lines * LINE + 2
        grid = figure.add_axes((at, (y - 11 - tall) / total, (right if moment else wide) / wide, tall / total))
        shown = _settled(moment, run) if moment else run.final()
        _tokens(grid, run, shown, right if moment else wide, moment.chosen if moment else ())
        y -= height + 8
    if legend:
        _legend(figure, any("score" in run.steps[0] for _, run, _ in rows))
    return figure


def _legend(figure: Figure, modulated: bool) -> None:
    from matplotlib.patches import Patch

    keys = [Patch(facecolor=SCORE, label="confidence that decides")]
    keys += [Patch(facecolor=BASE, label="before modulation")] if modulated else []
    keys += [Patch(facecolor=NEW, label="decoded at this step"), Patch(facecolor="#FFF3D0", edgecolor=ANCHOR, label="anchor"),
             Patch(facecolor=RAMP[1], edgecolor="#8FA3B8", label="decoded early"), Patch(facecolor=RAMP[-1], label="late"),
             Patch(facecolor="none", edgecolor="none", label="∅ end of text")]  # fmt: skip
    figure.legend(handles=keys, loc="lower center", ncol=len(keys), frameon=False, handlelength=1, handleheight=0.9, columnspacing=1.2,
                  bbox_to_anchor=(0.5, 0), borderaxespad=0)  # fmt: skip


def _needed(runs: Sequence[Run]) -> Sequence[Run]:
    if not runs or not all(run.steps for run in runs):
        raise UserError("there is no decoded run to draw")
    return runs


def failure_modes(runs: Sequence[Run], at: float = 0.25) -> Figure:
    """Fig. 1, 3 and the qualitative appendix: per method the initial step, one at `at` of the way, and the final output."""
    rows: list[tuple[str, Run, Moment | None]] = []
    heads = {}
    for letter, run in zip("abcdefghij", _needed(runs), strict=False):
        moments = list(run.moments())
        middle = moments[min(len(moments) - 1, max(1, round(at * len(moments)) - 1))]
        verdict = "" if run.correct is None else "   ✓ right" if run.correct else "   ✗ wrong"
        heads[len(rows)] = f"({letter}) {run.method}{verdict}"
        rows += [("initial step", run, moments[0]), (f"step {middle.index + 1} of {len(moments)}", run, middle),
                 (f"final output    ∅ {run.eot_ratio():.0%}" + (f"    gold: {run.gold}" if run.gold else ""), run, None)]  # fmt: skip
    return _panels(rows, heads, legend=True)


def progress(runs: Sequence[Run], panels: int = 6) -> Figure:
    """The appendix's decoding progress: one run from the initial step to the last."""
    run = _needed(runs)[-1]
    moments = list(run.moments())
    picked = sorted({round(i * (len(moments) - 1) / max(1, panels - 1)) for i in range(panels)})
    rows = [(f"step {i + 1} of {len(moments)}", run, moments[i]) for i in picked]
    return _panels([*rows, ("final output", run, None)], {0: run.method}, legend=True)


# ---------------------------------------------------------------- statistics (Fig. 2)


def early(order: Sequence[int], steps: int) -> list[float]:
    """(BINS,) of the slots committed in the first floor(.15 T) steps (at least one), the share in each bin; sums to 1."""
    first = early_steps(steps)
    hit = [slot for slot, when in enumerate(order) if 0 <= when < first]
    bins = [0.0] * BINS
    for slot in hit:
        bins[slot * BINS // len(order)] += 1 / len(hit)
    return bins


def effects(found: Mapping[str, Sequence[tuple[float, Sequence[int], int]]]) -> Figure:
    """Fig. 2 from samples per method, each (EOT ratio, the step that committed each slot or -1, T): the EOT ratios, and
    where the tokens of the first 15 % of steps are, for the methods that have an anchor."""
    pyplot = _pyplot()
    anchored = [name for name, samples in found.items() if any(when < 0 for _, order, _ in samples for when in order)]
    figure, axes = pyplot.subplots(1, 1 + len(anchored), figsize=(2.0 + 2.3 * len(anchored), 1.9), squeeze=False,
                                   width_ratios=[1.1] + [2] * len(anchored), layout="constrained")  # fmt: skip
    means = {name: sum(eot for eot, _, _ in samples) / len(samples) for name, samples in found.items()}
    axes[0, 0].bar(
        range(len(means)),
        list(means.values()),
        width=0.62,
        color=[SCORE if n in anchored else "#8A929B" for n in means],
    )
    for i, value in enumerate(means.values()):
        axes[0, 0].text(i, value + 0.02, f"{value:.2f}", ha="center", fontsize=6.5)
    axes[0, 0].set(ylabel="EOT ratio", ylim=(0, 1.05), xticks=range(len(means)))
    axes[0, 0].set_xticklabels(list(means), rotation=28, ha="right", parse_math=False)
    top = 0.0
    for axis, name in zip(axes[0, 1:], anchored, strict=True):
        samples = found[name]
        length = len(samples[0][1])
        bins = [
            sum(column) / len(samples)
            for column in zip(*(early(order, steps) for _, order, steps in samples), strict=True)
        ]
        top, width = max(top, *bins), length / BINS
        for slot in {slot for _, order, _ in samples for slot, when in enumerate(order) if when < 0}:
            axis.axvline(slot + 0.5, color=ANCHOR, linewidth=1.6, zorder=0)
        axis.bar([(i + 0.5) * width for i in range(BINS)], bins, width=width * 0.86, color=SCORE)
        axis.set(xlabel="position", ylabel="share of the first 15 %", xlim=(0, length))
        axis.set_title(name, parse_math=False)
    for axis in axes[0, 1:]:
        axis.set_ylim(0, top * 1.1)
    return figure


def samples(runs: Sequence[Run]) -> dict[str, list[tuple[float, list[int], int]]]:
    """What `effects` takes, from traces."""
    found: dict[str, list[tuple[float, list[int], int]]] = {}
    for run in _needed(runs):
        found.setdefault(run.method, []).append((run.eot_ratio(), run.final().when, len(run.steps)))
    return found


def samples_of_records(records: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[float, list[int], int]]]:
    """What `effects` takes, from saved runs of `unmask eval`, in the order of the paper's table."""
    place = {name: i for i, name in enumerate(METHODS)}
    found: dict[str, list[tuple[float, list[int], int]]] = {}
    for record in sorted(records, key=lambda record: place.get(record["method"], len(place))):
        if record["method"] in found:
            raise UserError(
                f"these runs hold {record['method']} twice, with different recipes: name the .json files to use"
            )
        found[record["method"]] = [(e["eot_ratio"], e["order"], e["nfe"]) for e in examples(record["file"])]
    return found


# ---------------------------------------------------------------- accuracy, from records of `unmask eval`


def setting(record: Mapping[str, Any], name: str) -> Any:
    """A setting of a run, kappa or text, as its record has it."""
    if "settings" not in record:
        raise UserError(
            f"{record.get('file', 'this run')} is of an older unmask: the same `unmask eval` command again completes it"
        )
    return record["settings"].get(name)


def _point(record: Mapping[str, Any]) -> tuple[float, float, float]:
    """Accuracy in percent, and how far its 95 % interval reaches below and above."""
    summary = record["summary"]
    accuracy, (low, high) = 100 * summary["accuracy"], (100 * end for end in summary["interval"])
    return accuracy, max(0.0, accuracy - low), max(0.0, high - accuracy)


def _curve(
    axis: Axes, index: int, points: Sequence[tuple[float, Mapping[str, Any]]], label: str = "", **style: Any
) -> None:
    points = sorted(points, key=lambda point: point[0])
    y = [_point(record) for _, record in points]
    colour, marker = LINES[index % len(LINES)]
    axis.errorbar([x for x, _ in points], [a for a, _, _ in y], [[b for _, b, _ in y], [c for _, _, c in y]], color=colour, marker=marker,
                  capsize=2, elinewidth=0.7, label=label or None, **style)  # fmt: skip


def parallelism(records: Sequence[Mapping[str, Any]]) -> Figure:
    """Accuracy against the step budget T, one line per method (and block size)."""
    pyplot = _pyplot()
    lines: dict[str, list[tuple[int, Mapping[str, Any]]]] = {}
    for record in records:
        block = setting(record, "block")
        name = f"semi-AR, block {block}" if block and record["method"].startswith("semi-ar") else record["method"]
        lines.setdefault(name, []).append((record["recipe"]["steps"], record))
    figure, axis = pyplot.subplots(figsize=(3.4, 2.7), layout="constrained")
    for i, (name, points) in enumerate(lines.items()):
        _curve(axis, i, points, name, linestyle="--" if name.startswith("semi") else "-")
    ticks = sorted({x for points in lines.values() for x, _ in points})
    axis.set_xscale("log", base=2)
    axis.set(xlabel=f"steps T (L = {records[0]['recipe']['length']})", ylabel="accuracy, %", xticks=ticks)
    axis.set_xticklabels(map(str, ticks))
    axis.minorticks_off()
    axis.grid(alpha=0.25, linewidth=0.5)
    axis.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.45, -0.2), ncol=2)
    return figure


def sensitivity(records: Sequence[Mapping[str, Any]]) -> Figure:
    """Accuracy against kappa, beta and gamma, each varied around the setting that the most runs share."""
    pyplot = _pyplot()
    names = ("kappa", "beta", "gamma")
    tuned = [(tuple(setting(record, name) for name in names), record) for record in records]
    tuned = [(values, record) for values, record in tuned if None not in values]
    if not tuned:
        raise UserError("no run here has a modulation; `unmask figure sensitivity` without runs makes them")
    # The centre differs from every other setting in one name only.
    centre = max(
        (v for v, _ in tuned), key=lambda v: sum(sum(a != b for a, b in zip(v, w, strict=True)) <= 1 for w, _ in tuned)
    )
    figure, axes = pyplot.subplots(1, 3, figsize=(6.8, 1.9), sharey=True, layout="constrained")
    for i, (name, axis) in enumerate(zip(names, axes, strict=True)):
        points = [(v[i], r) for v, r in tuned if all(v[k] == centre[k] for k in range(3) if k != i)]
        _curve(axis, 0, points)
        axis.axvline(centre[i], color=ANCHOR, linewidth=1.6, zorder=0)
        axis.set(xlabel={"kappa": "κ", "beta": "β", "gamma": "γ"}[name])
        axis.grid(alpha=0.25, linewidth=0.5)
    axes[0].set_ylabel("accuracy, %")
    return figure


def heat_map(points: Sequence[Mapping[str, Any]], title: str) -> Figure:
    """A sweep: one panel per gamma, kappa by beta, accuracy in percent as colour and number. Hatched: dropped before all rows
    were seen, so its number comes from fewer rows. Framed: the one chosen; dashed: the default."""
    from matplotlib.patches import Rectangle

    pyplot = _pyplot()
    values = {name: sorted({point[name] for point in points}) for name in ("kappa", "beta", "gamma")}
    rows, columns, panels = (len(values[name]) for name in ("kappa", "beta", "gamma"))
    accuracies, most = [100 * point["accuracy"] for point in points], max(point["rows"] for point in points)
    norm = pyplot.Normalize(min(accuracies), max(max(accuracies), min(accuracies) + 1e-9))
    colours = pyplot.get_cmap("cividis")
    size = (panels * (0.42 * columns + 0.5) + 0.6, 0.42 * rows + 1)
    figure, axes = pyplot.subplots(1, panels, figsize=size, squeeze=False, sharey=True, layout="constrained")
    for axis, gamma in zip(axes[0], values["gamma"], strict=True):
        axis.set(
            xticks=range(columns),
            yticks=range(rows),
            xlim=(-0.5, columns - 0.5),
            ylim=(-0.5, rows - 0.5),
            xlabel="beta",
        )
        axis.set(
            xticklabels=[f"{b:g}" for b in values["beta"]],
            yticklabels=[f"{k:g}" for k in values["kappa"]],
            title=f"gamma {gamma:g}",
        )
        axis.set_aspect("equal")
        for point in (p for p in points if p["gamma"] == gamma):
            x, y, shade = (
                values["beta"].index(point["beta"]),
                values["kappa"].index(point["kappa"]),
                norm(100 * point["accuracy"]),
            )
            hatch = "////" if point["rows"] < most else None
            axis.add_patch(
                Rectangle(
                    (x - 0.5, y - 0.5), 1, 1, facecolor=colours(shade), edgecolor="#FFFFFF60", linewidth=0, hatch=hatch
                )
            )
            ink = "white" if shade < 0.5 else "black"
            axis.text(x, y, f"{100 * point['accuracy']:.0f}", ha="center", va="center", fontsize=6, color=ink)
            if point["chosen"] or point["default"]:
                style = "-" if point["chosen"] else "--"
                frame = Rectangle(
                    (x - 0.46, y - 0.46),
                    0.92,
                    0.92,
                    fill=False,
                    edgecolor=NEW,
                    linewidth=1.8,
                    linestyle=style,
                    zorder=3,
                )
                axis.add_patch(frame)
    axes[0][0].set_ylabel("kappa")
    figure.suptitle(f"{title}: accuracy, % (frame: chosen, dashed: default, hatched: dropped early)", fontsize=7)
    return figure


def write_heat_map(record: Mapping[str, Any], path: Path) -> bool:
    """The heat map of what `unmask tune` found; False where matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        return False
    write(heat_map(record["table"], f"{record['task']}, {record['model']}"), path)
    return True


@dataclass(frozen=True)
class Reached:
    """What a method reached at one budget: mean accuracy in percent, its interval, and the forwards it took."""

    label: str
    method: str
    forwards: float
    mean: float
    low: float
    high: float


def front(points: Sequence[Reached], leading: Sequence[Reached], beside: Mapping[str, str] | None = None) -> Figure:
    """Accuracy against forwards: methods with a point on the Pareto front in colour, the others in grey, each named.

    `beside`: methods made of another one; an arrow leads from that one to them in place of a name."""
    pyplot = _pyplot()
    beside = beside or {}
    methods = sorted({point.method for point in points})
    figure, axes = pyplot.subplots(figsize=(6.8, 4.0 if len(methods) < 16 else 5.2), layout="constrained")
    ahead = list(dict.fromkeys(point.method for point in sorted(leading, key=lambda p: p.forwards)))
    start = {point.method: point for point in reversed(points)}  # the first of each: as it is published
    for method in sorted(methods, key=lambda name: (name in ahead, name)):
        mine = sorted((p for p in points if p.method == method), key=lambda p: p.forwards)
        x, y = [p.forwards for p in mine], [p.mean for p in mine]
        if method in ahead:
            colour, marker = LINES[ahead.index(method) % len(LINES)]
            axes.errorbar(x, y, [[p.mean - p.low for p in mine], [p.high - p.mean for p in mine]], color=colour, marker=marker,
                          capsize=2, elinewidth=0.7, label=method)  # fmt: skip
        elif method not in beside:
            axes.plot(x, y, color=BASE, marker="o", markersize=2.5, linewidth=0.8)
        if (one := start.get(beside.get(method, ""))) and one.method != method:
            line = {
                "arrowstyle": "-|>",
                "color": "#9CC3E6",
                "linewidth": 0.7,
                "mutation_scale": 5,
                "shrinkA": 1,
                "shrinkB": 0,
            }
            axes.annotate("", (x[0], y[0]), (one.forwards, one.mean), arrowprops=line, zorder=1)
    steps = sorted(leading, key=lambda p: p.forwards)
    axes.step([p.forwards for p in steps], [p.mean for p in steps], where="post", color="black", linewidth=0.7, linestyle=":",
              zorder=0)  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set(xlabel="forwards (NFE)", ylabel="accuracy, % (mean over tasks; bars: 95 %)")
    axes.grid(alpha=0.25, linewidth=0.5)
    axes.legend(loc="lower center", ncols=4, bbox_to_anchor=(0.5, 1), frameon=False)
    axes.margins(x=0.08, y=0.08)
    named = [method for method in methods if method not in ahead and method not in beside]
    _name(axes, {method: (start[method].forwards, start[method].mean) for method in named},
          [(p.forwards, p.mean) for p in points])  # fmt: skip
    return figure


def _name(axes: Any, names: Mapping[str, tuple[float, float]], points: Sequence[tuple[float, float]]) -> None:
    """Each name as near its point as there is room, with a thin line to it; on the least crowded place where there is none."""
    from matplotlib.transforms import Bbox

    axes.figure.draw_without_rendering()  # the layout, and so the scale, is known from here on
    scale = axes.figure.dpi / 72
    taken = [Bbox.from_extents(x - 3, y - 3, x + 3, y + 3) for x, y in axes.transData.transform(points)]
    inside = axes.get_window_extent()
    for name, at in sorted(names.items(), key=lambda item: -item[1][1]):
        text = axes.annotate(name, at, (0, 0), textcoords="offset points", fontsize=5.5, color="#4B5563", ha="center", va="center",
                             arrowprops={"arrowstyle": "-", "linewidth": 0.3, "color": "#9CA3AF", "shrinkA": 0, "shrinkB": 2})  # fmt: skip
        box = text.get_window_extent()
        width, height = box.width / scale, box.height / scale
        best = (math.inf, (0.0, 0.0), box)
        for away, turn in product(range(3, 60, 4), range(16)):
            angle = 2 * math.pi * turn / 16
            move = (away + width / 2) * math.cos(angle), (away + height / 2) * math.sin(angle)
            there = box.translated(move[0] * scale, move[1] * scale)
            hidden = sum(there.overlaps(other) for other in taken) + 2 * (not inside.contains(*there.min)
                                                                          or not inside.contains(*there.max))  # fmt: skip
            best = min(best, (hidden + away / 1000, move, there), key=lambda found: found[0])
        text.set_position(best[1])
        taken.append(best[2])


def anchors(records: Sequence[Mapping[str, Any]]) -> Figure:
    """Accuracy and EOT ratio of every anchor text at the position most runs share, and against the position."""
    pyplot = _pyplot()
    placed = [(setting(record, "text"), setting(record, "at"), record) for record in records]
    found = [(text, at, record) for text, at, record in placed if text is not None]
    if not found:
        raise UserError("no run here has an anchor; `unmask figure anchors` without runs makes them")
    methods = list(dict.fromkeys(record["method"] for _, _, record in found))
    ats, texts = [at for _, at, _ in found], list(dict.fromkeys(text for text, _, _ in found))
    usual, first = max(ats, key=ats.count), max(texts, key=[text for text, _, _ in found].count)
    rows = [text for text in texts if any(t == text and at == usual for t, at, _ in found)]
    figure, axes = pyplot.subplots(
        1, 3, figsize=(6.8, 0.9 + 0.26 * max(5, len(rows))), layout="constrained", width_ratios=[3, 3, 4]
    )
    for i, name in enumerate(methods):
        mine = {text: record for text, at, record in found if at == usual and record["method"] == name}
        y = [rows.index(text) + 0.18 * (i - (len(methods) - 1) / 2) for text in mine]
        (colour, marker), values = LINES[i % len(LINES)], [_point(record) for record in mine.values()]
        axes[0].errorbar([a for a, _, _ in values], y, xerr=[[b for _, b, _ in values], [c for _, _, c in values]], linestyle="none",
                         color=colour, marker=marker, capsize=2, elinewidth=0.7, label=name)  # fmt: skip
        axes[1].plot(
            [record["summary"]["eot_ratio"] for record in mine.values()],
            y,
            linestyle="none",
            color=colour,
            marker=marker,
        )
        _curve(
            axes[2],
            i,
            [(-at, record) for text, at, record in found if text == first and record["method"] == name],
            name,
        )
    for axis, label in ((axes[0], "accuracy, %"), (axes[1], "EOT ratio")):
        axis.set(xlabel=label, yticks=range(len(rows)), ylim=(len(rows) - 0.5, -0.5))
        axis.set_yticklabels([f"“{text}”" for text in rows] if axis is axes[0] else [], parse_math=False)
        axis.grid(alpha=0.25, linewidth=0.5)
    axes[2].set(xlabel="anchor's place: slots before the end", ylabel="accuracy, %")
    axes[2].xaxis.get_major_locator().set_params(integer=True)
    axes[2].set_title(f"“{first}”", parse_math=False)
    axes[2].grid(alpha=0.25, linewidth=0.5)
    axes[2].legend(frameon=False)
    return figure
