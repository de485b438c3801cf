"""Beyond the paper: any methods on any tasks at several budgets, as a table, a picture and claims.

A Front is an Experiment whose cells are made from methods and budgets, not from the paper's tables. The budget of a method
that decodes a set number of slots per step is T, as a share of L; the others decode as many as they are sure of, and are
varied by a setting of their own."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from unmask.decoding.algorithm import Strategy
from unmask.decoding.methods import METHODS
from unmask.decoding.rules.confidence import Certainty, NegativeEntropy
from unmask.decoding.rules.modifiers import SuppressEOT
from unmask.decoding.rules.support import Support
from unmask.decoding.rules.tokens import Gumbel
from unmask.decoding.settings import offered, parse
from unmask.decoding.zoo import ZOO
from unmask.errors import UserError
from unmask.evaluation.recipe import for_task
from unmask.models.near import FRONTIER
from unmask.paper import numbers
from unmask.paper.experiments import EXPERIMENTS, FREE, PLACES, SACM, Cell, Claim, Experiment, Run, proportional
from unmask.paper.numbers import Published
from unmask.tasks import find, toy

STANDS_FOR = {ours: theirs for theirs, (ours, *_) in PLACES.items()}  # the bundled task -> the paper's
BUDGETS = (1 / 8, 1 / 4, 1 / 2, 1.0)
KNOBS: dict[str, dict[str, tuple[Any, ...]]] = {  # what varies the number of forwards of a method that has no budget
    "fast-dllm": {"tau": (0.5, 0.7, 0.9)},
    "fast-dllm-factor": {"factor": (0.5, 1.0, 2.0)},
    "eb-sampler": {"gamma": (0.01, 0.3, 1.0)},
    "sacm-support-eb": {"EntropyBound.gamma": (0.6, 1.35, 2.0)},
}

# One setting of each method of the zoo that is chosen on tuning rows (`zoo-tuning`), and the values tried; the first is published,
# but for blocks and windows, which are published for longer responses.
TRIED: dict[str, dict[str, tuple[Any, ...]]] = {
    "klass": {"kl": (0.01, 0.001, 0.1)}, "klass-dream": {"kl": (0.01, 0.001, 0.1)}, "credit": {"tau": (0.9, 0.7, 0.97)},
    "dinfer": {"tau": (0.9, 0.7, 0.97)}, "dinfer-hierarchy": {"tau": (0.9, 0.7, 0.97)}, "local-leap": {"relaxed": (0.75, 0.6, 0.9)},
    "prophet": {"late": (2.5, 1.0, 5.0)}, "dus": {"base": (2, 3, 4)}, "dus-binary": {"block": (12, 6, 24)},
    "eb-spaced": {"gamma": (0.1, 0.01, 0.5)}, "threshold-spaced": {"tau": (0.9, 0.7, 0.97)}, "wino": {"tau": (0.6, 0.75, 0.9)},
    "rcr": {"block": (12, 24, 96)}, "saber": {"Backtrack.n": (2, 1, 4)}, "saber-dream": {"weight": (1.0, 0.5, 2.0)},
    "core": {"sure": (0.3, 0.1, 0.6)}, "adablock": {"AdaBlock.tau": (0.3, 0.1, 0.6)}, "dsb": {"open": (32, 12, 64)},
    "dcd": {"open": (64, 24, 96)}, "daedal": {"size": (32, 64, 96)}, "rho-eos": {"size": (32, 64, 96)},
    "dynamic-threshold": {"tau": (0.9, 0.7, 0.97)}, "entropy-threshold": {"tau": (0.5, 0.1, 1.0)}, "eoser": {"low": (0.4, 0.1, 0.7)},
    "alg-temp": {"temperature": (0.1, 0.01, 0.5)},
}  # fmt: skip
# What it chose: the best mean of stories and cups, 64 tuning rows each; of equals, the one with fewer forwards. For those that are
# not here the first value was the best.
TUNED: dict[str, dict[str, Any]] = {
    "klass": {"kl": 0.1}, "klass-dream": {"kl": 0.1}, "local-leap": {"relaxed": 0.9}, "prophet": {"late": 1.0},
    "dus-binary": {"block": 6}, "eb-spaced": {"gamma": 0.01}, "threshold-spaced": {"tau": 0.97}, "wino": {"tau": 0.9},
    "rcr": {"block": 24}, "saber-dream": {"weight": 2.0}, "core": {"sure": 0.1}, "dsb": {"open": 12}, "dcd": {"open": 24},
    "daedal": {"size": 64}, "rho-eos": {"size": 64}, "eoser": {"low": 0.1},
}  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """A method with some of its settings changed, at one or more budgets."""

    name: str
    strategy: Strategy
    changes: Mapping[str, Any] = field(default_factory=dict)
    budgets: tuple[float | None, ...] = (None,)  # T as a share of L; None: the method's own pace
    length: int | None = None  # L on the bundled model, where it is not the model's own
    cache: str | None = None


@dataclass(frozen=True)
class Front(Experiment):
    entries: tuple[Entry, ...] = ()
    bundled: tuple[str, ...] = toy.PLAIN  # tasks on the bundled model
    published: tuple[str, ...] = ()  # and on the published ones
    model: str = "LLaDA"
    against: str = "sacm"  # the method that the others are compared with, row by row
    beside: Mapping[str, str] = field(default_factory=dict)  # but some with another than `against`
    apart: bool = False  # every task for itself: a mean can hide a loss in one of them
    columns: tuple[str, ...] = ()  # of front_page.COLUMNS

    def _cells(self, length: int | None, limit: int | None) -> Iterator[Cell]:
        for task in self.bundled if length else self.published:
            for entry in self.entries:
                size = (entry.length or length) if length else find(task).length
                changes = dict(entry.changes)
                if length and entry.strategy.block and entry.strategy.block > 1 and "block" not in changes:
                    theirs = STANDS_FOR.get(task.removesuffix(toy.SUFFIX), "gsm8k")
                    changes["block"] = proportional(entry.strategy.block, length, numbers.LENGTH.get(theirs, 128))
                strategy = for_task(find(task), {entry.name: entry.strategy}, changes)[entry.name]
                for share in entry.budgets:
                    steps = None if share is None else max(1, round(share * size))
                    own = steps is None or steps == strategy.steps(size)
                    run = Run(self.model, task, entry.name, strategy, size, None if own else steps, self.split,
                              limit or (self.small if length else self.count), entry.cache)  # fmt: skip
                    cache = {"cache": entry.cache} if entry.cache else {}
                    made = Published(self.label, self.model, task, entry.name, math.nan, run.length,
                                     strategy.steps(run.length, run.steps), {**entry.changes, **cache})  # fmt: skip
                    yield Cell(run, {**changes, **cache}, made, False)


def budgeted(strategy: Strategy) -> bool:
    """Does T decide how many slots a step decodes?"""
    return strategy.pace == METHODS["sacm"].pace and strategy.block != 1


def entries(
    methods: Mapping[str, Strategy], budgets: Sequence[float] = BUDGETS, vary: Mapping[str, Sequence[Any]] | None = None
) -> tuple[Entry, ...]:
    """Every method at every budget, or at every value of its own knob; `vary` gives more settings to try, in all combinations."""
    has = {name: {setting for setting, *_ in offered(strategy)} for name, strategy in methods.items()}
    if unused := set(vary or ()) - set().union(*has.values()):
        raise UserError(f"none of these methods has a setting {', '.join(sorted(unused))}")
    found = []
    for name, strategy in methods.items():
        own = {} if budgeted(strategy) else KNOBS.get(name, {})
        knobs = {setting: values for setting, values in (vary or own).items() if setting in has[name]}
        shares: tuple[float | None, ...] = tuple(budgets) if budgeted(strategy) else (None,)
        found += [Entry(name, strategy, dict(zip(knobs, one, strict=True)), shares) for one in product(*knobs.values())]
    return tuple(found)


def budgets(text: str | None) -> tuple[float, ...]:
    """ "1/8,1/2,1" -> shares of L."""
    if text is None:
        return BUDGETS
    found = []
    for part in text.split(","):
        above, _, below = part.strip().partition("/")
        try:
            share = float(above) / float(below or 1)
        except (ValueError, ZeroDivisionError):
            share = math.nan
        if not 0 < share <= 4:
            raise UserError(f"a budget is T as a share of L, such as 1/2, above 0 and at most 4; not {part.strip()!r}")
        found.append(share)
    return tuple(found)


def varied(pairs: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    """["rho=3,6", "eps=0.3"] -> {"rho": (3, 6), "eps": (0.3,)}."""
    found: dict[str, tuple[Any, ...]] = {}
    for pair in pairs:
        name, _, values = pair.partition("=")
        tried = [parse([f"{name}={value}"] if "=" in pair else [pair]) for value in values.split(",")]
        found[name.strip()] = tuple(value for one in tried for value in one.values())
    return found


def _named(*names: str) -> tuple[Entry, ...]:
    return tuple(Entry(name, METHODS[name]) for name in names)


def with_sacm(strategy: Strategy) -> Strategy:
    """A method with SACM's anchor and modulation before its own. A product needs a score of 0 or more: Certainty ranks as
    NegativeEntropy does."""
    sacm = METHODS["sacm"]
    score = Certainty() if isinstance(strategy.confidence, NegativeEntropy) else strategy.confidence
    return replace(strategy, anchors=sacm.anchors, confidence=score, modifiers=(*sacm.modifiers, *strategy.modifiers))


def _varied(name: str, **values: Sequence[Any]) -> Iterator[Entry]:
    return (Entry(name, METHODS[name], {setting: value}) for setting, some in values.items() for value in some)


_SACM, _WARM = METHODS["sacm"], Gumbel(temperature=1.0)
PARTS = tuple(Entry(name, strategy) for name, strategy in {
    "support-alone": Strategy(modifiers=(Support(),)),
    "anchor+support": Strategy(anchors=_SACM.anchors, modifiers=(Support(),)),
    "eot-suppression+support": Strategy(defer=SuppressEOT(), modifiers=(Support(),)),
    "sacm-warm": replace(_SACM, read=_WARM),
    "sacm-support-warm": replace(METHODS["sacm-support"], read=_WARM),
}.items())  # fmt: skip
NEAR, FINISH = "near", {"finish": True}
LOST = 4  # points that a cache may lose in any task
RELATED = ("sacm-conv", "sacm-density", "sacm-decay")
SUPPORT, BOUND, FIRST = {"method": "sacm-support"}, {"method": "sacm-support-eb"}, {"method": "sacm-first"}
FROM_THE_LEFT = ("left-to-right", "semi-ar", "fast-dllm", "uncode")
ROWS = ("sacm", "sacm-support", "semi-ar", "eot-suppression", "suffix-anchor", "top-probability", "uncode", *RELATED,
        "fast-dllm", "eb-sampler", "sacm-support-eb", "left-to-right")  # fmt: skip

FRONTS = {
    e.name: e
    for e in (
        Front("support", "Does support, a rule of our own, mend what SACM still gets wrong?", "not in the paper", (),
              claims=(Claim(SACM, SUPPORT, of="mistakes", times=2), Claim(SUPPORT, {"method": FREE}, ties=True),
                      Claim(SACM, BOUND, of="nfe", times=2), Claim(BOUND, SACM, ties=True)),
              entries=_named("sacm", "sacm-support", "sacm-support-eb", *FREE),
              published=("gsm8k", "math500", "strategyqa")),
        Front("answer-first", "Can the answer be written first and decoded last?", "not in the paper", (),
              claims=(Claim(FIRST, {"method": FROM_THE_LEFT}, by=50), Claim({"method": "sacm-first-support"}, FIRST, within=5),
                      Claim(FIRST, {"method": "sacm-first-support"}, within=5)),
              entries=_named("sacm-first", "sacm-first-support", "sacm-first-decay", *FROM_THE_LEFT),
              bundled=toy.FIRST, against="sacm-first"),
        Front("pareto", "What does each method reach with how many forwards?", "not in the paper", (),
              entries=entries({name: METHODS[name] for name in ROWS}), small=50),
        Front("understanding", "What does support need, and what not?", "not in the paper", (), small=100,
              entries=(*_named("sacm", "sacm-support"), *PARTS, *_varied("sacm-support", text=(".", "Answer:"), at=(-8, -23)),
                       *_varied("sacm", text=(".", "Answer:"), at=(-8, -23)),
                       *(Entry(name, METHODS[name], length=n) for n in (72, 84, 128) for name in ("sacm", "sacm-support")))),
        Front("near", "What does the near cache lose, and Finish?", "not in the paper", (), apart=True, columns=("work",),
              claims=(Claim({"cache": NEAR, "finish": None}, SACM | {"cache": None}, within=LOST),
                      Claim({"cache": NEAR, "finish": True}, SACM | {"cache": None}, within=LOST),
                      Claim({"cache": FRONTIER}, SACM | {"cache": None}, within=LOST)),
              entries=(*_named("sacm", "sacm-support"), Entry("sacm", _SACM, cache=NEAR), Entry("sacm", _SACM, FINISH, cache=NEAR),
                       Entry("sacm-support", METHODS["sacm-support"], FINISH, cache=FRONTIER))),
        Front("zoo", "What are the other published decoders worth, alone and with SACM's anchor and modulation?", "not in the paper", (),
              entries=(*_named("sacm", "sacm-support", *ZOO), *(Entry(name, ZOO[name], changes) for name, changes in TUNED.items()),
                       *(Entry(f"sacm+{name}", with_sacm(s)) for name, s in ZOO.items())),
              beside={f"sacm+{name}": name for name in ZOO}, columns=("seconds", "EOT"), small=100, published=("gsm8k",)),
        Front("zoo-tuning", "Which setting suits each of them?", "not in the paper", (), split="tuning", small=64,
              bundled=("stories", "cups"),
              entries=tuple(entry for name, knobs in TRIED.items() for entry in entries({name: ZOO[name]}, (0.5,), knobs))),
        Front("zoo-first", "And where the answer is asked for first?", "not in the paper", (), small=100,
              entries=_named("sacm-first", *ZOO), bundled=toy.FIRST, against="sacm-first", columns=("seconds", "EOT")),
    )
}  # fmt: skip


def named(name: str) -> list[Experiment]:
    """The experiment of that name, all of the paper's, or all beyond it."""
    if name in ("all", "beyond"):
        return list((EXPERIMENTS if name == "all" else FRONTS).values())
    known = {**EXPERIMENTS, **FRONTS}
    if name in known:
        return [known[name]]
    near = difflib.get_close_matches(name, [*known, "all", "beyond", "list"], n=1, cutoff=0.4)
    hint = f"did you mean {near[0]!r}?" if near else "`unmask reproduce list` lists them"
    raise UserError(f"there is no experiment {name!r}; {hint}")
