"""What the near cache saves on the bundled model: multiplications counted, and time, as ratios within one run.

Tuning rows of the bundled tasks. Variants are decoded in turn, round after round, and the best round of each counts: anything
else the machine does only ever adds time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

import torch

from unmask.decoding.algorithm import Strategy, decode
from unmask.decoding.canvas import Canvas
from unmask.decoding.methods import METHODS
from unmask.decoding.rules.schedules import Fixed
from unmask.decoding.rules.selection import Quota
from unmask.decoding.running import run
from unmask.evaluation.recipe import for_task
from unmask.generation import Decoding, Generation, generations
from unmask.models.denoisers import chain
from unmask.models.model import Model
from unmask.models.near import FRONTIER
from unmask.tables import markdown
from unmask.tasks import find

TASKS = ("stories", "cups", "compass")
VARIANTS: dict[str, tuple[str, dict[str, Any], str | None]] = {
    "plain": ("sacm", {}, None),
    "refresh=1": ("sacm", {}, "near:refresh=1"),
    "near": ("sacm", {}, "near"),
    "near, finish": ("sacm", {"finish": 2}, "near"),
    "support, near, finish": ("sacm-support", {"finish": 2}, FRONTIER),
}  # name -> method, settings, cache
AIMS = {"near": 1 / 6, "near, finish": 1 / 9, "support, near, finish": 1 / 12}  # of plain decoding's work
BATCHES = (1, 50)


def timed(works: Mapping[str, Callable[[], Any]], seconds: float) -> dict[str, float]:
    """The best time of each, over as many rounds as fit into `seconds`, but at least two."""
    best = dict.fromkeys(works, math.inf)
    end = time.perf_counter() + seconds
    for turn in count():
        if turn > 1 and time.perf_counter() > end:
            return best
        for name, work in works.items():
            begun = time.perf_counter()
            work()
            best[name] = min(best[name], time.perf_counter() - begun)
    return best


def prompts(rows: int) -> list[str]:
    """As many tuning questions, from all three tasks."""
    each = [find(task).load("tuning", limit=-(-rows // len(TASKS))).rows for task in TASKS]
    return [row["question"] for some in zip(*each, strict=True) for row in some][:rows]


def measure(model: Model, seconds: float = 60, rows: int = 50) -> dict[str, Any]:
    """The work of every variant over plain SACM's on the same rows, and its time, one row at a time and all together."""
    asked = prompts(rows)
    strategies = {name: for_task(find("cups"), [m], wanted)[m] for name, (m, wanted, _) in VARIANTS.items()}

    def decoded(name: str, some: list[str], batch: int) -> list[Generation]:
        how = Decoding(length=96, batch=batch, cache=VARIANTS[name][2])
        return list(generations(model, some, strategies[name], how))

    made = {name: decoded(name, asked, rows) for name in VARIANTS}  # warms up
    work = {name: sum(g.work or 0 for g in found) for name, found in made.items()}
    took = {}
    for batch in BATCHES:
        some = asked[: 3 if batch == 1 else rows]
        works = {name: lambda name=name, some=some, batch=batch: decoded(name, some, batch) for name in VARIANTS}
        took[batch] = timed(works, seconds / len(BATCHES))
    return {
        "rows": rows,
        "work": {name: value / work["plain"] for name, value in work.items()},
        "forwards": {name: sum(g.forwards for g in found) / len(found) for name, found in made.items()},
        "time": {batch: {name: t / times["plain"] for name, t in times.items()} for batch, times in took.items()},
        "refresh_equal": [g.tokens for g in made["plain"]] == [g.tokens for g in made["refresh=1"]],
        **others(model, asked, seconds / 4),
    }


@torch.inference_mode()
def others(model: Model, asked: list[str], seconds: float) -> dict[str, Any]:
    """Rows that are done, and batches by length: time over that without them."""
    page = Canvas.blank([model.encode(prompt) for prompt in asked[:16]], 96, model.vocab)
    most = page.with_response(page.response.clone())
    most.response[1:, 8:] = model.tokens("is")[0]  # all rows but one have 8 slots to decode
    one = Strategy(select=Quota(Fixed(2)))

    def decoded(canvas: Canvas, cache: str) -> None:
        run(decode(canvas, one), chain(model.module, cache=cache).begin(canvas))

    works = {f"{cache}, {n}": lambda c=c, cache=cache: decoded(c, cache)
             for cache in ("prefix", "near") for n, c in (("all", page), ("most done", most))}  # fmt: skip
    done = timed(works, seconds)
    short, long = "Hello.", " ".join(["Hello."] * 60)
    mixed = [short, long] * 16
    how, plain = Decoding(length=16, steps=4, batch=8), METHODS["top-probability"]
    sorted_ = timed({
        "list": lambda: list(generations(model, mixed, plain, how)),
        "in order": lambda: list(generations(model, iter(mixed), plain, how)),  # type: ignore[arg-type]
    }, seconds)  # fmt: skip
    return {
        "most_rows_done": {cache: done[f"{cache}, most done"] / done[f"{cache}, all"] for cache in ("prefix", "near")},
        "batches_by_length": sorted_["list"] / sorted_["in order"],
    }


def table(record: Mapping[str, Any]) -> str:
    """Markdown: a row per variant, then what is measured once."""
    rows = []
    for name, value in record["work"].items():
        aim = f" (aim {AIMS[name]:.3f}, 1/{1 / AIMS[name]:.0f})" if name in AIMS else ""
        times = {f"time, batch {batch}": f"{ratios[name]:.2f}" for batch, ratios in record["time"].items()}
        if name == "refresh=1":
            times = {key: f"{value} (aim <= 1.05)" for key, value in times.items()}
        rows.append(
            {"over plain SACM": name, "forwards": record["forwards"][name], "work": f"{value:.3f}{aim}", **times}
        )
    done = ", ".join(f"{cache} {ratio:.2f}" for cache, ratio in record["most_rows_done"].items())
    return "\n".join([
        markdown(rows, list(rows[0])),
        f"{record['rows']} tuning rows; with refresh=1 the tokens are {'' if record['refresh_equal'] else 'NOT '}plain decoding's.",
        f"15 of 16 rows done early, over none: {done}.",
        f"prompts of two lengths, batches by length over batches in order: {record['batches_by_length']:.2f}.",
    ])  # fmt: skip
