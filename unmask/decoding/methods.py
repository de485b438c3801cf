"""The rows of the paper's main table, one Strategy each, then (from sacm-margin on) others. A method is data."""

from __future__ import annotations

import difflib

from unmask.decoding.algorithm import AnchorModulation, Strategy, SuffixAnchor
from unmask.decoding.reading import ForbidEOT, Gumbel
from unmask.decoding.rules.confidence import Certainty, NegativeEntropy, TopMargin, Uniform
from unmask.decoding.rules.modifiers import Calibrate, PositionDecay, SuppressEOT, Template
from unmask.decoding.rules.selection import EntropyBound, Factor, Fixed, Quota, Remask, Threshold
from unmask.errors import UserError

METHODS: dict[str, Strategy] = {
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
    "sacm-margin": Strategy(
        confidence=TopMargin(), anchors=(SuffixAnchor(),), modifiers=(AnchorModulation(14, 1.3, 0.85),)
    ),
    "entropy": Strategy(confidence=NegativeEntropy()),
    "certainty": Strategy(confidence=Certainty()),
    "eb-sampler": Strategy(confidence=NegativeEntropy(), select=EntropyBound(0.01), pace=1),
    "fast-dllm-factor": Strategy(block=32, select=Factor(1.0), pace=1),
    "eot-forbidden": Strategy(read=ForbidEOT()),
    "remdm-official": Strategy(Gumbel(), remask=Remask(rounds=None, fresh=False), select=Quota(Fixed(1)), block=32, pace=1),
}


def method(name: str | Strategy) -> Strategy:
    """The Strategy of that name (or the one given)."""
    if isinstance(name, Strategy):
        return name
    if name in METHODS:
        return METHODS[name]
    near = difflib.get_close_matches(name, METHODS, n=1)
    hint = f"did you mean {near[0]!r}?" if near else "`unmask methods` lists them"
    raise UserError(f"there is no method {name!r}; {hint}")
