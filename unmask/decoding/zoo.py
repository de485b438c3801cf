"""The zoo: training-free decoders published since, one Strategy each at its published defaults, and where each comes from.

A method is data, and so is what is known of it: `ABOUT` has an entry for every row.
"""

from __future__ import annotations

from unmask.decoding.algorithm import Strategy, SuffixAnchor
from unmask.decoding.rules.confidence import NegativeEntropy
from unmask.decoding.rules.focus import AdaBlock, Behind, Frontier, Onward, Sliding
from unmask.decoding.rules.lengths import Density, Expand
from unmask.decoding.rules.modifiers import DampEOT, Jitter
from unmask.decoding.rules.readiness import AboveMean, Hierarchy, Leap, Levels, Spaced, Stable, Wide
from unmask.decoding.rules.revising import Backtrack, EarlyAnswer, FillEOT, PadEOT, Refine, Replace, Verify
from unmask.decoding.rules.schedules import Fixed
from unmask.decoding.rules.selection import DynamicThreshold, EntropyBound, EntropyThreshold, Everything, Threshold
from unmask.decoding.rules.tokens import Credit, EndPenalty

ZOO: dict[str, Strategy] = {
    # ready when stable
    "klass": Strategy(select=Stable(), block=64, pace=1),
    "klass-dream": Strategy(select=Stable(schedule=Fixed(1)), pace=1),
    "credit": Strategy(read=Credit(), select=Threshold(0.9), revise=(FillEOT(),), block=32, pace=1),
    "dinfer": Strategy(select=Threshold(0.9), revise=(FillEOT(),), block=32, pace=1),
    "dinfer-hierarchy": Strategy(select=Hierarchy(), revise=(FillEOT(),), block=32, pace=1),
    "local-leap": Strategy(select=Leap(), block=32, pace=1),
    "prophet": Strategy(anchors=(SuffixAnchor(),), revise=(EarlyAnswer(),), block=32, pace=1),
    "dus": Strategy(select=Levels(), block=32, pace=1),
    "dus-binary": Strategy(select=Levels("binary"), block=32, pace=1),
    "eb-spaced": Strategy(confidence=NegativeEntropy(), select=Spaced(EntropyBound(0.1)), block=32, pace=1),
    "threshold-spaced": Strategy(select=Spaced(Threshold(0.9)), block=32, pace=1),
    # revoke: what was decoded may be opened or replaced again
    "wino": Strategy(select=Wide(), revise=(Verify(),), block=128, pace=1),
    "rcr": Strategy(select=Everything(), revise=(Refine(),), focus=Behind(), block=32),
    "saber": Strategy(select=AboveMean(), revise=(Backtrack(),), focus=Behind(), block=64, pace=1),
    "saber-dream": Strategy(read=EndPenalty(), select=AboveMean(first=True), revise=(Backtrack(by="current"),), pace=1),
    "core": Strategy(revise=(Replace(),), pace=1),
    # windows that move, responses that grow or are cut
    "adablock": Strategy(select=Threshold(0.9), focus=AdaBlock(), pace=1),
    "dsb": Strategy(select=Threshold(0.9), focus=Sliding(), pace=1),
    "dcd": Strategy(select=Threshold(0.9), focus=Sliding(64), revise=(PadEOT(),), pace=1),
    "daedal": Strategy(select=Threshold(0.9), focus=Frontier(), revise=(Expand(),), pace=1),
    "rho-eos": Strategy(select=Threshold(0.9), focus=Onward(), revise=(Density(),), pace=1),
    # small rules
    "dynamic-threshold": Strategy(select=DynamicThreshold(0.9), block=32, pace=1),
    "entropy-threshold": Strategy(confidence=NegativeEntropy(), select=EntropyThreshold(0.5), block=32, pace=1),
    "eoser": Strategy(modifiers=(DampEOT(),)),
    "alg-temp": Strategy(modifiers=(Jitter(0.1),)),
}
