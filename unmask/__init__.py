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
    "load": "unmask.models", "wrap": "unmask.models", "Model": "unmask.models",
    "generate": "unmask.generation", "generations": "unmask.generation", "Generation": "unmask.generation",
    "decode": "unmask.algorithm", "run": "unmask.reading", "Strategy": "unmask.algorithm", "Step": "unmask.step",
    "SuffixAnchor": "unmask.algorithm", "AnchorModulation": "unmask.algorithm",
    "METHODS": "unmask.methods", "method": "unmask.methods",
    "Canvas": "unmask.canvas", "Vocab": "unmask.canvas",
    "UserError": "unmask.errors",
}  # fmt: skip

__all__ = ["__version__", *_WHERE]

if TYPE_CHECKING:
    from unmask.algorithm import AnchorModulation, Strategy, SuffixAnchor, decode
    from unmask.canvas import Canvas, Vocab
    from unmask.errors import UserError
    from unmask.generation import Generation, generate, generations
    from unmask.methods import METHODS, method
    from unmask.models import Model, load, wrap
    from unmask.reading import run
    from unmask.step import Step


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'unmask' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
