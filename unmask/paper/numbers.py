"""The numbers of the paper (arXiv 2605.28181), table by table: accuracy in percent, as printed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

LENGTH = {"gsm8k": 256, "math500": 256}  # 128 elsewhere
ROWS = {"gsm8k": 1319, "math500": 500, "strategyqa": 687, "mmlu_pro": 12032, "mathvista": 1000, "chartqa": 2500, "humaneval": 164,
        "mbpp": 500}  # fmt: skip
MODELS = {
    "GSAI-ML/LLaDA-8B-Instruct": "LLaDA",
    "GSAI-ML/LLaDA-1.5": "LLaDA-1.5",
    "jacklishufan/lavida-llada-v1.0-instruct": "LaViDa",
    "quasar529/rainbow-padding-llada": "LLaDA",
}


@dataclass(frozen=True)
class Published:
    """One cell."""

    table: str  # its LaTeX label
    model: str
    task: str
    method: str  # a row of unmask.decoding.methods
    accuracy: float
    length: int
    steps: int
    changes: Mapping[str, Any] = field(default_factory=dict)  # settings that differ from the method's row
    eot_ratio: float | None = None


MAIN: dict[str, dict[str, tuple[float, ...]]] = {  # GSM8K, MATH-500, StrategyQA, MMLU-Pro
    "LLaDA": {
        "semi-ar": (72.25, 25.40, 59.10, 38.18),
        "fast-dllm": (72.78, 28.60, 50.95, 38.74),
        "uniform": (47.16, 18.00, 58.81, 34.26),
        "top-probability": (14.94, 14.60, 19.65, 35.23),
        "top-margin": (14.78, 16.20, 28.53, 36.39),
        "remdm": (49.96, 18.40, 46.00, 38.39),
        "eot-suppression": (52.39, 20.80, 64.05, 37.83),
        "template-infilling": (61.94, 25.20, 65.21, 36.74),
        "uncode": (71.34, 27.60, 59.68, 36.57),
        "rainbow-padding": (69.37, 24.60, 68.56, 33.93),
        "suffix-anchor": (56.18, 22.40, 66.08, 38.30),
        "sacm": (76.88, 29.00, 70.45, 39.19),
        "sacm-margin": (72.33, 25.40, 68.12, 38.42),
    },
    "LLaDA-1.5": {
        "semi-ar": (73.77, 29.00, 64.19, 39.03),
        "fast-dllm": (75.51, 31.00, 61.28, 39.35),
        "uniform": (49.81, 19.40, 65.36, 35.70),
        "top-probability": (23.35, 19.40, 43.67, 38.54),
        "top-margin": (28.58, 19.80, 50.95, 39.05),
        "remdm": (50.49, 19.00, 49.20, 38.58),
        "eot-suppression": (51.93, 19.40, 66.81, 38.69),
        "template-infilling": (62.02, 24.60, 65.21, 37.45),
        "uncode": (74.00, 29.40, 63.17, 38.06),
        "rainbow-padding": (64.14, 22.60, 67.98, 35.59),
        "suffix-anchor": (51.40, 21.00, 66.67, 38.55),
        "sacm": (75.59, 33.40, 70.31, 39.76),
        "sacm-margin": (70.96, 25.80, 68.56, 39.39),
    },
}
ANCHORED_MARGIN = {  # "ours without confidence modulation" on top-margin decoding; LLaDA's row is printed as the one above
    "LLaDA": (56.18, 22.40, 66.08, 38.30),
    "LLaDA-1.5": (54.66, 21.20, 66.08, 38.72),
}
VISION: dict[str, tuple[float, ...]] = {  # MathVista, ChartQA, with LaViDa
    "semi-ar": (39.50, 35.88),
    "fast-dllm": (40.30, 37.28),
    "uniform": (39.60, 27.12),
    "top-probability": (40.30, 24.12),
    "top-margin": (39.60, 23.24),
    "remdm": (42.30, 29.16),
    "eot-suppression": (44.30, 33.20),
    "template-infilling": (45.60, 31.12),
    "uncode": (40.80, 32.64),
    "sacm": (45.30, 46.04),
}
CODE: dict[str, dict[str, tuple[float, ...]]] = {  # HumanEval, MBPP
    "LLaDA": {
        "uniform": (18.90, 22.40),
        "top-probability": (17.07, 19.20),
        "top-margin": (17.07, 24.40),
        "suffix-anchor": (28.66, 25.80),
        "sacm": (32.93, 28.40),
    },
    "LLaDA-1.5": {
        "uniform": (20.12, 22.80),
        "top-probability": (20.12, 25.80),
        "top-margin": (22.56, 28.20),
        "suffix-anchor": (29.88, 28.00),
        "sacm": (35.98, 30.60),
    },
}
STEPS = (32, 64, 128, 256)
PARALLEL: dict[tuple[str, int | None], tuple[float, ...]] = {  # (method, block): accuracy at those steps, GSM8K, LLaDA
    ("uniform", None): (39.04, 44.50, 47.16, 51.48),
    ("top-probability", None): (32.52, 26.46, 14.94, 2.96),
    ("top-margin", None): (34.04, 25.09, 14.78, 7.35),
    ("sacm", None): (57.70, 69.67, 76.88, 77.41),
    ("semi-ar", 8): (11.37, 56.71, 72.33, 74.07),
    ("semi-ar", 16): (21.15, 60.96, 73.39, 74.07),
    ("semi-ar", 32): (29.72, 63.31, 72.25, 73.01),
    ("semi-ar", 64): (36.32, 63.46, 72.18, 71.87),
}
LENGTHS = {"top-probability": {64: 39.35, 128: 23.58, 256: 14.94}, "sacm": {64: 62.55, 128: 75.82, 256: 76.88}}
WITHOUT_PROGRESS = 72.25  # "ours w/o progress dependence": gamma = 0
ANCHORS = {  # text: (suffix-anchor, sacm) with LLaDA, then with LLaDA-1.5; the first row's 49.89 is 56.18 in the main table
    "The answer is": ((49.89, 76.88), (51.40, 75.59)),
    "Therefore, the answer is": ((52.77, 74.45), (50.64, 73.62)),
    "Answer:": ((49.58, 73.16), (49.51, 73.24)),
    ",": ((55.12, 73.77), (51.86, 72.18)),
    ".": ((54.13, 74.68), (53.53, 75.36)),
    "is": ((55.12, 73.62), (55.65, 73.77)),
}
POSITIONS = {  # text: position: (suffix-anchor accuracy, EOT ratio), (sacm accuracy, EOT ratio)
    "The answer is": {
        -20: ((49.89, 0.05), (76.88, 0.05)),
        -30: ((52.69, 0.09), (76.88, 0.09)),
        -40: ((55.04, 0.13), (76.65, 0.13)),
        -50: ((56.33, 0.17), (77.33, 0.17)),
        -60: ((56.48, 0.21), (74.68, 0.21)),
    },
    ".": {
        -20: ((54.13, 0.07), (74.68, 0.08)),
        -30: ((56.18, 0.11), (75.06, 0.12)),
        -40: ((56.48, 0.15), (74.37, 0.15)),
        -50: ((55.72, 0.19), (74.91, 0.19)),
        -60: ((56.94, 0.23), (73.31, 0.23)),
    },
}
TOP_PROBABILITY_EOT = 0.66  # GSM8K, LLaDA
SENSITIVITY: dict[str, dict[float, float]] = {  # 256 training rows of GSM8K, LLaDA; the others at (14, 1.3, 0.85)
    "kappa": {6: 73.83, 8: 78.52, 10: 76.96, 12: 80.08, 14: 82.03, 16: 79.30},
    "beta": {1.0: 78.13, 1.1: 77.74, 1.2: 80.08, 1.3: 82.03, 1.4: 79.30, 1.5: 80.47},
    "gamma": {0.40: 79.30, 0.55: 80.47, 0.70: 81.25, 0.85: 82.03, 1.00: 80.86, 1.15: 78.52},
}
SENSITIVITY_BASELINES = {"top-probability": 15.63, "suffix-anchor": 55.86}
EFFICIENCY = {"top-probability": (25.02, 10.23), "sacm": (24.93, 10.27)}  # tokens/s, s/sample on an A6000


def published() -> Iterator[Published]:
    """Every accuracy of the paper on test rows, the main tables first."""

    from unmask.decoding.rules.confidence import TopMargin

    def cell(table: str, model: str, task: str, method: str, accuracy: float, length: int = 0, steps: int = 0, eot: float | None = None,
             **changes: Any) -> Published:  # fmt: skip
        length = length or LENGTH.get(task, 128)
        return Published(table, model, task, method, accuracy, length, steps or length // 2, changes, eot)

    for model, rows in MAIN.items():
        for method, figures in rows.items():
            for task, accuracy in zip(("gsm8k", "math500", "strategyqa", "mmlu_pro"), figures, strict=True):
                yield cell("tab:main_text_results", model, task, method, accuracy)
    for model, figures in ANCHORED_MARGIN.items():
        for task, accuracy in zip(("gsm8k", "math500", "strategyqa", "mmlu_pro"), figures, strict=True):
            yield cell(
                "tab:confidence_strategy_results", model, task, "suffix-anchor", accuracy, confidence=TopMargin()
            )
    for method, figures in VISION.items():
        for task, accuracy in zip(("mathvista", "chartqa"), figures, strict=True):
            yield cell("tab:main_vl_results", "LaViDa", task, method, accuracy)
    for model, rows in CODE.items():
        for method, figures in rows.items():
            for task, accuracy in zip(("humaneval", "mbpp"), figures, strict=True):
                yield cell("tab:code_generation_results", model, task, method, accuracy)
    for (method, block), accuracies in PARALLEL.items():
        for steps, accuracy in zip(STEPS, accuracies, strict=True):
            changes = {"block": block} if block else {}
            yield cell("tab:semi_ar_comparison", "LLaDA", "gsm8k", method, accuracy, steps=steps, **changes)
    for method, by_length in LENGTHS.items():
        for length, accuracy in by_length.items():
            yield cell("tab:length_ablation", "LLaDA", "gsm8k", method, accuracy, length)
    yield cell("tab:progress_ablation", "LLaDA", "gsm8k", "sacm", WITHOUT_PROGRESS, gamma=0)
    for text, pairs in ANCHORS.items():
        for model, (alone, full) in zip(("LLaDA", "LLaDA-1.5"), pairs, strict=True):
            yield cell("tab:suffix_anchor_ablation", model, "gsm8k", "suffix-anchor", alone, text=text)
            yield cell("tab:suffix_anchor_ablation", model, "gsm8k", "sacm", full, text=text)
    for text, by_place in POSITIONS.items():
        for at, cells in by_place.items():
            for method, (accuracy, eot) in zip(("suffix-anchor", "sacm"), cells, strict=True):
                yield cell(
                    "tab:anchor_position_ablation", "LLaDA", "gsm8k", method, accuracy, eot=eot, text=text, at=at
                )


def sensitivity() -> Iterator[Published]:
    """The accuracies on training rows: the 16 points (the selected one once), then the two baselines."""
    seen: set[str] = set()
    for name, values in SENSITIVITY.items():
        for value, accuracy in values.items():
            changes = {"kappa": 14.0, "beta": 1.3, "gamma": 0.85, name: float(value)}
            if str(changes) not in seen:
                yield Published("tab:hyperparameter_sensitivity", "LLaDA", "gsm8k", "sacm", accuracy, 256, 128, changes)
            seen.add(str(changes))
    for method, accuracy in SENSITIVITY_BASELINES.items():
        yield Published("tab:hyperparameter_sensitivity", "LLaDA", "gsm8k", method, accuracy, 256, 128)


def family(model: str) -> str | None:
    """The paper's name for a checkpoint, by its hub id or a folder of that name."""
    tail = model.rstrip("/").rpartition("/")[2].lower()
    return next((name for known, name in MODELS.items() if known.rpartition("/")[2].lower() == tail), None)


def beside(record: Mapping[str, Any]) -> Published | None:
    """The paper's number for a run: the same model, task, length, steps and strategy; the main table's where two differ."""
    from unmask.decoding.methods import METHODS
    from unmask.evaluation.recipe import for_task
    from unmask.tasks import tasks

    recipe = record["recipe"]
    model, task = family(recipe["model"]), tasks().get(recipe["task"])
    if model is None or task is None:
        return None
    for cell in published():
        if (cell.model, cell.task, cell.length) != (model, task.name, recipe["length"]):
            continue
        trained = cell.method == "rainbow-padding"  # top-probability with another checkpoint
        if trained != ("rainbow" in recipe["model"].lower()):
            continue
        strategy = METHODS[cell.method]
        counted = strategy.pace == 0.5  # a threshold, or remasking, makes its own number of forwards
        if counted and cell.steps != recipe["steps"]:
            continue
        if repr(for_task(task, [cell.method], cell.changes)[cell.method]) == recipe["strategy"]:
            return cell
    return None
