"""What identifies a run: everything that decides which tokens come out, and where it was run."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch

from unmask import __version__
from unmask.decoding.algorithm import Strategy
from unmask.decoding.methods import strategies
from unmask.decoding.rules.confidence import Uniform
from unmask.decoding.rules.published import PublishedChance, PublishedUniform
from unmask.decoding.rules.tokens import Gumbel
from unmask.decoding.settings import rules, simple
from unmask.errors import UserError
from unmask.generation import Decoding, reading
from unmask.models.model import Model
from unmask.plugins import called, code_hash
from unmask.tasks import Rows, Task, known


@dataclass(frozen=True)
class Options(Decoding):
    """How to decode and how to grade, the same for every method of an evaluation."""

    seeds: int = 1  # runs of a method that draws at random
    mode: str = ""  # of grading; the parity modes are recorded beside it anyway
    allow_code: bool = False
    unisolated: bool = False
    vote: str = ""  # temporal or blocks: answers of several steps or decodes vote
    model_options: Mapping[str, Any] = field(default_factory=dict)  # quantize, revision: part of the recipe

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.vote not in ("", "temporal", "blocks"):
            raise UserError(f"a vote is temporal or blocks, not {self.vote!r}")
        if self.seeds < 1:
            raise UserError(f"seeds is at least 1, not {self.seeds}")
        if self.infill is not None or self.samples != 1:
            raise UserError("an evaluation decodes whole responses, one for each row: leave out infill and samples")


def for_task(
    task: Task, methods: Sequence[str] | Mapping[str, Strategy], wanted: Mapping[str, Any] | None = None
) -> dict[str, Strategy]:
    """Methods by name (or strategies by what they are called) with the task's anchor and (kappa, beta, gamma), then the user's
    settings; finish=True waits for the task's longest answer."""
    wanted = dict(wanted or {})
    if wanted.get("finish") is True:
        if task.answer_tokens is None:
            raise UserError(
                f"{task.name} does not say how many tokens an answer has: set finish to a number, as in finish=4"
            )
        wanted["finish"] = task.answer_tokens
    damping = {f"AnchorModulation.{name}": value for name, value in task.settings.items()}
    return strategies(methods, wanted, {**damping, "text": task.anchor})


def draws(strategy: Strategy, options: Options) -> bool:
    """Does the method draw random numbers?"""
    kinds = (Gumbel, Uniform, PublishedUniform, PublishedChance)
    strategy = replace(strategy, read=reading(strategy.read, options.temperature, ()))
    return any(isinstance(rule, kinds) for rule in rules(strategy))


def frequency_hash(model: Model) -> str | None:
    table = model.vocab.frequency
    return None if table is None else hashlib.sha256(table.detach().cpu().float().numpy().tobytes()).hexdigest()


def recipe(model: Model, task: Task, strategy: Strategy, rows: Rows, options: Options, seed: int) -> dict[str, Any]:
    """Everything that decides which tokens come out. Two runs with one recipe give the same answers."""
    length = options.length or task.length
    asked = json.dumps([task.ask(row, rows.few_shot) for row in rows.rows], ensure_ascii=False)
    if re.search(
        r"<[^<>]* at 0x[0-9a-f]+>", repr(strategy)
    ):  # an address: it says nothing, or next time something else
        raise UserError(f"a rule must show its settings: make it a frozen dataclass; this is {strategy!r:.200}")
    later = {  # only where there is something to say, so that older recipes stay as they were
        "system": options.system,
        "ban": options.ban,
        "code_sha256": code_hash(strategy, task),
        "grader": other_grader(task),
        "grader_version": task.grader_version,
        "vote": options.vote,
    }
    return {
        "strategy": repr(strategy),
        "denoiser": repr(model.denoiser(options.cfg, options.cache)),
        "cfg": options.cfg,
        "cache": options.cache,
        "length": length,
        "steps": strategy.steps(length, options.steps),
        "steps_given": options.steps is not None,
        "temperature": options.temperature,
        "seed": seed,
        "batch": options.batch,
        "grading": options.mode or task.mode or "default",
        "frequency_sha256": frequency_hash(model),
        "model": model.name,
        "weights_sha256": model.weights_hash,
        "model_options": dict(options.model_options),
        "dtype": str(next(model.module.parameters()).dtype),
        "task": task.name,
        "anchor": task.anchor,
        "anchor_ids": model.tokens(task.anchor),
        "chat": task.chat and not options.raw,
        "layout": task.layout,
        "stop": [*task.stop, *options.stop],
        "data_sha256": rows.data.sha256,
        "prompts_sha256": hashlib.sha256(asked.encode()).hexdigest(),
        "rows": len(rows.rows),
        **{name: value for name, value in later.items() if value},
    }


def other_grader(task: Task) -> str:
    """The name of a grader that is not the one this task was published with; "" where it is."""
    built_in = known().get(task.name)
    same = built_in and (built_in.grade, built_in.modes) == (task.grade, task.modes)
    return "" if same else called(task.grade)


def settings(strategy: Strategy) -> dict[str, Any]:
    """The method's settings by name, as data: what figures and reports read from a run."""
    own = {"block": strategy.block, "pace": strategy.pace, "confidence": type(strategy.confidence).__name__}
    return {
        **{f.name: value for rule in rules(strategy) for f in fields(rule) if simple(value := getattr(rule, f.name))},
        **own,
    }


def stem(name: str, identity: Mapping[str, Any]) -> str:
    """The name of a run's files: the method and the hash of its recipe."""
    return f"{name}-{digest(identity)[:12]}"


def provenance(model: Model, rows: Rows) -> dict[str, Any]:
    """Where it was run and on what: for the reader, not part of the recipe."""
    data, shots = rows.data, rows.shots
    versions: dict[str, str | None] = {"unmask": __version__, "python": platform.python_version()}
    for name in ("torch", "transformers", "tokenizers", "math-verify"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    return {
        "data": {
            "origin": data.origin,
            "revision": data.revision,
            "sha256": data.sha256,
            "skipped": list(data.skipped),
        },
        "shots": shots and {"origin": shots.origin, "revision": shots.revision, "sha256": shots.sha256},
        "versions": versions,
        "device": str(model.device),
        "platform": platform.platform(),
        "command": sys.argv,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def machine() -> dict[str, Any]:
    """What speed depends on."""
    return {
        "torch": torch.__version__, "threads": torch.get_num_threads(), "machine": platform.machine(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
    }  # fmt: skip


def digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()
