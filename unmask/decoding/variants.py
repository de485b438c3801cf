"""Methods beyond the paper's main table: other confidences, other published options. A method is data."""

from __future__ import annotations

from unmask.decoding.algorithm import AnchorModulation, Strategy, SuffixAnchor
from unmask.decoding.rules.anchors import EndMark
from unmask.decoding.rules.confidence import Certainty, NegativeEntropy, TopMargin
from unmask.decoding.rules.modifiers import PositionDecay
from unmask.decoding.rules.remasking import Remask
from unmask.decoding.rules.schedules import Fixed
from unmask.decoding.rules.selection import EntropyBound, Factor, Quota
from unmask.decoding.rules.support import CertaintyDensity, Neighbours, Support
from unmask.decoding.rules.tokens import ForbidEOT, Gumbel

ANCHOR, DAMPED = (SuffixAnchor(),), AnchorModulation(14, 1.3, 0.85)  # SACM's
FRONT = (SuffixAnchor(at=0), EndMark())  # the answer first, the reasoning behind it

VARIANTS: dict[str, Strategy] = {
    "sacm-support": Strategy(anchors=ANCHOR, modifiers=(DAMPED, Support())),
    "sacm-support-eb": Strategy(anchors=ANCHOR, modifiers=(DAMPED, Support()), select=EntropyBound(1.35), pace=1),
    "sacm-first": Strategy(anchors=FRONT, modifiers=(DAMPED,)),
    "sacm-first-support": Strategy(anchors=FRONT, modifiers=(DAMPED, Support())),
    "sacm-first-decay": Strategy(anchors=FRONT, modifiers=(DAMPED, PositionDecay(0.25))),
    "sacm-conv": Strategy(anchors=ANCHOR, modifiers=(DAMPED, Neighbours())),
    "sacm-density": Strategy(anchors=ANCHOR, modifiers=(DAMPED, CertaintyDensity())),
    "sacm-decay": Strategy(anchors=ANCHOR, modifiers=(DAMPED, PositionDecay(0.25))),
    "left-to-right": Strategy(block=1, pace=1),
    "sacm-margin": Strategy(
        confidence=TopMargin(), anchors=(SuffixAnchor(),), modifiers=(AnchorModulation(14, 1.3, 0.85),)
    ),
    "entropy": Strategy(confidence=NegativeEntropy()),
    "certainty": Strategy(confidence=Certainty()),
    "eb-sampler": Strategy(confidence=NegativeEntropy(), select=EntropyBound(0.01), pace=1),
    "fast-dllm-factor": Strategy(block=32, select=Factor(1.0), pace=1),
    "eot-forbidden": Strategy(read=ForbidEOT()),
    "remdm-official": Strategy(
        Gumbel(), remask=Remask(rounds=None, fresh=False), select=Quota(Fixed(1)), block=32, pace=1
    ),
}
