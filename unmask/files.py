"""Files, read and written: one place that says plainly what went wrong, and no file is ever left half written."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from unmask.errors import UserError


def read_text(path: str | Path) -> str:
    """The text of a file, or of standard input for "-"; UTF-8, with or without a byte order mark."""
    try:
        content = getattr(sys.stdin, "buffer", sys.stdin).read() if str(path) == "-" else Path(path).read_bytes()
    except (OSError, ValueError, AttributeError) as error:
        raise UserError(
            f"{_named(path)} cannot be read: {getattr(error, 'strerror', None) or 'it is closed'}"
        ) from None
    if isinstance(content, str):  # a standard input that was replaced by text
        return content
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{_named(path)} is not UTF-8 text (byte {error.start}); convert it first") from None


def parse_json(text: str | bytes, where: str | Path) -> Any:
    """A JSON value; `where` names the source if it is not valid."""
    try:
        return json.loads(text)
    except RecursionError:
        raise UserError(f"{where}: the JSON is nested too deeply") from None
    except ValueError as error:  # includes UnicodeDecodeError
        why = error.msg if isinstance(error, json.JSONDecodeError) else "not UTF-8 text"
        raise UserError(f"{where}: not JSON ({why})") from None


def read_json(path: str | Path) -> Any:
    return parse_json(read_text(path), path)


def read_rows(path: str | Path) -> Iterator[tuple[str, Any]]:
    """("FILE, line 3", value) for every line of a JSONL file, or ("FILE, row 3", value) of a file that is one JSON list."""
    text, whole = read_text(path), None
    if text.lstrip().startswith("["):
        with suppress(UserError):
            whole = parse_json(text, path)
    if isinstance(whole, list):
        yield from ((f"{_named(path)}, row {number}", row) for number, row in enumerate(whole, 1))
        return
    for number, line in enumerate(text.split("\n"), 1):  # not splitlines: a text may hold U+2028
        if line.strip():
            where = f"{_named(path)}, line {number}"
            yield where, parse_json(line, where)


def _named(path: str | Path) -> str:
    return "standard input" if str(path) == "-" else str(path)


def make_folder(path: str | Path) -> Path:
    """A folder to write in."""
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write in {path}: {error.strerror}") from None
    return Path(path)


def write_bytes(path: str | Path, content: bytes) -> None:
    """Replace a file at once or not at all: written beside it, then put in its place."""
    path = Path(path)
    beside = path.with_name(path.name + ".part")
    try:
        beside.write_bytes(content)
        os.replace(beside, path)
    except OSError as error:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        raise UserError(f"cannot write {path}: {error.strerror}; what was finished is kept") from None


def write_text(path: str | Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_whole(path: str | Path, value: Any) -> None:
    """A value as indented JSON."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False, default=str) + "\n")
