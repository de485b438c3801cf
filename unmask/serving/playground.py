"""The playground's page and files, and what the page asks for besides the API: the methods with their settings, example questions,
the weights of the modulation, a grade, and a replay to keep. A method's text and a client's are only ever data here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import fields
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, TypeVar

from fastapi import FastAPI
from fastapi.responses import Response

from unmask import __version__
from unmask.decoding import settings
from unmask.decoding.about import FAMILIES
from unmask.decoding.algorithm import Strategy
from unmask.decoding.methods import ABOUT, METHODS
from unmask.errors import UserError
from unmask.generation import Decoding, open_canvas, response_length
from unmask.models.model import Model
from unmask.serving.engine import Limits, Refused
from unmask.serving.schema import Strict, Text, Unmask
from unmask.tasks import bundled, find, toy
from unmask.views import replay
from unmask.views.trace import parsed

if TYPE_CHECKING:
    from unmask.serving.api import API

Result = TypeVar("Result")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
SITE = {
    "/": ("unmask.serving.site", "playground.html", "text/html"),
    "/playground.js": ("unmask.serving.site", "playground.js", "text/javascript"),
    "/playground.css": ("unmask.serving.site", "playground.css", "text/css"),
    "/viewer.js": ("unmask.views.viewer", "viewer.js", "text/javascript"),
    "/viewer.css": ("unmask.views.viewer", "viewer.css", "text/css"),
}
FIRST = ("kappa", "beta", "gamma", "text", "at")  # the settings one looks for; the others follow
SLIDERS: dict[str, tuple[float, float]] = {  # where a slider goes; a setting may be set beyond it by typing
    "kappa": (1, 40), "beta": (0, 3), "gamma": (0, 3), "tau": (0, 1), "eps": (0, 1), "rho": (0.5, 20), "pace": (0.05, 2),
    "after": (0, 1), "low": (0, 1), "high": (0, 1), "relaxed": (0, 1), "temperature": (0, 2), "factor": (0, 4), "share": (0, 1),
}  # fmt: skip
EXAMPLES, SHOWN = 16, "cups-13"  # of each task, and the one that shows both of plain decoding's failures
SUGGESTED = (
    ("top-probability", "suffix-anchor", "sacm"),
    ("left-to-right", "sacm-first"),
)  # for a question, and one answered first


class Weighed(Strict):
    unmask: Unmask
    max_tokens: int | None = None


class Answered(Strict):
    example: Text
    text: Text


def add(app: FastAPI, api: API) -> None:
    """The routes. The page and its files need no key; what they ask for does."""
    model, defaults = api.engine.model, api.defaults

    async def prepared(work: Callable[[], Result], executor: Executor | None = api.preparing) -> Result:
        """Off the event loop, by default in the thread that owns the tokenizer; what cannot be done is the client's to mend."""
        try:
            return await asyncio.get_running_loop().run_in_executor(executor, work)
        except Exception as wrong:
            raise api.refused(wrong, own=True) from None

    for path, (package, name, kind) in SITE.items():
        content = (files(package.rpartition(".")[0]) / package.rpartition(".")[2] / name).read_bytes()
        headers = {"content-security-policy": POLICY} if path == "/" else {}

        def file(content: bytes = content, kind: str = kind, headers: dict[str, str] = headers) -> Response:
            return Response(content, media_type=kind, headers=headers)

        app.get(path, include_in_schema=False)(file)

    @app.get("/v1/unmask", include_in_schema=False)
    async def about_the_server() -> Any:
        rows = []
        for name, strategy in {**METHODS, **defaults.own}.items():
            with suppress(UserError):  # a method that the operator's settings do not fit: the API refuses it, too
                rows.append(_row(name, settings.applied(strategy, dict(defaults.settings))[0]))
        return {
            "version": __version__, "model": model.name, "length": model.length, "most": api.engine.limits.length, "method": defaults.name,
            "families": FAMILIES, "methods": rows, "suggested": SUGGESTED[0],
            "example": SHOWN, "examples": [{k: v for k, v in one.items() if k != "row"} for one in examples(model).values()],
        }  # fmt: skip

    @app.post("/v1/unmask/weight", include_in_schema=False)
    async def weight(body: Weighed) -> Any:
        def work() -> dict[str, Any]:
            strategy = api.wanted(body.unmask.method, body.unmask.settings)
            how = Decoding(length=body.max_tokens)
            if not 0 < response_length(model, how) <= api.engine.limits.length:
                raise UserError(f"L is a number from 1 to {api.engine.limits.length}")
            return weights(model, strategy, how)

        return await prepared(work)

    @app.post("/v1/unmask/grade", include_in_schema=False)
    async def grade(body: Answered) -> Any:
        found = examples(model).get(body.example)
        if found is None:
            raise Refused(404, f"there is no example {body.example[:100]!r}", param="example", code="not_found")
        graded = find(found["task"]).grade(body.text, found["row"])
        return {"correct": bool(graded.correct), "found": graded.extracted}

    @app.post("/v1/unmask/replay", include_in_schema=False)
    async def kept(body: dict[str, Any]) -> Any:
        def work() -> bytes:
            given, limits = body.get("runs"), api.engine.limits
            runs: list[Any] = given if isinstance(given, list) else []
            if len(runs) > 3 or not all(small(run, limits) for run in runs):
                raise UserError("the trace is damaged, or larger than what this server decodes")
            return replay.page(parsed(body, "the trace"), "unmask playground").encode()

        page = await prepared(work, None)  # it may take a while, and others have prompts to prepare
        return Response(
            page, media_type="text/html", headers={"content-disposition": 'attachment; filename="replay.html"'}
        )


def small(run: Any, limits: Limits) -> bool:
    """Is it no longer than what this server could have decoded?"""
    if not isinstance(run, dict) or type(run.get("length")) is not int or not isinstance(run.get("steps"), list):
        return False
    return 0 < run["length"] <= limits.length and len(run["steps"]) <= limits.forwards


def _row(name: str, strategy: Strategy) -> dict[str, Any]:
    known = ABOUT.get(name)
    return {
        "name": name, "family": known.family if known else "", "words": known.words if known else "a method of this server's own",
        "live": not any(hasattr(rule, "longest") for rule in strategy.revise),
        "settings": sorted(_settings(strategy), key=lambda one: FIRST.index(one["name"]) if one["name"] in FIRST else len(FIRST)),
    }  # fmt: skip


def _settings(strategy: Strategy) -> Iterator[dict[str, Any]]:
    """Those that `settings.offered` lists, and those that are True, False or None."""
    kinds = {f.name: str(f.type) for rule in (strategy, *settings.rules(strategy)) for f in fields(rule)}
    known = {name: (value, low, high) for name, value, low, high in settings.offered(strategy)}
    for rule in settings.rules(strategy):
        for f in fields(rule):
            value = getattr(rule, f.name)
            if f.name not in known and (
                isinstance(value, bool) or (value is None and kinds[f.name] in ("int | None", "float | None"))
            ):
                known[f.name] = value, None, None
    for name, (value, low, high) in known.items():
        kind = kinds.get(name.rpartition(".")[2], "")
        slides = SLIDERS.get(name) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
        slides = (
            slides if slides and slides[0] <= value <= slides[1] and round(20 * value, 6) % 1 == 0 else None
        )  # a slider goes by 0.05
        yield {
            "name": name, "value": value, "low": low, "high": high, "slides": slides, "whole": kind.startswith("int"),
            "none": "None" in kind,
        }  # fmt: skip


def weights(model: Model, strategy: Strategy, how: Decoding) -> dict[str, Any]:
    """w_i of the method's modulation as this model's tokenizer places its anchor; empty where there is none."""
    rule: Any = next((rule for rule in strategy.modifiers if callable(getattr(rule, "weight", None))), None)
    canvas = open_canvas(model, [[model.vocab.pad_id]], strategy, how)
    settings.check(strategy, strategy.steps(canvas.length), canvas)
    anchors = [i for i, yes in enumerate(canvas.anchors[0].tolist()) if yes]
    found = [round(w, 4) for w in rule.weight(canvas)[0].tolist()] if rule else []
    return {"weight": found, "anchors": anchors, "gamma": getattr(rule, "gamma", None), "length": canvas.length}


def examples(model: Model) -> dict[str, dict[str, Any]]:
    """Tuning rows of the tasks that the bundled model was made for; none for another model, whose benchmarks are not in the package."""
    return _examples() if model.length == find(toy.PLAIN[0]).length else {}


@cache
def _examples() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for task in map(find, (*toy.PLAIN, *toy.FIRST)):
        name = task.name
        for i, row in enumerate(bundled.make(name, "validation", EXAMPLES)):  # the first of the tuning rows
            found[f"{name}-{i}"] = {
                "id": f"{name}-{i}", "task": name, "prompt": task.render(row), "gold": str(row[task.gold]), "row": row,
                "methods": SUGGESTED[name in toy.FIRST],
            }  # fmt: skip
    return found
