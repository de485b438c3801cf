"""The zoo: training-free decoders published since, one Strategy each at its published defaults, and where each comes from.

A method is data, and so is what is known about it: `ABOUT` has an entry for every row.
"""

from __future__ import annotations

from unmask.decoding.about import About
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


KLASS = "shkim0116/KLASS src/model/llada_klass.py @ad87ecbe9f"
DINFER = "inclusionAI/dInfer @fce4e32804"
DUS = "omerlux/DUS @abd7723fd0"
SABER = "zhaoyMa/Saber @2f061e2e07"

ABOUT: dict[str, About] = {
    "klass": About(
        "stable", "decodes what is sure and has stopped changing", KLASS, ("memory",), "klass.stable_confident_decode"
    ),
    "klass-dream": About(
        "stable", "the same, one slot where none is ready", "shkim0116/KLASS @ad87ecbe9f", ("memory",), "klass.dream_sample"
    ),
    "credit": About("stable", "believes a token sooner that keeps coming up", DINFER, ("memory",), "dinfer.credit"),
    "dinfer": About("stable", "a threshold, and the rest is end-of-text once a block holds it", DINFER, (), "dinfer.threshold"),
    "dinfer-hierarchy": About(
        "stable", "the best of every run of masks, so that runs are halved", DINFER, (), "dinfer.hierarchy"
    ),
    "local-leap": About(
        "stable", "a lower threshold near what is sure", "lizhuo-luo/DAWN @ab428980e3", (), "dawn.generate(local_leap)"
    ),
    "prophet": About(
        "stable", "decodes everything at once when the answer is clear", "pixeli99/Prophet @460afe41c7", ("an anchor",),
        "prophet.generate",
    ),
    "dus": About("stable", "a fixed order of strides: half, quarter, ..., neighbours last", DUS, (), "dus.generate_scheduled"),
    "dus-binary": About("stable", "a fixed order of midpoints", DUS, (), "dus.generate_scheduled"),
    "eb-spaced": About("stable", "an entropy budget, neighbours kept apart", DUS, (), "dus.generate_eb_sampler_spaced"),
    "threshold-spaced": About("stable", "a threshold, neighbours kept apart", DUS, (), "dus.generate_cb_sampler_spaced"),
    "wino": About(
        "revoke", "decodes boldly and takes back what the rest would not have said",
        "Feng-Hong/WINO-DLLM LLaDA/decoding.py @9549a1d0c3", ("a model of unmask's, logits not shifted, no cache",),
        "wino.decoding_wino",
    ),
    "rcr": About(
        "revoke", "decodes everything, then opens the least sure again",
        "autonomousvision/mdpo src/mdlm_generation_utils.py @e6ae43906d", (), "mdpo.diffusion_generate",
    ),
    "saber": About(
        "revoke", "decodes what is surer than so far, opens what has lost most", SABER + " decoding.py", (),
        "saber.generate_with_saber",
    ),
    "saber-dream": About(
        "revoke", "the same by the probability of what stands there, ending made hard at first",
        SABER + " Dream/generation_utils.py", (), "saber_dream.diffusion_generate",
    ),
    "core": About(
        "revoke", "masks doubtful tokens, looks again, and replaces them", "UCF-CRCV/core @ad15d9150a", ("forwards",),
        "core.generate",
    ),
    "adablock": About(
        "window", "a block ends where a line ends", "lgxi24/AdaBlock-dLLM @491b20580a", ("a newline token",),
        "adablock.generate_adablock",
    ),
    "dsb": About("window", "the first masks, a window that moves with every token", "lizhuo-luo/DSB @114c12182c", (), "dsb.generate_dsb"),
    "dcd": About(
        "window", "the same, and padding behind the first end-of-text", "shuyingte/DCD @ea6a4b78de", (),
        "dcd.window_bidirectional_decode",
    ),
    "daedal": About(
        "length", "finds its length first, and adds masks where it is least sure", "Li-Jinsong/DAEDAL @303c9e98c2",
        ("length", "forwards"), "daedal.generate",
    ),
    "rho-eos": About(
        "length", "grows or is cut by how sure its end is", "yjyddq/rho-EOS @9cb20c66f7", ("length", "forwards"),
        "rho_eos.generate",
    ),
    "dynamic-threshold": About("small", "all above a threshold if they are enough, else the quota (SDAR, TraDo)", ""),
    "entropy-threshold": About("small", "all below an entropy, and the lowest (dParallel)", ""),
    "eoser": About("small", "end-of-text counts for less, most of all at the start (EOSER)", ""),
    "alg-temp": About("small", "slots drawn by their confidence instead of ranked (Dream's alg_temp)", ""),
}  # fmt: skip
