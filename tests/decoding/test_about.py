"""What is said of every method is there and true."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from support.command import refused, run

from unmask.decoding.about import FAMILIES
from unmask.decoding.methods import ABOUT, METHODS
from unmask.decoding.settings import offered
from unmask.errors import UserError

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden"
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


def test_the_listing_is_up_to_date_and_needs_no_torch():
    kept = json.loads((ROOT / "unmask" / "cli" / "methods.json").read_text())
    script = runpy.run_path(str(ROOT / "scripts" / "methods.py"))
    assert kept == json.loads(json.dumps(script["listing"]())), "run: python scripts/methods.py"
    program = "import sys; from unmask.cli import main; main(['methods', 'sacm']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, cwd=ROOT).returncode == 0


@pytest.mark.parametrize("name", METHODS)
def test_what_is_offered_can_be_set(name):
    for setting, value, _, _ in offered(METHODS[name]):
        assert METHODS[name].with_(**{setting: value}) == METHODS[name]


def test_where_two_rules_have_a_setting_of_one_name_the_name_says_which():
    method = METHODS["sacm-support-eb"]
    assert {"EntropyBound.gamma", "AnchorModulation.gamma", "kappa"} <= {name for name, *_ in offered(method)}
    changed = method.with_(**{"EntropyBound.gamma": 2.0})
    assert changed.select.gamma == 2 and changed.modifiers == method.modifiers
    with pytest.raises(UserError, match=r"say AnchorModulation\.gamma or EntropyBound\.gamma"):
        method.with_(gamma=1)
    with pytest.raises(UserError, match=r"no setting 'Quota\.gamma'; it has AnchorModulation\.gamma"):
        method.with_(**{"Quota.gamma": 1})
