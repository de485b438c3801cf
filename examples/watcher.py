"""A watcher of your own: a function that sees every step of a decode.

    python examples/watcher.py

It is called after every forward with the Step, the score of every slot (B, L), and which slots were chosen (B, L).
"""

import unmask


class Confidence:
    """How sure the model was of what it committed, step by step."""

    def __init__(self) -> None:
        self.means: list[float] = []

    def __call__(self, step, score, chosen) -> None:
        if chosen.any():
            self.means.append(float(step.seen.p[chosen].mean()))


def watched(prompt: str = "Tom has 3 apples and buys 4 more. How many?", length: int = 48) -> list[float]:
    watcher = Confidence()
    unmask.generate(unmask.load("tiny"), prompt, "sacm", length=length, watch=[watcher])
    return watcher.means


if __name__ == "__main__":
    for number, mean in enumerate(watched(), 1):
        print(f"step {number:3}  {mean:.2f}  {'#' * round(40 * mean)}")
