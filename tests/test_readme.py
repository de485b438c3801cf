"""What the README and the docs say is there is there, and what they show runs."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import pytest

from unmask import cli

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path, *kinds: str) -> list[str]:
    return [text for kind, text in re.findall(r"```(\w*)\n(.*?)```", page.read_text(), re.S) if kind in kinds]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_commands_parse(page):
    """Every `unmask ...` line of a shell block is one the command line takes."""
    for block in blocks(page, "", "sh", "bash", "console"):
        for line in block.replace("\\\n", " ").splitlines():
            line = line.strip().removeprefix("$ ").split("  #")[0].split(" > ")[0]
            if re.match(r"unmask [a-z]", line) and "..." not in line and "[" not in line:
                words = shlex.split(line)[1:]
                assert words[0] in cli.COMMANDS, line
                cli.parser().parse_args(words)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_python_is_python(page):
    for block in blocks(page, "python"):
        ast.parse(block if not block.lstrip().startswith('"') else "{" + block + "}")


@pytest.mark.parametrize("page", ["README.md", "docs/evaluation.md"])
def test_python_runs(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (first, *_) = blocks(ROOT / page, "python")
    exec(compile(first, page, "exec"), {})
    assert capsys.readouterr().out.strip()
