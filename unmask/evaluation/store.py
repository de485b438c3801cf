"""The folder of a run, which survives a crash: one JSON line per example, written batch by batch, and one process at a time."""

from __future__ import annotations

import json
import operator
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from unmask.errors import UserError
from unmask.files import write_bytes

if TYPE_CHECKING:
    from unmask.generation import Prompt

Example = dict[str, Any]


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One process per folder. The lock ends with the process, however that ends."""
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


def examples(path: Path) -> dict[int, Example]:
    """The examples of a run by the index of their row; what a crash has torn is left out."""
    found: dict[int, Example] = {}
    try:
        lines = path.read_bytes().split(b"\n") if path.exists() else []
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    for line in lines:
        with suppress(ValueError, KeyError, TypeError):
            example = json.loads(line)
            found[operator.index(example["index"])] = example
    return found


def finished(
    path: Path, batches: Sequence[Sequence[int]], given: Mapping[int, Example] = MappingProxyType({})
) -> list[Example]:
    """The examples that were given (borrowed), and those of the batches a previous run completed. A torn last line and an
    unfinished batch are dropped and the batch is done again whole, so that a resumed run equals a straight one."""
    found = examples(path)
    kept = [*given.values(), *(found[i] for batch in batches if all(i in found for i in batch) for i in batch)]
    content = "".join(json.dumps(example, ensure_ascii=False) + "\n" for example in kept).encode()
    if content != (path.read_bytes() if path.exists() else b""):
        write_bytes(path, content)
    return kept


def borrowed(
    lines: Path, about: Path, identity: Mapping[str, Any], prompts: Sequence[Prompt], golds: Sequence[object]
) -> dict[int, Example]:
    """Answers to the same prompts, by index, from runs of this folder that differ in their number of rows alone (--limit).

    They stand: a row draws by its own number, and the rows it is batched with change its tokens only where two scores are
    equal but for rounding. Each says in "from" which run decoded it. A run borrows when it begins; resumed, it keeps those.
    """
    if lines.exists():
        return {i: example for i, example in examples(lines).items() if "from" in example}
    found: dict[int, Example] = {}
    for other in sorted(about.parent.glob("*.json")):
        try:
            record = json.loads(other.read_text())
            theirs, sha256 = dict(record["recipe"]), record["recipe_sha256"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError):  # a summary, or no record of ours
            continue
        if other != about and _but_for_rows(theirs) == _but_for_rows(json.loads(json.dumps(identity, default=str))):
            for i, example in examples(other.with_suffix(".jsonl")).items():
                if i < len(prompts) and (example.get("prompt"), example.get("gold")) == (prompts[i], golds[i]):
                    found.setdefault(i, {"from": sha256, **example})
    return found


def _but_for_rows(recipe: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in recipe.items() if name not in ("rows", "prompts_sha256")}


def append(path: Path, examples: Sequence[Example]) -> None:
    """On disk before the next batch begins."""
    try:
        with path.open("ab") as file:
            file.write("".join(json.dumps(example, ensure_ascii=False) + "\n" for example in examples).encode())
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror}; what was finished is kept, the same command resumes"
        ) from None
