"""Imports point downwards only: the tree is the architecture (CONTRIBUTING.md has the picture)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "unmask"
LAYERS = [  # from the bottom up; what shares a line does not import each other
    ["errors"],
    ["files", "progress", "tables"],
    ["decoding", "tasks"],
    ["plugins"],
    ["models"],
    ["generation"],
    ["training", "evaluation"],
    ["views"],
    ["paper", "serving"],
    ["harness"],
    ["tools"],
    ["cli"],
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
ALONE = {"decoding": {"errors"}, "tasks": {"errors"}}  # these could be used without the rest of the package
FILES = [
    file
    for file in sorted(PACKAGE.rglob("*.py"))
    if file.relative_to(PACKAGE).parts[0] not in ("__init__.py", "__main__.py")
]


def part(module: str) -> str:
    """unmask.decoding.canvas -> decoding"""
    return module.split(".")[1] if "." in module else ""


def imported(file: Path) -> set[str]:
    """The parts of the package that a file imports, at its top or inside its functions."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {part(name.name) for name in node.names if name.name.split(".")[0] == "unmask"}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "unmask":
            found |= {part(node.module)} if part(node.module) else {name.name for name in node.names}
    return found - {"__version__"}


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_imports_point_downwards(file):
    here = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
    for name in imported(file) - {here}:
        assert name, "import the module that defines it, not the package's front door"
        assert LEVEL[name] < LEVEL[here], f"{here} imports {name}, which stands above it or beside it"
        if here in ALONE:
            assert name in ALONE[here], f"{here} imports {name}"


def test_every_part_has_its_layer():
    found = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert found - {"__init__", "__main__"} == set(LEVEL)
