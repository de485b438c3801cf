"""The folder of a run, which survives a crash: one JSON line per example, written batch by batch, and one process at a time."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from unmask.errors import UserError
from unmask.files import write_bytes

Example = dict[str, Any]


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One process a folder. The lock goes with the process, however it ends."""
    import fcntl

    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / "lock").open("a+")
    except OSError as error:
        raise UserError(f"cannot write in {folder}: {error.strerror}") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            raise UserError(
                f"{folder} is in use by process {file.read().strip() or '?'}; wait for it, or pass another --out"
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def finished(path: Path, batches: Sequence[Sequence[int]]) -> list[Example]:
    """The examples of the batches a previous run completed. A torn last line and an unfinished batch are dropped and the
    batch is done again whole, so that a resumed run equals a straight one."""
    found: dict[int, Example] = {}
    if not path.exists():
        return []
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    for line in lines:
        try:
            example = json.loads(line)
            found[example["index"]] = example
        except (ValueError, KeyError, TypeError):  # torn by a crash
            continue
    kept = [found[i] for batch in batches if all(i in found for i in batch) for i in batch]
    content = "".join(json.dumps(example, ensure_ascii=False) + "\n" for example in kept).encode()
    if content != b"\n".join(lines):
        write_bytes(path, content)
    return kept


def append(path: Path, examples: Sequence[Example]) -> None:
    """On the disk before the next batch begins."""
    try:
        with path.open("ab") as file:
            file.write("".join(json.dumps(example, ensure_ascii=False) + "\n" for example in examples).encode())
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror}; what was finished is kept, the same command resumes"
        ) from None
