"""Settings by name: which rules a Strategy is made of, what they need, and the same method with other values."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

from unmask.errors import UserError, whole

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from unmask.decoding.algorithm import Strategy, Watch
    from unmask.decoding.canvas import Canvas
    from unmask.decoding.rules import Remembers
    from unmask.decoding.step import Step

Result = TypeVar("Result")


def rules(strategy: Strategy) -> list[Any]:
    """Every rule of the strategy, including those inside another rule (a schedule in a Quota)."""
    queue: list[Any] = [strategy]
    found = []
    while queue:
        value = queue.pop(0)
        inner = value if isinstance(value, tuple) else [getattr(value, f.name) for f in fields(value)]
        queue += [item for item in inner if isinstance(item, tuple) or is_dataclass(item)]
        found += [value] if value is not strategy and is_dataclass(value) else []
    return found


def needs(strategy: Strategy, watch: Iterable[Watch] = ()) -> frozenset[str]:
    """What the rules and watchers read from a Prediction beyond token and p; "everywhere" asks about settled slots too."""
    return frozenset().union(*(getattr(item, "needs", ()) for item in (*rules(strategy), *watch)))


def remembering(strategy: Strategy) -> list[Remembers]:
    """The rules that keep something between steps."""
    return [rule for rule in rules(strategy) if hasattr(rule, "remember")]


def idles(strategy: Strategy) -> bool:
    """May a step decode nothing? Only where a rule says so (`idles`), as the schedules of some published code do."""
    return any(getattr(rule, "idles", False) for rule in rules(strategy))


def longest(strategy: Strategy, length: int) -> int:
    """How long a response of this length may become."""
    return max([length, *(rule.longest(length) for rule in strategy.revise if hasattr(rule, "longest"))])


def check(strategy: Strategy, steps: int, canvas: Canvas) -> None:
    """Refuse what cannot be decoded before a forward is spent on it."""
    from unmask.decoding.rules.schedules import Fixed
    from unmask.decoding.rules.selection import Quota

    if steps < 1:
        raise UserError(f"the number of steps must be at least 1, not {steps}")
    for owner in (strategy, *rules(strategy)):
        for f in fields(owner):
            within(f.name, getattr(owner, f.name))
    if strategy.modifiers and getattr(strategy.confidence, "negative", False):
        raise UserError(
            "a modifier multiplies the confidence, which must not be negative: use Certainty() in place of NegativeEntropy()"
        )
    if strategy.remask and not (isinstance(strategy.select, Quota) and isinstance(strategy.select.schedule, Fixed)):
        raise UserError(
            "remasking counts its rounds in steps of a fixed size: it goes with select=Quota(Fixed(k)) only"
        )
    for rule in rules(strategy):
        if hasattr(rule, "check"):
            rule.check(strategy, canvas)


def told(rule: Callable[..., Result], *given: object) -> Result:
    """What a rule says; one that reads what it did not ask for is told how to ask."""
    try:
        return rule(*given)
    except (TypeError, AttributeError) as error:
        if "NoneType" not in str(error):
            raise
        raise UserError(
            "a rule reads a number of the prediction that nobody asked for: name it in the rule's `needs`, as in "
            "needs: ClassVar = frozenset({'entropy'})"
        ) from error


def unsound(step: Step) -> UserError:
    """Whose fault it is that a score is NaN or infinite: the model's, or the method's."""
    if not bool(step.seen.p.isfinite().all()):
        return UserError("the model gave NaN or infinite logits; check its weights, or load it in float32")
    return UserError("the method's score is NaN or infinite; check its settings, and rules of your own")


def changed(strategy: Strategy, settings: dict[str, Any]) -> Strategy:
    """The strategy with `block=64` set on itself, `kappa=12` on the rule that owns the name. Where two kinds of rule own it,
    the name says which: `EntropyBound.gamma`."""
    for given, value in settings.items():
        owner, _, name = given.rpartition(".")
        name = f"{name}_" if name == "lambda" else name  # a reserved word in Python
        if given == "finish":
            strategy = finishing(strategy, value)
            continue
        if not owner and name in {f.name for f in fields(strategy)}:
            strategy = replace(strategy, **{name: fitting(strategy, name, value)})
            continue
        owners = {type(rule).__name__ for rule in rules(strategy) if name in {f.name for f in fields(rule)}}
        if not owners or (owner and owner not in owners):
            known = sorted(name for name, *_ in offered(strategy))
            raise UserError(f"this method has no setting {given!r}; it has {', '.join(known)}")
        if len(owners) > 1 and not owner:
            which = " or ".join(f"{one}.{name}" for one in sorted(owners))
            raise UserError(f"{name!r} is a setting of {' and of '.join(sorted(owners))}: say {which}")
        strategy = _set(strategy, owner or owners.pop(), name, value)
    return strategy


def finishing(strategy: Strategy, n: Any) -> Strategy:
    """The strategy that decodes the rest at once when the n slots behind its anchor are settled; None: that goes on."""
    from unmask.decoding.rules.revising import Finish

    others = tuple(rule for rule in strategy.revise if not isinstance(rule, Finish))
    return replace(strategy, revise=others if n is None else (Finish(whole("finish", n, 1)), *others))


def can_finish(strategy: Strategy) -> bool:
    from unmask.decoding.rules.anchors import Template
    from unmask.decoding.rules.revising import reopening

    return any(not isinstance(anchor, Template) for anchor in strategy.anchors) and not reopening(strategy)


def offered(strategy: Strategy) -> list[tuple[str, Any, float | None, float | None]]:
    """The settings a user may change: name, value, and the limits of a number."""
    own: dict[str, dict[str, Any]] = {}  # name -> the kinds of rule that have it -> value
    for rule in rules(strategy):
        for f in fields(rule):
            if simple(value := getattr(rule, f.name)):
                own.setdefault(f.name, {})[type(rule).__name__] = value
    found = {(name if len(of) == 1 else f"{kind}.{name}"): v for name, of in own.items() for kind, v in of.items()}
    found |= {"block": strategy.block, "pace": strategy.pace}
    return [
        (name.rstrip("_"), value, *LIMITS.get(name.rpartition(".")[2], (None, None))) for name, value in found.items()
    ]


def applied(strategy: Strategy, settings: dict[str, Any]) -> tuple[Strategy, list[str]]:
    """The strategy with whichever of the settings it has, and their names: for several methods under one flag."""
    own = {f.name for item in (strategy, *rules(strategy)) for f in fields(item)}
    own |= {f"{type(rule).__name__}.{f.name}" for rule in rules(strategy) for f in fields(rule)}
    own |= {"finish"} if can_finish(strategy) else set()
    used = {name: value for name, value in settings.items() if name in own}
    return changed(strategy, used), list(used)


def text(value: DataclassInstance) -> str:
    """A rule or strategy as its constructor call. Fields with repr=False were added later: they show once they are used."""
    shown = [f for f in fields(value) if f.repr or getattr(value, f.name) != f.default]
    return f"{type(value).__name__}({', '.join(f'{f.name}={getattr(value, f.name)!r}' for f in shown)})"


def recipe(strategy: Strategy) -> str:
    """What differs from plain top-probability decoding, in one line."""
    plain = type(strategy)()
    parts = [
        f"{f.name}={value!r}"
        for f in fields(strategy)
        if (value := getattr(strategy, f.name)) != getattr(plain, f.name)
    ]
    return f"Strategy({', '.join(parts)})"


def _set(value: Any, owner: str, name: str, new: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_set(item, owner, name, new) for item in value)
    if not is_dataclass(value) or isinstance(value, type):
        return value
    inside = {f.name: _set(getattr(value, f.name), owner, name, new) for f in fields(value)}
    if type(value).__name__ == owner:
        inside[name] = fitting(value, name, new)
    return replace(value, **inside)


def simple(value: object) -> TypeGuard[str | float]:
    return isinstance(value, (str, int, float)) and not isinstance(value, bool)


# What a number may be, by the name of its setting; rules check their own settings, and no number may be NaN.
LIMITS: dict[str, tuple[float, float]] = {
    "kappa": (0.01, 1e6), "beta": (0, 1e6), "gamma": (0, 1e6), "pace": (0.001, 1000), "lambda_": (0, 1e6), "k": (0, 1_000_000),
    "rounds": (0, 100_000), "after": (0, 1), "block": (1, 1_000_000), "at": (-1_000_000, 1_000_000),
}  # fmt: skip


def within(name: str, value: object) -> None:
    """Refuse a number that is NaN or outside what its setting allows."""
    low, high = LIMITS.get(name, (-math.inf, math.inf))
    if simple(value) and not isinstance(value, str) and not low <= value <= high:
        wanted = f"a number from {low:g} to {high:g}" if name in LIMITS else "a number"
        raise UserError(f"{name.rstrip('_')} is {wanted}, not {value}")


def fitting(owner: DataclassInstance, name: str, new: Any) -> Any:
    """The new value, if it is of the old one's kind: a rule for a rule, a number for a number, text for text."""
    old, kind = getattr(owner, name), next(str(f.type) for f in fields(owner) if f.name == name)
    if isinstance(old, str):
        return str(new)
    number = isinstance(new, (int, float)) and not isinstance(new, bool)
    if kind == "int | None" and not (new is None or type(new) is int):
        raise UserError(f"{name} is a whole number or None, not {new!r}")
    if kind == "float | None" and not (new is None or number):
        raise UserError(f"{name} is a number or None, not {new!r}")
    if simple(old) and not number and "None" not in kind:
        raise UserError(f"{name} is a number, not {new!r}")
    if kind == "int" and type(new) is not int:
        raise UserError(f"{name} is a whole number, not {new!r}")
    if kind == "bool" and not isinstance(new, bool):
        raise UserError(f"{name} is True or False, not {new!r}")
    plain = kind.split(" | ")[0] in ("int", "float", "bool", "str")
    if not plain and not (callable(new) or isinstance(new, (tuple, list)) or (new is None and "None" in kind)):
        raise UserError(f"{name} is a rule or a list of them, not {new!r}: build this Strategy in Python")
    within(name, new)
    return tuple(new) if isinstance(new, list) else new


def parse(pairs: Iterable[str]) -> dict[str, Any]:
    """["kappa=12", "text=Answer:"] -> {"kappa": 12, "text": "Answer:"}: Python values where they parse as such."""
    settings: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name.strip():
            raise UserError(f"a setting is NAME=VALUE, such as kappa=12; this is {pair!r}")
        try:
            settings[name.strip()] = ast.literal_eval(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):  # the last two: nested without end
            settings[name.strip()] = text
    return settings
