"""Writes unmask/cli/methods.json, what `unmask methods` prints, so that the command need not import torch: python scripts/methods.py"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from unmask.files import write_whole

FILE = Path(__file__).parent.parent / "unmask" / "cli" / "methods.json"


def listing() -> dict[str, Any]:
    """Everything that is known of every method, as plain values."""
    from dataclasses import asdict

    from unmask.decoding.methods import ABOUT, METHODS
    from unmask.decoding.settings import offered, recipe

    return {
        name: {
            **asdict(ABOUT[name]), "needs": list(ABOUT[name].needs), "recipe": repr(strategy), "short": recipe(strategy),
            "settings": [list(setting) for setting in offered(strategy)],
        }
        for name, strategy in METHODS.items()
    }  # fmt: skip


if __name__ == "__main__":
    write_whole(FILE, listing())
    print(FILE)
