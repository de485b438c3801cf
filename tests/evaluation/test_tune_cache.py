"""Tuning the near cache: what is chosen, by hand, and the command on a small model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import checkpoints
from support.command import run

from unmask.errors import UserError
from unmask.evaluation.tune_cache import GRID, Point, choose, points, values


def row(work: float, low: float) -> dict:
    return {"work": work, "less_plain_interval": [low, low + 0.05]}


def test_the_least_work_that_loses_little_is_chosen() -> None:
    safe, cheap, cheapest = row(0.2, -0.01), row(0.1, -0.039), row(0.05, -0.041)
    assert choose([safe, cheap, cheapest]) is cheap
    assert choose([safe, cheap, cheapest], loss=0.05) is cheapest
    assert choose([row(0.1, -0.2), row(0.3, -0.1)])["work"] == 0.3, "none is safe: the one that loses least"


def test_points() -> None:
    assert len(points(GRID)) == 16 and Point(8, 4, 2, 16).cache == "near:best=8,near=4,again=2,refresh=16"
    assert len(points({**GRID, "best": (0, 2), "near": (0, 1)})) == 12, "not those that would predict nothing"
    assert values("best", "2, 4") == (2, 4) and values("near", None) == (4, 8)
    for wrong in ("", "x", "1.5", "-1"):
        with pytest.raises(UserError, match="--best takes whole numbers"):
            values("best", wrong)


def test_the_command(tmp_path, monkeypatch, capsys) -> None:
    model = checkpoints.llada(tmp_path / "small")
    monkeypatch.chdir(tmp_path)
    line = ("tune", "--task", "cups", "--model", model, "--cache", "near", "--count", 4, "--length", 32, "--set", "finish=True",
            "--best", "2", "--near", "1,2", "--again", "1", "--refresh", "0")  # fmt: skip
    said = run(capsys, *line)
    assert "| plain" in said and "chosen" in said and "--cache near:best=2,near=" in said
    record = json.loads((folder := Path("runs/tune-small-cups-near")).joinpath("cache.json").read_text())
    assert record["split"] == "tuning" and record["rows"] == 4 and len(record["table"]) == 2
    assert "Finish(n=2)" in record["strategy"] and record["chosen"]["cache"] in [p["cache"] for p in record["table"]]
    assert all(0 < p["work"] < record["plain"]["work"] for p in record["table"])
    assert (folder / "table.md").is_file()
    assert run(capsys, *line) == said, "the same command decodes nothing again"
