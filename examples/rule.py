"""A rule of your own: a method that fills in the response from left to right, as far as it is sure.

    unmask compare "Tom has 3 apples and buys 4 more. How many?" --methods top-probability,examples/rule.py:reader
    unmask generate "..." --method examples/rule.py:reader --set pull=0.5

A rule is a small frozen dataclass that takes a Step and returns a number for every slot; its fields are its settings (--set).
"""

from dataclasses import dataclass

import torch

import unmask


@dataclass(frozen=True)
class LeftFirst:
    """c~_i = c_i * exp(-pull * i): the confidence, damped towards the end of the response.

    A modifier is given the confidence so far, (B, L): B rows, L response slots. It returns a new tensor and leaves that one as it
    was. Each row is judged by itself, so that a row's answer does not depend on the others in its batch.
    """

    pull: float = 0.1

    def __call__(self, step: unmask.Step, score: torch.Tensor) -> torch.Tensor:
        slots = torch.arange(step.canvas.length, device=score.device)
        return score * torch.exp(-self.pull * slots)


# A method is a Strategy: rules in their places. Everything you leave out is plain top-probability decoding.
reader = unmask.Strategy(modifiers=(LeftFirst(),))


# A function without arguments that returns a Strategy will do, too.
def reader_in_blocks() -> unmask.Strategy:
    return unmask.Strategy(modifiers=(LeftFirst(pull=0.02),), block=32)
