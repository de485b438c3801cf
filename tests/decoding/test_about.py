"""What is said of every method is there and true."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.command import refused, run

from unmask.decoding.about import FAMILIES
from unmask.decoding.methods import ABOUT, METHODS
from unmask.decoding.settings import offered

GOLDEN = Path(__file__).parents[1] / "golden"
RECORDED = {
    r["decoder"]
    for name in ("trajectories", "trajectories_zoo")
    for r in json.loads((GOLDEN / f"{name}.json").read_text())
}


def test_every_row_is_described_and_its_recording_is_there():
    assert set(ABOUT) == set(METHODS) and {about.family for about in ABOUT.values()} == set(FAMILIES)
    assert {about.pinned for about in ABOUT.values()} - {""} <= RECORDED


def test_the_command(capsys):
    whole = run(capsys, "methods")
    assert all(f"  {name} " in whole for name in METHODS) and "The paper's main table:" in whole
    one = run(capsys, "methods", "sacm")
    assert (
        "--set kappa=14  from 0.01 to 1e+06" in one
        and "--set text='The answer is'" in one
        and "AnchorModulation(" in one
    )
    assert json.loads(run(capsys, "methods", "klass", "--json"))["klass"]["pinned"] == "klass.stable_confident_decode"
    assert "did you mean 'sacm'" in refused(capsys, "methods", "sacn")


@pytest.mark.parametrize("name", METHODS)
def test_what_is_offered_can_be_set(name):
    for setting, value, _, _ in offered(METHODS[name]):
        try:
            assert METHODS[name].with_(**{setting: value}) == METHODS[name]
        except Exception as error:
            assert "build this Strategy in Python" in str(error)  # two rules have a setting of that name
