"""The command line: one short function for each command. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import argparse
import difflib
import errno
import os
import shutil
import sys
import tempfile
import traceback
import warnings
from contextlib import suppress
from typing import NoReturn

from unmask import __version__
from unmask.cli import chat, decode, look, measure, paper, serve, tools, train  # noqa: F401 (importing them registers their commands)
from unmask.cli.options import COMMANDS
from unmask.errors import UserError


class _Help(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str):
        super().__init__(prog, max_help_position=30, width=min(120, shutil.get_terminal_size((110, 40)).columns))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line, as for any other bad input."""
        name = self.prog.split()[-1]
        hint = f"`unmask {name} --help`" if name in COMMANDS else "`unmask --help`"
        raise UserError(f"{message}; see {hint}")


def parser() -> argparse.ArgumentParser:
    first = ("demo", "generate", "chat", "compare", "methods", "trace", "figure", "eval", "doctor")  # for newcomers
    found = {name: COMMANDS[name] for name in first} | COMMANDS
    width = max(map(len, found))
    listing = "\n".join(f"  {name:{width}}  {summary}" for name, (_, _, summary, _) in found.items())
    top = _Parser(
        prog="unmask", formatter_class=_Help, usage="unmask COMMAND ...",
        description=f"Decoding for masked diffusion language models.\n\n  unmask generate \"your question\"\n\ncommands:\n{listing}",
        epilog="`unmask COMMAND --help` shows what a command takes, by example.",
    )  # fmt: skip
    top.add_argument("--version", action="version", version=f"unmask {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", help=argparse.SUPPRESS)
    for name, (_, add, summary, examples) in found.items():
        text = f"{examples.strip(chr(10))}\n\n{summary}."
        add(commands.add_parser(name, description=text, formatter_class=_Help, usage=f"unmask {name} ..."))
    return top


def main(argv: list[str] | None = None) -> None:
    """Run a command line. Bad input is one line and exit code 2; anything unforeseen is one line, a file to attach to a report, and 1."""
    warnings.showwarning = lambda message, *_, **__: print(f"unmask: {message}", file=sys.stderr)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a terminal limited to ASCII or Latin-1 gets escapes, not a traceback
            stream.reconfigure(errors="backslashreplace")
    try:
        run(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()
    except UserError as error:
        _end(2, str(error))
    except BrokenPipeError:
        _end(0)
    except KeyboardInterrupt as error:
        _end(130, str(error) or "stopped; what was finished is kept")
    except RecursionError:
        _end(2, "the input is nested too deeply")
    except Exception as error:
        if os.environ.get("UNMASK_DEBUG"):
            raise
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EIO) and not error.filename:
            _end(2, f"cannot write the output: {error.strerror}")
        _end(1, _unforeseen(error))


def _end(code: int, line: str = "") -> NoReturn:
    """Say why, and leave. Standard output may be gone or full: what is left in it is dropped, not tried again at exit."""
    with suppress(OSError, ValueError):
        sys.stdout.flush()
    if line:
        with suppress(OSError, ValueError):
            print(f"unmask: {line}", file=sys.stderr, flush=True)
    if code != 2 or not line:
        with suppress(OSError, ValueError, AttributeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def _unforeseen(error: Exception) -> str:
    """One line, and the traceback in a file to attach to a report."""
    said = f"{type(error).__name__}: {' '.join(str(error).split()):.200}"
    try:
        with tempfile.NamedTemporaryFile("w", prefix="unmask-", suffix=".txt", delete=False) as file:
            file.write(f"unmask {__version__}\n{sys.argv!r}\n\n{''.join(traceback.format_exception(error))}")
        return f"something went wrong that nobody foresaw ({said}); please report it with {file.name} (UNMASK_DEBUG=1 shows it here)"
    except OSError:
        return f"something went wrong that nobody foresaw ({said}); UNMASK_DEBUG=1 shows where"


def run(argv: list[str]) -> None:
    for word in argv:
        if any("\udc80" <= sign <= "\udcff" for sign in word):  # how Python hands on bytes that are not UTF-8
            raise UserError(f"{word.encode(errors='backslashreplace').decode()!r:.60} is not UTF-8 text")
    if argv and not argv[0].startswith("-") and argv[0] not in COMMANDS:
        near = difflib.get_close_matches(argv[0], COMMANDS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "`unmask --help` lists them"
        raise UserError(f"there is no command {argv[0]!r}; {hint}")
    whole = parser()
    args = whole.parse_args(argv)
    if args.command:
        COMMANDS[args.command][0](args)
    else:
        whole.print_help()
