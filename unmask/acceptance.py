"""What the toy suite says of a model: the gates on the model alone, and the paper's table and predictions by decoding.

B rows, L response slots.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from unmask.algorithm import Strategy, SuffixAnchor
from unmask.errors import UserError
from unmask.methods import METHODS
from unmask.statistics import Paired, Z, mean, paired, spread, wilson
from unmask.tasks import toy

PROBES = ("copied", "first", "later", "chain", "anchored", "direct", "glance")


def probe(
    module: Any,
    tokenizer: Any,
    worlds: Sequence[str],
    split: str,
    count: int,
    length: int,
    kinds: Iterable[str] = PROBES,
) -> dict[str, dict[str, float]]:
    """How often one slot is right when the model sees nothing to the right of what it is asked.

    copied: the last operation of the chain, with the true text before it. first, later: the first and the last result,
    likewise. chain: the answer after the true chain. anchored: the same, with the answer 20 slots before the end and
    masks between. direct: the answer alone at the start of the response. glance: as anchored, but with no chain at all.
    Of an answer the likeliest possible one counts: a colon before it ("The answer is: C") is wording.
    In a world asked for the answer first, "The answer is" opens every response and the answer behind it is hidden: copied,
    first and later see no more than that and the text before them; chain is the front answer with the true chain behind
    it; anchored the same, with masks behind the chain up to a "." 8 slots before the end; direct the front answer with
    nothing behind it; glance the same, with that ".".
    """
    mask, found = module.config.mask_token_id, {}
    for world in worlds:
        asked = toy.questions(world, split, count)
        prompts = [
            tokenizer.apply_chat_template([{"role": "user", "content": q.prompt}], tokenize=True)["input_ids"]
            for q in asked
        ]
        answers = [tokenizer.get_vocab()[answer] for answer in toy.WORLDS[world].answers]
        found[world] = {
            kind: _right(module, tokenizer, prompts, [_partial(q, kind, length) for q in asked], length, mask,
                         None if kind in ("copied", "first", "later") else answers)
            for kind in kinds
        }  # fmt: skip
    return found


def _partial(question: toy.Question, kind: str, length: int) -> tuple[dict[int, str], int, str]:
    """Words by slot, the slot asked about, and what stands there in truth."""
    answer, words = ["The", "answer", "is"], toy.words(toy.reasoning(question, "Let us see."))
    if toy.WORLDS[question.world].first:
        front, behind, last = dict(enumerate(answer)) | {4: "."}, dict(enumerate(words, 5)), {length - 8: "."}
        if kind in ("chain", "anchored", "direct", "glance"):
            shown = {"chain": front | behind, "anchored": front | behind | last, "direct": dict(enumerate(answer)), "glance": front | last}
            return shown[kind], 3, question.answer
        given, slot, truth = _partial(replace(question, world=question.world.removesuffix(toy.SUFFIX)), kind, length)
        return front | {at + 5: word for at, word in given.items()}, slot + 5, truth
    end = length - 20
    if kind == "direct":
        return dict(enumerate(answer)), 3, question.answer
    if kind == "glance":
        return dict(enumerate(answer, end)), end + 3, question.answer
    if kind == "chain":
        return dict(enumerate(words + answer)), len(words) + 3, question.answer
    if kind == "anchored":
        return dict(enumerate(words)) | dict(enumerate(answer, end)), end + 3, question.answer
    if kind == "copied":
        slot = words.index(toy.ORDINALS[len(question.operations) - 1]) + 1
    else:
        results = [i + 1 for i, word in enumerate(words) if word == "makes"]
        slot = results[0 if kind == "first" else -1]
    return dict(enumerate(words[:slot])), slot, words[slot]


@torch.no_grad()
def _right(
    module: Any,
    tokenizer: Any,
    prompts: list[list[int]],
    partial: list[tuple[dict[int, str], int, str]],
    length: int,
    mask: int,
    among: list[int] | None,
) -> float:
    known, width = tokenizer.get_vocab(), max(map(len, prompts))
    ids = torch.full((len(prompts), width + length), mask)
    valid = torch.ones_like(ids, dtype=torch.bool)
    for row, (prompt, (given, _, _)) in enumerate(zip(prompts, partial, strict=True)):
        ids[row, : width - len(prompt)], valid[row, : width - len(prompt)] = tokenizer.pad_token_id, False
        ids[row, width - len(prompt) : width] = torch.tensor(prompt)
        for slot, word in given.items():
            ids[row, width + slot] = known[word]
    slots = torch.tensor([slot for _, slot, _ in partial])
    truth = torch.tensor([known[word] for _, _, word in partial])
    hits = 0
    for rows in torch.arange(len(prompts)).split(100):
        hidden = module.hidden(ids[rows], valid[rows])
        logits = module.head(hidden[torch.arange(len(rows)), width + slots[rows]])
        best = torch.tensor(among)[logits[:, among].argmax(-1)] if among else logits.argmax(-1)
        hits += int((best == truth[rows]).sum())
    return hits / len(prompts)


@dataclass(frozen=True)
class Run:
    """A method as it is decoded here: `share` of L is the number of steps where the method's own pace is not meant."""

    strategy: Strategy
    share: float | None = None
    rainbow: bool = False  # on the rainbow-padded checkpoint
    sweep: bool = False  # beside the main table: on the first 40 % of the rows


TABLE = list(METHODS)[: list(METHODS).index("sacm") + 1]  # the main table's rows
# In proportion to L = 256 of the paper, positions -20 .. -60 are -8 .. -23 here; -20 is the default.
ANCHORS = ("Therefore, the answer is", "Answer:", ",", ".", "is")
PLACES = (-8, -12, -16, -23)
RUNS: dict[str, Run] = {
    "left-to-right": Run(
        Strategy(block=1, pace=1, anchors=(SuffixAnchor("Let us see.", 0),))
    ),  # a reasoned opening, given
    **{name: Run(METHODS[name], rainbow=name == "rainbow-padding") for name in TABLE},
    "sacm gamma=0": Run(METHODS["sacm"].with_(gamma=0), sweep=True),
    "sacm L/8": Run(METHODS["sacm"], 1 / 8),
    **{f"semi-ar {block} L/8": Run(METHODS["semi-ar"].with_(block=block), 1 / 8) for block in (8, 16, 32, 64)},
    **{f"sacm {text!r}": Run(METHODS["sacm"].with_(text=text), sweep=True) for text in ANCHORS},
    **{f"sacm {at}": Run(METHODS["sacm"].with_(at=at), sweep=True) for at in PLACES},
}


def measure(model: Any, run: Run, world: str, split: str, count: int, batch: int = 50) -> dict[str, Any]:
    """Decode questions: which are right, how many agree with their own reasoning, and what was committed when."""
    from unmask.generation import generations

    count = max(1, round(0.4 * count)) if run.sweep else count
    asked, length = toy.questions(world, split, count), model.length
    alike = sorted(range(count), key=lambda i: len(asked[i].operations))  # rows of one length need no padding
    steps = round(run.share * length) if run.share else None
    anchor = next((a for a in run.strategy.anchors if isinstance(a, SuffixAnchor) and a.at < 0), None)
    right, reasoned, agree, ends, forwards, before = ["0"] * count, 0, 0, 0.0, 0, []
    made = generations(model, [asked[i].prompt for i in alike], run.strategy, length=length, steps=steps, batch=batch)
    for i, generation in zip(alike, made, strict=True):
        right[i] = "01"[toy.right(asked[i], generation.text)]
        consistent = toy.agrees(asked[i], generation.text)
        reasoned, agree = reasoned + (consistent is not None), agree + bool(consistent)
        ends, forwards = ends + generation.eot_ratio_all, forwards + generation.forwards
        if anchor:
            slot = length + anchor.at
            committed = generation.order[slot + len(model.tokens(anchor.text))]
            before.append(sum(order < committed for order in generation.order[:slot]) / slot)
    return {
        "right": right.count("1"), "asked": count, "rights": "".join(right), "reasoned": reasoned, "agree": agree,
        "eot": ends / count, "forwards": forwards / count, "before": mean(before), "before_spread": spread(before) if before else None,
    }  # fmt: skip


def accept(
    model: Any, rainbow: Any, out: Path, *, split: str = "test", count: int = 500, runs: Sequence[str] = tuple(RUNS),
    worlds: Sequence[str] = toy.PLAIN, jobs: int = 1, tell: Callable[[str], None] = lambda line: None,
) -> list[dict[str, Any]]:  # fmt: skip
    """Every run on every world, a JSON line each as it is done; what `out` already holds of these weights is not done again."""
    if unknown := [name for name in runs if name not in RUNS]:
        raise UserError(f"there is no run {unknown[0]!r}; there are {', '.join(RUNS)}")
    found = [json.loads(line) for line in out.read_text().splitlines()] if out.is_file() else []
    same, weights = {"split": split, "count": count}, [model.weights_hash[:16], rainbow.weights_hash[:16]]
    keys = [
        {"run": name, "world": world, **same, "weights": weights[name in RUNS and RUNS[name].rainbow]}
        for name in ("probes", *runs) for world in (*worlds, *(w + toy.SUFFIX for w in worlds if name == "probes"))
    ]  # fmt: skip
    missing = [key for key in keys if not any(key.items() <= record.items() for record in found)]
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("a") as file:
        for record in _measured(model, rainbow, missing, jobs):
            found.append(record)
            file.write(json.dumps(record) + "\n")
            file.flush()
            tell(json.dumps(record))
    return [r for key in keys for r in found if key.items() <= r.items()]


def _measured(model: Any, rainbow: Any, keys: Sequence[dict[str, Any]], jobs: int) -> Iterator[dict[str, Any]]:
    """The records of these keys, as they are done: here, or in processes of one thread each."""
    if jobs == 1:
        yield from (_record(model, rainbow, key) for key in keys)
        return
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from multiprocessing import get_context

    with ProcessPoolExecutor(jobs, get_context("spawn"), _open, (str(model.path), str(rainbow.path))) as pool:
        for done in as_completed([pool.submit(_record_there, key) for key in keys]):
            yield done.result()


def _open(model: str, rainbow: str) -> None:
    """In a process of its own: the models its records are measured with."""
    import unmask

    torch.set_num_threads(1)
    _OPENED[:] = [unmask.load(model), unmask.load(rainbow)]


_OPENED: list[Any] = []


def _record_there(key: dict[str, Any]) -> dict[str, Any]:
    return _record(_OPENED[0], _OPENED[1], key)


def _record(model: Any, rainbow: Any, key: dict[str, Any]) -> dict[str, Any]:
    name, world, split, count = (key[part] for part in ("run", "world", "split", "count"))
    if name == "probes":
        return {**key, **probe(model.module, model.tokenizer, [world], split, count, model.length)[world]}
    return {**key, **measure(rainbow if RUNS[name].rainbow else model, RUNS[name], world, split, count)}


FROZEN = Path(__file__).parent / "checkpoints" / "frozen.json"


def hashes(*directories: Path) -> dict[str, str]:
    """sha256 of what was fixed before any method was decoded on test rows: weights, tokenizers and the tasks themselves."""
    files = [Path(toy.__file__)]
    for directory in directories:
        files += [directory / "model.safetensors", directory / "tokenizer.json"]
    return {f"{file.parent.name}/{file.name}": hashlib.sha256(file.read_bytes()).hexdigest() for file in files if file.is_file()}


def freeze(*directories: Path) -> None:
    FROZEN.write_text(json.dumps(hashes(*directories), indent=1) + "\n")


def check_frozen(*directories: Path) -> None:
    """Test rows are decoded only with what was frozen."""
    kept = json.loads(FROZEN.read_text()) if FROZEN.is_file() else {}
    changed = [name for name, value in hashes(*directories).items() if kept.get(name) != value]
    if changed:
        raise UserError(
            f"{', '.join(changed)} changed since they were frozen; use --split validation, or freeze them first (--freeze)"
        )


def share(right: int, asked: int) -> str:
    low, high = wilson(right, asked)
    return f"{100 * right / asked:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


@dataclass(frozen=True)
class Suite:
    """The records of one acceptance, by run and world."""

    records: list[dict[str, Any]]
    worlds: tuple[str, ...] = toy.PLAIN

    def of(self, run: str, worlds: Sequence[str] = ()) -> list[dict[str, Any]]:
        worlds = worlds or self.worlds
        found = [r for world in worlds for r in self.records if r["run"] == run and r["world"] == world]
        return found if len(found) == len(worlds) else []

    def mean(self, run: str, figure: str = "right") -> float | None:
        found = self.of(run)
        if not found or found[0].get(figure) is None:
            return None
        return sum(r[figure] / (r["asked"] if figure == "right" else 1) for r in found) / len(found)

    def gates(self) -> list[tuple[str, str, bool | None]]:
        """(what, figures, passed): they concern the model alone."""

        def chance(world: str) -> float:
            return toy.WORLDS[world].chance

        def first(what: str, kind: str, passes: Callable[[float, str], bool]) -> tuple[str, str, bool | None]:
            return self._gate(f"answer first: {what}", "probes", kind, passes, toy.FIRST)

        return [
            self._gate("answer after the true chain >= 98", "probes", "chain", lambda x, world: x >= 0.98),
            self._gate("the same, 20 slots before the end", "probes", "anchored", lambda x, world: x >= 0.98),
            self._gate("left to right, reasoning, >= 90", "left-to-right", "right", lambda x, world: x >= 0.9),
            self._gate(
                "direct answer at most 20 above chance", "probes", "direct", lambda x, world: x <= chance(world) + 0.2
            ),
            self._gate("glance at most 20 above chance", "probes", "glance", lambda x, world: x <= chance(world) + 0.2),
            self._gate("top-probability's EOT ratio >= 60", "top-probability", "eot", lambda x, world: x >= 0.6),
            first("the last result after the true text before it >= 98", "later", lambda x, world: x >= 0.98),
            first("the answer in front of the true chain >= 98", "chain", lambda x, world: x >= 0.98),
            first('the same, with a "." 8 slots before the end', "anchored", lambda x, world: x >= 0.98),
            first("direct answer at most 20 above chance", "direct", lambda x, world: x <= chance(world) + 0.2),
            first("glance at most 20 above chance", "glance", lambda x, world: x <= chance(world) + 0.2),
        ]

    def _gate(
        self, what: str, run: str, kind: str, passes: Callable[[float, str], bool], worlds: Sequence[str] = ()
    ) -> tuple[str, str, bool | None]:
        found = self.of(run, worlds)
        if not found:
            return what, "not run", None
        shares = {r["world"]: r[kind] / r["asked"] if kind == "right" else r[kind] for r in found}
        counted = {world: share(round(x * found[0]["count"]), found[0]["count"]) for world, x in shares.items()}
        text = ", ".join(
            f"{world} {f'{100 * shares[world]:.1f}' if kind == 'eot' else counted[world]}" for world in shares
        )
        return what, text, all(passes(x, world) for world, x in shares.items())

    def against(self, run: str, other: str) -> Paired | None:
        """run - other on the rows both were asked, all worlds together: every world has as many."""
        ours: list[bool] = []
        theirs: list[bool] = []
        for a, b in zip(self.of(run), self.of(other), strict=False):
            both = min(a["asked"], b["asked"])
            ours += [x == "1" for x in a["rights"][:both]]
            theirs += [x == "1" for x in b["rights"][:both]]
        return paired(ours, theirs) if ours else None

    def predictions(self) -> list[tuple[str, str, bool | None]]:
        """The paper's, on the suite's average: differences to SACM on the same rows with their 95 % intervals."""
        rows: list[tuple[str, str, bool | None]] = []

        def say(what: str, runs: Sequence[str], holds: Callable[[Paired], bool], sacm: str = "sacm") -> None:
            found = {run: self.against(run, sacm) for run in runs}
            known = {run: pair for run, pair in found.items() if pair}
            if not known or len(known) < len(runs):
                rows.append((what, "not run", None))
                return
            text = [f"{run} {100 * p.difference:+.1f} [{100 * p.interval[0]:+.1f}, {100 * p.interval[1]:+.1f}]" for run, p in known.items()]
            rows.append((what, ", ".join(text), all(map(holds, known.values()))))

        say("top-probability and top-margin at least 30 points under SACM", ["top-probability", "top-margin"],
            lambda p: p.difference <= -0.3)  # fmt: skip
        shares = {run: (self.mean(run, "before"), self.reach(run)) for run in ("suffix-anchor", "sacm")}
        early, late = shares["suffix-anchor"][0], shares["sacm"][0]
        what = "the anchor alone commits the answer before the reasoning (share of the text before it already decoded)"
        if early is None or late is None:
            rows.append((what, "not run", None))
        else:
            text = ", ".join(f"{run} {100 * (x or 0):.1f} ± {100 * reach:.1f} %" for run, (x, reach) in shares.items())
            rows.append((what, text, early < late - 0.1))
        say("the anchor alone at least 10 points under SACM", ["suffix-anchor"], lambda p: p.difference <= -0.1)
        free = [name for name in TABLE if name not in ("sacm", "rainbow-padding")]
        say("SACM beats or ties every training-free method at T = L/2", free, lambda p: p.interval[0] <= 0)
        say("SACM beats every semi-AR block size at T = L/8", [f"semi-ar {b} L/8" for b in (8, 16, 32, 64)],
            lambda p: p.difference < 0, "sacm L/8")  # fmt: skip
        say("any anchor works (within 10 points)", [f"sacm {text!r}" for text in ANCHORS], lambda p: p.difference >= -0.1)
        say("any place works (within 10 points)", [f"sacm {at}" for at in PLACES], lambda p: p.difference >= -0.1)
        say("progress dependence helps", ["sacm gamma=0"], lambda p: p.difference < 0)
        return rows

    def reach(self, run: str) -> float:
        """Half of the 95 % interval of the mean share decoded before the answer."""
        found = self.of(run)
        return Z * sum(r["before_spread"] ** 2 / r["asked"] for r in found) ** 0.5 / len(found) if found else 0.0

    def markdown(self) -> str:
        """The whole of it for the model card."""
        lines = ["| gate | figures | passed |", "|---|---|---|"]
        lines += [f"| {what} | {text} | {_word(ok, 'yes', 'NO')} |" for what, text, ok in self.gates()]
        lines += [
            "",
            "| method | " + " | ".join(self.worlds) + " | mean | agrees with its reasoning | EOT | forwards | decoded before the answer |",
            "|---|" + "---|" * (len(self.worlds) + 5),
        ]
        for run in RUNS:
            if not (found := self.of(run)):
                continue
            average, early = self.mean(run) or 0.0, self.mean(run, "before")
            cells = [share(r["right"], r["asked"]) for r in found]
            cells += [
                f"{100 * average:.1f}",
                f"{100 * sum(r['agree'] for r in found) / reasoned:.0f} %" if (reasoned := sum(r["reasoned"] for r in found)) else "",
                f"{self.mean(run, 'eot'):.2f}",
                f"{self.mean(run, 'forwards'):.0f}",
                "" if early is None else f"{100 * early:.0f} %",
            ]
            lines.append(f"| {run} | " + " | ".join(cells) + " |")
        lines += ["", "| prediction of the paper | figures | held |", "|---|---|---|"]
        lines += [f"| {what} | {text} | {_word(ok, 'held', 'NOT held')} |" for what, text, ok in self.predictions()]
        return "\n".join(lines)


def _word(ok: bool | None, yes: str, no: str) -> str:
    return "not run" if ok is None else yes if ok else no
