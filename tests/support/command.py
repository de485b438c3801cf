"""The command line as the tests call it."""

import pytest

from unmask import cli


def run(capsys, *argv) -> str:
    """What a command prints."""
    cli.main(list(map(str, argv)))
    return capsys.readouterr().out


def refused(capsys, *argv) -> str:
    """The one line with which a command says no."""
    with pytest.raises(SystemExit) as stop:
        cli.main(list(map(str, argv)))
    out = capsys.readouterr()
    assert stop.value.code == 2 and out.out == "" and out.err.startswith("unmask: ") and out.err.count("\n") == 1, (
        out.err
    )
    return out.err
