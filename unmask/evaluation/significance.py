"""How certain an accuracy is, and whether two methods differ on the same rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

Z = 1.959963984540054  # 95 %


def wilson(right: int, asked: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share."""
    if asked == 0:
        return 0.0, 1.0
    p = right / asked
    centre = p + Z * Z / (2 * asked)
    spread = Z * math.sqrt(p * (1 - p) / asked + Z * Z / (4 * asked * asked))
    below = 1 + Z * Z / asked
    low, high = (centre - spread) / below, (centre + spread) / below
    return (0.0 if right == 0 else low), (1.0 if right == asked else high)


class Paired(NamedTuple):
    """Two methods on the same rows: a - b."""

    rows: int
    difference: float
    interval: tuple[float, float]  # 95 %, paired bootstrap
    only_a: int  # rows a alone got right
    only_b: int
    p: float  # McNemar's exact test


def over_tasks(summaries: Sequence[Mapping[str, Any]]) -> tuple[float, float, float]:
    """The mean accuracy over tasks, each counting equally, with an interval combined from theirs."""
    n, level = len(summaries), sum(s["accuracy"] for s in summaries) / len(summaries)
    low, high = (math.hypot(*(s["accuracy"] - s["interval"][side] for s in summaries)) / n for side in (0, 1))
    return level, level - low, level + high


def paired(a: Sequence[bool], b: Sequence[bool], resamples: int = 10_000, seed: int = 0) -> Paired:
    """McNemar's exact test and the paired bootstrap. Drawing n rows with replacement is drawing how many of them each of
    the three kinds (a alone, b alone, alike) gets, so the bootstrap costs the same for a hundred rows and for twelve thousand."""
    if len(a) != len(b):
        raise ValueError(f"paired statistics need the same rows: {len(a)} and {len(b)}")
    n = len(a)
    only_a = sum(x and not y for x, y in zip(a, b, strict=True))
    only_b = sum(y and not x for x, y in zip(a, b, strict=True))
    if n == 0:
        return Paired(0, 0.0, (0.0, 0.0), 0, 0, 1.0)
    import torch

    generator = torch.Generator().manual_seed(seed)
    whole = torch.full((resamples,), float(n), dtype=torch.float64)
    plus = torch.binomial(whole, torch.full_like(whole, only_a / n), generator=generator)
    rest = n - only_a
    minus = torch.binomial(whole - plus, torch.full_like(whole, only_b / rest if rest else 0.0), generator=generator)
    low, high = torch.quantile((plus - minus) / n, torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return Paired(n, (only_a - only_b) / n, (low, high), only_a, only_b, mcnemar(only_a, only_b))


def mcnemar(only_a: int, only_b: int) -> float:
    """Two-sided exact p of a fair coin giving so uneven a split of the rows on which two methods differ."""
    n, k = only_a + only_b, min(only_a, only_b)
    if n == 0:
        return 1.0
    logs = [math.lgamma(n + 1) - math.lgamma(i + 1) - math.lgamma(n - i + 1) - n * math.log(2) for i in range(k + 1)]
    return min(1.0, 2 * sum(map(math.exp, logs)))


def mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def spread(values: Sequence[float]) -> float:
    """Standard deviation of a sample."""
    if len(values) < 2:
        return 0.0
    middle = sum(values) / len(values)
    return math.sqrt(sum((v - middle) ** 2 for v in values) / (len(values) - 1))
