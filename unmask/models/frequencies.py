"""UNCODE's background token frequencies: counted from any corpus, kept in the layout PC-Sampler publishes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unmask.errors import UserError


def count(lines: Iterable[str], tokens: Callable[[str], list[int]]) -> dict[str, Any]:
    """{"num_token": N, "p_baseline_dict": {id: count}} over the lines; `tokens` turns text into ids."""
    counts: Counter[int] = Counter()
    for line in lines:
        counts.update(tokens(line))
    if not counts:
        raise UserError("the corpus has no text to count")
    return {"num_token": counts.total(), "p_baseline_dict": {str(i): n for i, n in sorted(counts.items())}}


def lines(files: Iterable[str]) -> Iterator[str]:
    """The lines of text files; of JSONL files, the "text" of every row."""
    for name in files:
        try:
            with open(name, encoding="utf-8") as f:
                for number, line in enumerate(f, 1):
                    if not name.endswith(".jsonl"):
                        yield line.rstrip("\n")
                        continue
                    try:
                        yield json.loads(line)["text"]
                    except (json.JSONDecodeError, KeyError, TypeError) as error:
                        raise UserError(f'{name}, line {number}: a row is an object with "text"') from error
        except OSError as error:
            raise UserError(f"{name} cannot be read: {error.strerror}") from error


def read(file: Path, size: int) -> Tensor:
    """(V,) frequencies from such a file; ids that were never seen get 1 / N."""
    try:
        table = json.loads(file.read_text())
        total, counts = table["num_token"], table["p_baseline_dict"]
    except FileNotFoundError as error:
        raise UserError(
            f"there is no frequency table {file}; make one with `unmask frequencies CORPUS --model M -o {file}`"
        ) from error
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise UserError(f'{file} is not a frequency table: it needs "num_token" and "p_baseline_dict"') from error
    frequency = torch.full((size,), 1 / total)
    for token, n in counts.items():
        if not 0 <= int(token) < size:
            raise UserError(
                f"{file} counts token {token}, which this model (of {size} tokens) does not have: it is another model's table"
            )
        frequency[int(token)] = n / total
    return frequency
