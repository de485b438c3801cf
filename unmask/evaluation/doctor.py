"""What goes wrong with a model's decoding, and which method cures it: a few prompts decoded in several ways, and a verdict.

Of every response of L slots: the step at which each slot was decoded (-1: written before) and which slots are end-of-text."""

from __future__ import annotations

import re
import shlex
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

from unmask.decoding.algorithm import Strategy, SuffixAnchor
from unmask.decoding.methods import method, strategies
from unmask.decoding.settings import applied, parse
from unmask.evaluation.evaluate import decoding_for, load_rows, picture
from unmask.evaluation.metrics import NEAR, answer_time, near_anchor
from unmask.evaluation.recipe import for_task
from unmask.evaluation.significance import mean, paired
from unmask.generation import Decoding, Generation, Images, Prompt, generations
from unmask.models.model import Model
from unmask.progress import track
from unmask.tasks import Row, Task

METHODS = {"plain": "top-probability", "suppressed": "eot-suppression", "anchored": "suffix-anchor", "SACM": "sacm",
           "supported": "sacm-support"}  # fmt: skip
LIKED = ("SACM", "anchored", "suppressed", "plain")  # where nothing else decides, as the paper's tables rank them

# The share from which it is a symptom: of responses, answers, answers, slots decoded early; of choices: worth mentioning.
MANY_FLOODED, MANY_EMPTY, MANY_EARLY, MANY_NEAR, MANY_TIES = 0.5, 0.1, 0.25, 0.5, 0.1


@dataclass(frozen=True)
class Figures:
    """One way to decode, over all prompts; shares. None: it cannot be told."""

    rows: int
    steps: int  # T
    eot_ratio: float
    empty: float  # answers without a letter or digit
    flooded: float  # responses with a flood
    flood_step: float | None  # where it begins, the median of those
    early: float | None  # answers whose first token was decoded in the first 15 % of the steps
    near: (
        float | None
    )  # of the slots decoded in the first 15 % of the steps, those within 14 of the anchor; None: no anchor
    near_all: float | None  # the same for all slots: what decoding everywhere equally would give
    tie_rate: float
    agrees: float | None = None  # answers that follow from their own reasoning, of those that reason
    right: tuple[bool, ...] | None = None


@dataclass(frozen=True)
class Case:
    """The prompts to examine a model on, and how a command names them."""

    prompts: Sequence[Prompt]
    source: str  # "--task cups", "--prompts FILE"
    about: str  # "16 tuning rows of cups"
    images: Images | None = None
    task: Task | None = None
    rows: Sequence[Row] = ()  # of the task
    graded: bool = False  # the answers of test rows are not looked at, and code is not run

    @property
    def tunable(self) -> bool:
        return self.task is not None and self.task.tuning is not None


def of_task(task: Task, data: str | None, count: int) -> Case:
    """Tuning rows, drawn; where a task has none, the prompts of test rows."""
    split = "tuning" if task.tuning else "test"
    found = load_rows(task, split, data, count, shuffle=0)
    return Case(
        prompts=[task.ask(row, found.few_shot) for row in found.rows],
        source=f"--task {task.name}",
        about=f"{len(found.rows)} {split} rows of {task.name}"
        + ("" if task.tuning else " (no tuning rows: not graded)"),
        images=[picture(task, row, found.data.root) for row in found.rows] if task.image else None,
        task=task,
        rows=found.rows,
        graded=task.tuning is not None and not task.executes,
    )


def of_prompts(rows: Sequence[Mapping[str, Any]], file: str) -> Case:
    prompts = [row.get("messages") or row["prompt"] for row in rows]
    about = f"{len(rows)} prompt{'s' if len(rows) > 1 else ''} of {file}"
    return Case(prompts, f"--prompts {shlex.quote(file)}", about, [row.get("image") for row in rows])


def ways(case: Case, wanted: Mapping[str, Any]) -> dict[str, Strategy]:
    """The ways to decode with the task's settings, then the wanted ones. Support is advised by what is right only, so
    where nothing is graded its decoding is spared."""
    names = {way: name for way, name in METHODS.items() if way in LIKED or case.graded}
    every = list(names.values())
    found = for_task(case.task, every, wanted) if case.task else strategies(every, wanted)
    return {way: found[name] for way, name in names.items()}


# ---------------------------------------------------------------- figures


def flood_step(order: Sequence[int], ends: Sequence[bool]) -> int | None:
    """The first step (from 1) after which, to the end, at least half of the decoded slots are end-of-text; None: there is no
    flood. To the end, because the few slots behind a good answer are end-of-text too and may well be decoded first."""
    decoded = ended = 0
    since = None
    for step in sorted({when for when in order if when >= 0}):
        new = [end for when, end in zip(order, ends, strict=True) if when == step]
        decoded, ended = decoded + len(new), ended + sum(new)
        since = None if 2 * ended < decoded else since or step + 1
    return since


def is_empty(model: Model, tokens: Sequence[int], order: Sequence[int]) -> bool:
    """No letter or digit where the answer should be: behind what was pinned, otherwise in the whole response."""
    pinned = [i for i, when in enumerate(order) if when < 0]
    answer = tokens[pinned[-1] + 1 :] if pinned and pinned[-1] + 1 < len(tokens) else tokens
    return not re.search(r"\w", model.text(answer))


def figures(model: Model, case: Case, anchor: str, made: Sequence[Generation]) -> Figures:
    anchors = [model.tokens(anchor), model.tokens(" " + anchor)]
    ends = set(model.vocab.eot_ids)
    floods = [flood_step(g.order, [token in ends for token in g.tokens]) for g in made]
    times = [answer_time(g.tokens, g.order, g.forwards, anchors)["early_answer"] for g in made]
    pairs = list(zip(made, case.rows, strict=True)) if case.task else []
    follows = [case.task.agrees(g.text, row) for g, row in pairs] if case.task and case.task.agrees else []

    def share(values: Iterable[float | None]) -> float | None:
        return mean([float(value) for value in values if value is not None])

    return Figures(
        rows=len(made),
        steps=made[0].steps,
        eot_ratio=statistics.mean(g.eot_ratio for g in made),
        empty=statistics.mean(is_empty(model, g.tokens, g.order) for g in made),
        flooded=sum(step is not None for step in floods) / len(made),
        flood_step=statistics.median(found) if (found := [step for step in floods if step is not None]) else None,
        early=share(times),
        near=share(near_anchor(g.order, g.forwards) for g in made),
        near_all=share(near_anchor(g.order, g.forwards, early=1.0) for g in made),
        tie_rate=statistics.mean(g.tie_rate for g in made),
        agrees=share(follows),
        right=tuple(bool(case.task.grade(g.text, row).correct) for g, row in pairs)
        if case.task and case.graded
        else None,
    )


def examine(model: Model, case: Case, tried: Mapping[str, Strategy], decoding: Decoding) -> dict[str, Figures]:
    """The figures of every way to decode."""
    (anchor,) = cast("tuple[SuffixAnchor]", tried["SACM"].anchors)
    if case.task:
        decoding = decoding_for(model, case.task, decoding)
    found = {}
    for name, strategy in track(tried.items(), len(tried), "decoding"):
        made = generations(model, case.prompts, strategy, decoding, images=case.images)
        found[name] = figures(model, case, anchor.text, list(made))
    return found


# ---------------------------------------------------------------- verdict


def symptoms(f: Figures) -> list[str]:
    """What is wrong with a way to decode, in words; nothing, if nothing is."""
    found = []
    if f.flooded >= MANY_FLOODED:
        since = f"from step {f.flood_step:g} of {f.steps} on (EOT ratio {f.eot_ratio:.2f})"
        found.append(f"{f.flooded:.0%} of its responses flood with end-of-text, {since}")
    if f.empty >= MANY_EMPTY:
        found.append(f"{f.empty:.0%} of its answers are empty")
    haste = [f"commit {f.early:.0%} of its answers, before the reasoning"] if answers_early(f) else []
    haste += [f"decode {f.near:.0%} of their slots within {NEAR} of the anchor"] if crowds(f) else []
    if haste:  # one symptom, not two: the answer is near the anchor
        found.append(f"the first 15 % of the steps {' and '.join(haste)}")
    return found


def answers_early(f: Figures) -> bool:
    return f.early is not None and f.early >= MANY_EARLY


def crowds(f: Figures) -> bool:
    """Do the first steps decode around the anchor? A response so short that half of it is near cannot tell."""
    return f.near is not None and f.near >= max(MANY_NEAR, 2 * (f.near_all or 0.0))


def count(f: Figures) -> int:
    return sum(f.right or ())


def surely(a: Figures, b: Figures) -> bool:
    """Is a right on more of the same rows than b, beyond chance (McNemar's p < 0.05)?"""
    return (
        bool(a.right and b.right) and count(a) > count(b) and paired(a.right or (), b.right or (), resamples=1).p < 0.05
    )


def choose(found: Mapping[str, Figures]) -> str:
    """Plain if it has no symptom; otherwise, of those with the fewest, the one right most often (ties: in the order of LIKED).
    Either gives way to one that is right on significantly more rows, and that to support where it is better still, also
    than SACM: what goes beyond the paper has to prove itself."""
    fewest = min(len(symptoms(found[name])) for name in LIKED)
    pick = max((name for name in LIKED if len(symptoms(found[name])) == fewest), key=lambda name: count(found[name]))
    pick = pick if symptoms(found["plain"]) else "plain"
    best = max(LIKED, key=lambda name: count(found[name]))
    pick = best if surely(found[best], found[pick]) else pick
    proven = "supported" in found and all(surely(found["supported"], found[name]) for name in (pick, "SACM"))
    return "supported" if proven else pick


def verdict(
    found: Mapping[str, Figures], case: Case, typed: str = "", settings: Sequence[str] = (), float32: bool = True
) -> tuple[list[str], str, str]:
    """(plain words, the method advised, the command to run next); `typed` and `settings` (NAME=VALUE) are what the command
    line had besides."""
    plain, anchored, sacm = found["plain"], found["anchored"], found["SACM"]
    pick, words = choose(found), []
    for name in found if symptoms(plain) else ("plain",):
        healthy = f"no symptom (EOT ratio {found[name].eot_ratio:.2f}, {found[name].empty:.0%} empty)"
        words.append(f"{name[0].upper() + name[1:]}: {'; '.join(symptoms(found[name])) or healthy}.")
    if plain.flooded >= MANY_FLOODED and not case.graded:
        words.append("If these prompts ask for short answers, much end-of-text is as it should be.")
    hasty = answers_early(anchored), anchored.early, sacm.early, "the answers early"
    crowded = crowds(anchored), anchored.near, sacm.near, "the first slots near it"
    for ill, alone, modulated, what in (hasty, crowded):
        if ill and alone is not None and modulated is not None:
            change = "brings that down to" if modulated <= alone / 2 else "leaves"
            words.append(f"The anchor alone has {alone:.0%} of {what}; SACM {change} {modulated:.0%}.")
    if anchored.agrees is not None and sacm.agrees is not None:
        shares = f"{anchored.agrees:.0%} with the anchor, {sacm.agrees:.0%} with SACM"
        words.append(f"Answers that follow from their own reasoning: {shares}.")
    words += right_words(found)
    if (ties := max(f.tie_rate for f in found.values())) >= MANY_TIES:
        cure = "ties go to the leftmost slot" if float32 else "--dtype float32 tells most of them apart"
        words.append(f"Up to {ties:.0%} of the choices are ties: {cure}.")
    return [*words, advice(found, pick)], METHODS[pick], next_command(found, pick, case, typed, settings)


def right_words(found: Mapping[str, Figures]) -> list[str]:
    if any(f.right is None for f in found.values()):
        return []
    n, best = found["plain"].rows, max(LIKED[::-1], key=lambda name: count(found[name]))  # ties: the plainest
    words = [f"Right, of {n}: " + ", ".join(f"{name} {count(f)}" for name, f in found.items()) + "."]
    if count(found["SACM"]) < count(found[best]):
        sure = "" if surely(found[best], found["SACM"]) else f", though {n} rows cannot tell"
        words.append(f"{best.capitalize()} is right more often than SACM{sure}.")
    elif best != "plain" and not surely(found[best], found["plain"]):
        words.append(f"{n} rows do not tell {best} from plain decoding (McNemar p >= 0.05); --count takes more.")
    if "supported" in found:
        words.append(support_words(found["supported"], found["SACM"]))
    if max(map(count, found.values())) < 0.3 * n:
        words.append(
            "Few are right whatever the method: the model, the prompt or the length may be at fault, not the order of decoding."
        )
    return words


def support_words(supported: Figures, sacm: Figures) -> str:
    """sacm-support against SACM on the same rows, and whether so few can tell."""
    more, p = count(supported) - count(sacm), paired(supported.right or (), sacm.right or (), resamples=1).p
    if not more:
        return "sacm-support is right as often as SACM."
    than = f"of the same rows than SACM ({more:+d} of {sacm.rows}, p = {p:.2g})"
    kind = "more" if more > 0 else "fewer"
    if p < 0.05:
        return f"sacm-support is right on significantly {kind} {than}."
    return f"sacm-support is right on {kind} {than}, but {sacm.rows} rows cannot tell; --count takes more."


def advice(found: Mapping[str, Figures], pick: str) -> str:
    cured = [name for name in LIKED if not symptoms(found[name])]
    if pick == "plain" and pick in cured:
        return "Nothing is wrong: keep plain decoding (top-probability)."
    if pick == "supported":
        return "Use sacm-support."
    if pick in cured:
        return "Use sacm." if pick == "SACM" else f"Use {METHODS[pick]}; SACM does not help further here."
    if cured:
        return f"Use {METHODS[pick]} all the same: it is surely right more often than those without a symptom."
    return (
        f"None of the paper's four methods is without a symptom; {METHODS[pick]} comes nearest."
        if pick != "plain"
        else "None of the paper's four methods cures it."
    )


def next_command(found: Mapping[str, Figures], pick: str, case: Case, typed: str, settings: Sequence[str]) -> str:
    """Tune where SACM is advised and still has symptoms, else measure (a task) or decode (prompts) with what is advised.
    A setting is passed on where a method of that command has it."""
    methods = [METHODS[pick]]
    if case.task is None:
        command = f"generate {case.source} --method {METHODS[pick]}"
    elif pick == "SACM" and symptoms(found[pick]) and case.tunable:
        command, settings = (
            f"tune {case.source}",
            [s for s in settings if not set(parse([s])) & {"kappa", "beta", "gamma"}],
        )
    else:
        methods.append("sacm" if pick in ("plain", "supported") else "top-probability")
        command = f"eval {case.source} --methods {','.join(methods)}"
    code = ["--allow-code"] if case.task and case.task.executes else []
    owned = [s for s in settings if any(applied(method(name), parse([s]))[1] for name in methods)]
    return " ".join(
        ["unmask", command, *([typed] if typed else []), *code, *(f"--set {shlex.quote(s)}" for s in owned)]
    )


# ---------------------------------------------------------------- what is printed


def table(found: Mapping[str, Figures]) -> str:
    """Within 80 columns."""

    def share(value: float | None) -> str:
        return "-" if value is None else f"{value:.0%}"

    heads = ("", "EOT", "empty", "flooded", "from step", "early", "near", "ties", "follows", "right")
    lines = [
        (name, f"{f.eot_ratio:.2f}", share(f.empty), share(f.flooded), "-" if f.flood_step is None else f"{f.flood_step:g}/{f.steps}",
         share(f.early), share(f.near), share(f.tie_rate), share(f.agrees), "-" if f.right is None else f"{count(f)}/{f.rows}")
        for name, f in found.items()
    ]  # fmt: skip
    widths = [max(len(line[i]) for line in (heads, *lines)) for i in range(len(heads))]
    return "\n".join(
        "  ".join(
            cell.rjust(w) if i else cell.ljust(w) for i, (cell, w) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in (heads, *lines)
    )


LEGEND = """EOT: share of end-of-text. empty: no letter or digit in the answer. flooded:
half or more is end-of-text, from that step on. early: the answer begins in the
first 15 % of the steps. near: slots decoded in these within 14 of the anchor.
follows: the answer follows from its own reasoning."""


def record(found: Mapping[str, Figures], words: Sequence[str], method: str, command: str) -> dict[str, Any]:
    methods = {name: {"method": METHODS[name], **asdict(f)} for name, f in found.items()}
    return {"methods": methods, "verdict": list(words), "advised": method, "next": command}
