"""What `pip wheel .` makes runs elsewhere: nothing in it needs the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def run(*command: str, **options) -> str:
    done = subprocess.run(command, capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_wheel_installed_elsewhere_runs_the_demo(tmp_path):
    pip = (sys.executable, "-m", "pip", "--quiet")
    source = tmp_path / "source"  # a build leaves its traces: not in the checkout
    run("git", "clone", "--quiet", str(ROOT), str(source)) if (ROOT / ".git").exists() else source.symlink_to(ROOT)
    run(*pip, "wheel", str(source), "--no-deps", "--no-build-isolation", "-w", str(tmp_path / "wheels"))
    (wheel,) = (tmp_path / "wheels").glob("unmask-*.whl")
    assert wheel.stat().st_size < 20_000_000
    there = tmp_path / "site"
    run(*pip, "install", "--no-deps", "--target", str(there), str(wheel))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(there), "OMP_NUM_THREADS": "1"}
    found = run(sys.executable, "-c", "import unmask; print(unmask.__file__)", cwd=elsewhere, env=environment)
    assert found.startswith(str(there))
    said = run(sys.executable, "-m", "unmask", "demo", "--questions", "1", cwd=elsewhere, env=environment)
    assert "sacm" in said and "replay.html" in said and (elsewhere / "replay.html").stat().st_size > 10_000


def test_importing_and_loading_print_nothing(tmp_path):
    """Also where torchao is installed, which logs what it could not load."""
    program = "import unmask; unmask.load('tiny')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path,
                          env={**os.environ, "PYTHONPATH": str(ROOT)})  # fmt: skip
    assert done.returncode == 0 and done.stdout == done.stderr == ""
