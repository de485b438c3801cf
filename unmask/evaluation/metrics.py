"""What is measured in a run: when the answer was committed, where decoding began, and the figures of all examples together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from unmask.evaluation.significance import mean, wilson
from unmask.evaluation.store import Example

EARLY = 0.15  # the paper's "first 15 % of steps"
NEAR = 14  # slots from the anchor: kappa, how far the modulation reaches


def early_steps(forwards: int, share: float = EARLY) -> int:
    """How many whole steps the first 15 % are, at least one."""
    return max(1, int(share * forwards))


def answer_time(
    tokens: Sequence[int], order: Sequence[int], forwards: int, anchors: Sequence[Sequence[int]]
) -> dict[str, Any]:
    """When the first token after the anchor was committed: in the first 15 % of steps? after which share of the slots before
    the anchor? The anchor is the last stretch written before decoding; without one, where the response itself says it."""
    none = {"early_answer": None, "answer_progress": None}
    given = [i for i, when in enumerate(order) if when < 0]
    if given:
        end = given[-1] + 1
        start = end - 1
        while start > 0 and order[start - 1] < 0:
            start -= 1
    else:
        places = [
            (i, i + len(a))
            for a in anchors
            if a
            for i in range(len(tokens) - len(a) + 1)
            if list(tokens[i : i + len(a)]) == list(a)
        ]
        if not places:
            return none
        start, end = max(places, key=lambda place: place[1])
    if end >= len(tokens):
        return none
    before = [when for when in order[:start] if when >= 0]
    return {
        "early_answer": order[end] < early_steps(forwards),
        "answer_progress": sum(when < order[end] for when in before) / len(before) if before else None,
    }


def near_anchor(order: Sequence[int], forwards: int, early: float = EARLY) -> float | None:
    """Of the slots that the first 15 % of the steps decoded, the share within NEAR slots of what was written before decoding;
    None: nothing was. `early=1` is the share of all slots: what decoding everywhere equally would give."""
    given = [slot for slot, when in enumerate(order) if when < 0]
    hit = [slot for slot, when in enumerate(order) if 0 <= when < early_steps(forwards, early)]
    return sum(any(abs(slot - a) <= NEAR for a in given) for slot in hit) / len(hit) if given and hit else None


def summarise(examples: Sequence[Example], length: int) -> dict[str, Any]:
    """The figures of one run; shares, not percent."""

    def share(key: str) -> float | None:
        return mean([float(value) for example in examples if (value := example.get(key)) is not None])

    right, n = sum(example["correct"] for example in examples), len(examples)
    seconds, forwards = sum(example["seconds"] for example in examples), sum(example["nfe"] for example in examples)
    written = sum(length * (1 - example["eot_ratio_all"]) for example in examples)
    groups = sorted({str(example["group"]) for example in examples if example.get("group") is not None})
    found: dict[str, Any] = {
        "accuracy": right / n if n else None,
        "interval": list(wilson(right, n)),
        "correct": right,
        "rows": n,
        "eot_ratio": share("eot_ratio"),
        "eot_ratio_all": share("eot_ratio_all"),
        "answer_found": sum(example["rule"] != "none" for example in examples) / n if n else None,
        "early_answer": share("early_answer"),
        "answer_progress": share("answer_progress"),
        "nfe": share("nfe"),
        "work": share("work"),
        "tie_rate": share("tie_rate"),
        "tokens_per_forward": n * length / forwards if forwards else None,
        "tokens_per_second": n * length / seconds if seconds else None,
        "text_tokens_per_second": written / seconds if seconds else None,
        "seconds": seconds,
        "modes": {
            mode: mean([float(e["modes"][mode]) for e in examples])
            for mode in (examples[0]["modes"] if examples else ())
        },
    }
    if groups:
        parts = {group: [e for e in examples if str(e["group"]) == group] for group in groups}
        found["groups"] = {
            g: {"accuracy": mean([float(e["correct"]) for e in es]), "rows": len(es)} for g, es in parts.items()
        }
    return found
