"""What identifies a run does not change by accident: the hashes of ten recipes, kept from before the package was rearranged.

A run's files are named by its recipe's hash, so a hash that changes would orphan every run that people have on disk. A change
that is meant goes into CHANGELOG.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from unmask.decoding.canvas import Vocab
from unmask.evaluation.recipe import Options, digest, for_task, recipe
from unmask.models.denoisers import chain
from unmask.tasks import Loaded, Rows, find

ROWS = [{"id": f"row-{i}", "question": f"What is {i} + {i}?", "answer": f"#### {2 * i}"} for i in range(3)]
DATA = Loaded(ROWS, "fixed", "1", "0" * 64)
ALONE, SHOWN = Rows(DATA), Rows(DATA, DATA)  # without and with few-shot rows


class Ours(torch.nn.Linear):
    """A module of ours in name: recipes never run it."""

    hidden = head = shifted = None


class Scripted:
    """As much of a model as a recipe reads."""

    name, weights_hash, chats, adapter = "scripted", "f" * 64, True, None
    vocab = Vocab(0, (1,), torch.arange(8) / 28)
    module = Ours(2, 2)
    device = torch.device("cpu")

    def tokens(self, text: str) -> list[int]:
        return [3 + len(word) for word in text.split()]

    def denoiser(self, cfg: float = 0.0, cache: str | None = None):
        return chain(self.module, cfg=cfg, cache=cache)


def of(name: str, task: str = "gsm8k", wanted: dict | None = None, rows: Rows = ALONE, seed: int = 0, **options) -> str:
    task = find(task)
    strategy = for_task(task, [name], wanted)[name]
    return digest(recipe(Scripted(), task, strategy, rows, Options(**options), seed))[:16]


KEPT = {
    "sacm": ("8fb253b7240bf18b", lambda: of("sacm")),
    "sacm, other settings": (
        "0dd41c749fd9a175",
        lambda: of("sacm", wanted={"kappa": 12, "text": "Answer:", "at": -40}),
    ),
    "suffix-anchor, few-shot": ("0409f8df782b4f62", lambda: of("suffix-anchor", rows=SHOWN, batch=4)),
    "top-probability, T = 64": ("fbb494474a5bd707", lambda: of("top-probability", steps=64, length=128)),
    "fast-dllm, dual cache": ("0ca0b216fd7a4440", lambda: of("fast-dllm", cache="dual")),
    "uniform, second seed": ("bbeccc464eb24b63", lambda: of("uniform", seed=1)),
    "remdm-official": ("3850a09f881c357e", lambda: of("remdm-official")),
    "uncode, guided": ("8cc5934197ae368f", lambda: of("uncode", cfg=1.5)),
    "template-infilling, int8": (
        "f0e308620f547d40",
        lambda: of("template-infilling", model_options={"quantize": "int8"}),
    ),
    "eot-forbidden, greedy": ("6dca85a12377124c", lambda: of("eot-forbidden", temperature=0.0)),
}


@pytest.mark.parametrize("case", KEPT)
def test_recipe(case):
    kept, made = KEPT[case]
    assert made() == kept


def test_eval_as_it_is_typed(monkeypatch, tmp_path):
    """`unmask eval` without further options."""
    from unmask import cli
    from unmask.cli import options
    from unmask.evaluation import evaluate

    asked = SimpleNamespace()
    monkeypatch.setattr(options, "load", lambda args: Scripted())
    monkeypatch.setattr(evaluate, "evaluate", lambda *given: vars(asked).update(options=given[4]) or {})
    with pytest.raises(SystemExit):  # there is no summary to print
        cli.main(["eval", "--task", "cups", "--methods", "remdm-official", "--out", str(tmp_path)])
    assert asked.options.temperature is None  # the method's own, as in `unmask reproduce`
