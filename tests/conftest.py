"""Tests run single-threaded and offline, and share what is in `support`."""

import os
import signal
import sys
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, str(Path(__file__).parent))  # for `support`

from support.browser import browser  # noqa: F401

signal.signal(
    signal.SIGINT, signal.default_int_handler
)  # a job in the background ignores it, and so would its children


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Random weights, smaller than the bundled model, for what is about bookkeeping."""
    from support import checkpoints

    return checkpoints.llada(tmp_path_factory.mktemp("model") / "small")


@pytest.fixture(scope="module")
def model(folder):
    import unmask

    return unmask.load(folder)
