"""The rows of the paper's main table, one Strategy each. A method is data. Further rows are in variants.py and zoo.py."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from unmask.decoding import settings
from unmask.decoding.about import ABOUT as OURS
from unmask.decoding.about import About
from unmask.decoding.algorithm import AnchorModulation, Strategy, SuffixAnchor
from unmask.decoding.rules.anchors import Template
from unmask.decoding.rules.confidence import TopMargin, Uniform
from unmask.decoding.rules.modifiers import Calibrate, PositionDecay, SuppressEOT
from unmask.decoding.rules.remasking import Remask
from unmask.decoding.rules.schedules import Fixed
from unmask.decoding.rules.selection import Quota, Threshold
from unmask.decoding.variants import VARIANTS
from unmask.decoding.zoo import ABOUT as THEIRS
from unmask.decoding.zoo import ZOO
from unmask.errors import UserError

PAPER: dict[str, Strategy] = {
    "semi-ar": Strategy(block=32),
    "fast-dllm": Strategy(block=32, select=Threshold(0.9), pace=1),
    "uniform": Strategy(confidence=Uniform()),
    "top-probability": Strategy(),
    "top-margin": Strategy(confidence=TopMargin()),
    "remdm": Strategy(remask=Remask(), select=Quota(Fixed(1)), pace=1),
    "eot-suppression": Strategy(defer=SuppressEOT()),
    "template-infilling": Strategy(anchors=(Template(),)),
    "uncode": Strategy(modifiers=(Calibrate(10), PositionDecay(0.25))),
    "rainbow-padding": Strategy(),  # another checkpoint, the same decoding
    "suffix-anchor": Strategy(anchors=(SuffixAnchor(),)),  # "ours without confidence modulation"
    "sacm": Strategy(anchors=(SuffixAnchor(),), modifiers=(AnchorModulation(14, 1.3, 0.85),)),
}
METHODS: dict[str, Strategy] = {**PAPER, **VARIANTS, **ZOO}
ABOUT: dict[str, About] = {**OURS, **THEIRS}  # for every row


def method(name: str | Strategy) -> Strategy:
    """The Strategy of that name (or the one given)."""
    if isinstance(name, Strategy):
        return name
    if name in METHODS:
        return METHODS[name]
    near = difflib.get_close_matches(name, METHODS, n=1)
    hint = f"did you mean {near[0]!r}?" if near else "`unmask methods` lists them"
    raise UserError(f"there is no method {name!r}; {hint}")


def strategies(
    names: Sequence[str] | Mapping[str, Strategy], wanted: Mapping[str, Any], defaults: Mapping[str, Any] | None = None
) -> dict[str, Strategy]:
    """Methods by name, or strategies under names of their own, each with whichever default settings it has, then the wanted
    ones: each of these must fit at least one method."""
    if not names:
        raise UserError("name at least one method; `unmask methods` lists them")
    given = names if isinstance(names, Mapping) else {name: method(name) for name in names}
    plain = {name: settings.applied(strategy, dict(defaults or {}))[0] for name, strategy in given.items()}
    if len(plain) == 1:
        return {name: strategy.with_(**wanted) for name, strategy in plain.items()}
    found = {name: settings.applied(strategy, dict(wanted)) for name, strategy in plain.items()}
    if unused := set(wanted) - {key for _, used in found.values() for key in used}:
        raise UserError(f"none of these methods has a setting {', '.join(sorted(unused))}")
    return {name: strategy for name, (strategy, _) in found.items()}
