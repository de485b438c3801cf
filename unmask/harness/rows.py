"""What the task files call: the rows of one of our tasks as lm-eval's documents, and our grade of a response to one."""

from __future__ import annotations

import json
import os
from typing import Any

from unmask.tasks import find
from unmask.tasks.data import Made


def load(task: str, data: str | None = None, **_: Any) -> dict[str, Any]:
    """The test rows of a task, prompts rendered, few-shots included. They come from where `unmask eval` finds them:
    `--metadata data=PATH` or UNMASK_DATA is its --data, else the Hub. (lm-eval hands over the model's settings too.)"""
    from datasets import Dataset

    known = find(task)
    path = None if isinstance(known.rows, Made) else data or os.environ.get("UNMASK_DATA")
    found = known.load("test", path)
    # A row is passed as JSON: as columns, lm-eval's tables would fill gaps and force types on what our graders read.
    documents = [
        {
            "task": known.name,
            "index": i,
            "id": known.identify(row, i),
            "prompt": known.render(row, found.few_shot),
            "gold": str(row.get(known.gold)),
            "row": json.dumps(row, ensure_ascii=False),
        }
        for i, row in enumerate(found.rows)
    ]
    return {"test": Dataset.from_list(documents)}


def grade(document: dict[str, Any], responses: list[str]) -> dict[str, float]:
    """Accuracy by our grader, the share of responses with an answer in them, and accuracy by the task's parity graders."""
    task, row, text = find(document["task"]), json.loads(document["row"]), responses[0]
    found = task.grader()(text, row)
    modes = {mode: float(grader(text, row).correct) for mode, grader in task.modes.items()}
    return {"acc": float(found.correct), "answer_found": float(found.rule != "none"), **modes}
