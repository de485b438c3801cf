"""unmask: the decoding toolkit for masked diffusion language models.

import unmask
model = unmask.load("tiny")
print(unmask.generate(model, "...", "sacm").text)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Names are looked up when first used, so that importing the package costs nothing.
_WHERE = {
    name: f"unmask.{module}"
    for module, names in {
        "models.loading": "load",
        "models.model": "Model wrap",
        "generation": "generate generations Decoding Generation",
        "decoding.algorithm": "decode Strategy SuffixAnchor AnchorModulation",
        "decoding.methods": "METHODS method",
        "decoding.canvas": "Canvas Vocab",
        "decoding.step": "Step",
        "decoding.rules.anchors": "EndMark Template",
        "decoding.rules.confidence": "TopProbability TopMargin NegativeEntropy Certainty Uniform",
        "decoding.rules.focus": "Frontier Behind Sliding AdaBlock Onward",
        "decoding.rules.lengths": "Expand Density",
        "decoding.rules.modifiers": "SuppressEOT RenormaliseEOT Calibrate PositionDecay LinearPosition DampEOT Jitter",
        "decoding.rules.readiness": "Stable Leap Hierarchy Levels Spaced Wide AboveMean",
        "decoding.rules.remasking": "Remask",
        "decoding.rules.schedules": "Even Across Fixed Due Timesteps Curve Shift Cosine LogitNormal",
        "decoding.rules.revising": "EarlyAnswer Finish FillEOT PadEOT Verify Refine Backtrack Replace",
        "decoding.rules.selection": "Quota Threshold Factor EntropyBound DynamicThreshold EntropyThreshold Everything",
        "decoding.rules.support": "Support Neighbours CertaintyDensity",
        "decoding.rules.tokens": "Argmax Gumbel ForbidEOT Credit EndPenalty",
        "decoding.running": "run",
        "errors": "UserError",
    }.items()
    for name in names.split()
}

__all__ = ["__version__", *_WHERE]

if TYPE_CHECKING:
    from unmask.decoding.algorithm import AnchorModulation, Strategy, SuffixAnchor, decode
    from unmask.decoding.canvas import Canvas, Vocab
    from unmask.decoding.methods import METHODS, method
    from unmask.decoding.running import run
    from unmask.decoding.step import Step
    from unmask.errors import UserError
    from unmask.generation import Decoding, Generation, generate, generations
    from unmask.models.loading import load
    from unmask.models.model import Model, wrap


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'unmask' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
