"""The one exception that means the user can fix this, and the message says how; and checks on numbers from outside."""

from __future__ import annotations

import math
import operator
from typing import Any


class UserError(ValueError):
    """Bad input. The command line prints it as one line, `unmask: ...`, and exits with 2."""


class TooLong(UserError):
    """A prompt that does not fit the context with its response: a conversation can go on without its oldest turns."""

    code = "context_length_exceeded"  # OpenAI's name for it


def whole(name: str, value: Any, least: int = -(2**63)) -> int:
    """A whole number of at most 64 bits, including numpy's and torch's."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or not least <= number < 2**63:
        wanted = "a whole number of at most 64 bits" if least < 0 else f"a whole number, at least {least}"
        raise UserError(f"{name} is {wanted}, not {value!r:.40}")
    return number


def finite(name: str, value: Any, low: float = 0.0, high: float = math.inf) -> float:
    """A finite number from `low` to `high`."""
    try:
        number = None if isinstance(value, (bool, str)) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = None
    if number is None or not math.isfinite(number) or not low <= number <= high:
        wanted = (
            "a number that is not negative" if (low, high) == (0, math.inf) else f"a number from {low:g} to {high:g}"
        )
        raise UserError(f"{name} is {wanted}, not {value!r:.40}")
    return number
