"""Rows of a benchmark: from the Hugging Face Hub at a pinned revision, or from files (jsonl, json, gz, parquet)."""

from __future__ import annotations

import gzip
import hashlib
import json
import logging
import os
import socket
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from unmask.errors import UserError

Row = dict[str, Any]


@dataclass(frozen=True)
class Loaded:
    """Rows and where they came from, for the record of a run."""

    rows: list[Row]
    origin: str  # the Hub id, or the files
    revision: str  # the Hub commit, or "local"
    sha256: str  # of the bytes read
    root: Path | None = None  # the folder the files are in: pictures lie beside them
    skipped: tuple[str, ...] = ()  # malformed rows the user asked to skip, as "file:line: why"

    def first(self, limit: int | None) -> Loaded:
        """The first `limit` rows, or all of them."""
        if limit is not None and limit < 1:
            raise UserError(f"--limit is at least 1, not {limit}")
        return self if limit is None else replace(self, rows=self.rows[:limit])


@dataclass(frozen=True)
class Source:
    """One split. `layouts` are alternatives, each a set of glob patterns read in order; the first is the Hub's."""

    repo: str  # Hugging Face dataset id; "" where the Hub has no such split
    revision: str
    layouts: tuple[tuple[str, ...], ...]
    fields: tuple[str, ...]  # a row without these is malformed
    url: str = ""  # where the original files are, for whoever has no Hub
    keep: Callable[[Row], bool] | None = None
    adapt: Callable[[Row, str], Row] | None = None  # (raw row, file name) -> row with this task's field names

    def load(self, task: str, data: str | Path | None = None, skip_bad: bool = False, beside: bool = False) -> Loaded:
        """Rows from `data` (a file or a folder), else from the Hub. `beside`: a file given is the test split's, so
        look in its folder (few-shot rows, tuning rows)."""
        if data is None:
            root = self._download(task)
            return self._read(self._match(root, self.layouts[:1]), root, skip_bad, self.repo, self.revision)
        path = Path(data).expanduser()
        if not path.exists():
            raise UserError(f"{task}: no file or folder {path}; {self._advice()}")
        if path.suffix.lower() == ".zip":
            path = unpacked(path)
        if path.is_file() and not beside:
            return self._read([path], path.parent, skip_bad)
        folder = path.parent if path.is_file() else path
        below = sorted(inner for depth in ("*", "*/*") for inner in folder.glob(depth) if inner.is_dir())
        for root in (folder, folder / task, folder / task.replace("-", "_"), folder / task.replace("-", ""), *below):
            if files := self._match(root, self.layouts):
                return self._read(files, root, skip_bad)
        raise UserError(f"{task}: {folder} has none of {self._names()}; {self._advice()}")

    def _names(self) -> str:
        return " or ".join(" + ".join(layout) for layout in self.layouts)

    def _advice(self) -> str:
        where = self.url or (f"https://huggingface.co/datasets/{self.repo}" if self.repo else "")
        return (
            f"get {self._names()}"
            + (f" from {where}" if where else "")
            + " and pass --data FILE_OR_FOLDER, or set UNMASK_DATA"
        )

    @staticmethod
    def _match(root: Path, layouts: Sequence[Sequence[str]]) -> list[Path]:
        for layout in layouts:
            found = [sorted(root.glob(pattern)) for pattern in layout]
            if all(found):
                return [path for group in found for path in group]
        return []

    def _download(self, task: str) -> Path:
        if not self.repo:
            raise UserError(f"{task}: this split is not on the Hugging Face Hub; {self._advice()}")
        from huggingface_hub import snapshot_download

        wanted: dict[str, Any] = {
            "repo_type": "dataset",
            "revision": self.revision,
            "allow_patterns": list(self.layouts[0]),
        }
        with suppress(Exception):  # an earlier download needs no network, and no waiting for one
            root = Path(snapshot_download(self.repo, local_files_only=True, **wanted))
            if self._match(root, self.layouts[:1]):
                return root
        logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # errors are reported once, below
        try:
            reachable()
            return Path(snapshot_download(self.repo, etag_timeout=5, **wanted))
        except Exception as error:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise UserError(f"{task}: cannot download {self.repo} ({reason[:120]}); {self._advice()}") from None

    def _read(self, files: list[Path], root: Path, skip_bad: bool, origin: str = "", revision: str = "local") -> Loaded:
        if not files:
            raise UserError(f"{origin}: no file matches {self._names()}")
        digest, rows, skipped = hashlib.sha256(), [], []
        for path in files:
            try:
                content = path.read_bytes()
            except OSError as error:
                raise UserError(f"cannot read {path}: {error.strerror}") from None
            digest.update(content)
            for place, raw in parse(path, content):
                row, why = self._accept(raw, path.name)
                if why and not skip_bad:
                    raise UserError(f"{path}:{place}: {why}; fix it, or pass --bad-rows skip")
                if why:
                    skipped.append(f"{path}:{place}: {why}")
                elif self.keep is None or self.keep(row):
                    rows.append(row)
        if not rows:
            raise UserError(f"{', '.join(map(str, files))}: no usable row")
        names = origin or ", ".join(str(path) for path in files)
        return Loaded(rows, names, revision, digest.hexdigest(), root, tuple(skipped))

    def _accept(self, raw: object, name: str) -> tuple[Row, str]:
        """The row with this task's field names, and what is wrong with it ("" if nothing is)."""
        if isinstance(raw, Exception):
            return {}, f"not JSON ({raw})"
        if not isinstance(raw, dict):
            return {}, f"a row must be an object, not {type(raw).__name__}"
        try:
            row = self.adapt(raw, name) if self.adapt else raw
        except UserError as error:
            return {}, str(error)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            return {}, f"cannot be read as a row ({type(error).__name__}: {error})"
        missing = [field for field in self.fields if row.get(field) is None]
        return row, f"no field {', '.join(map(repr, missing))}" if missing else ""


@dataclass(frozen=True)
class Made:
    """Rows a function makes (the bundled model's own tasks): the same every time."""

    make: Callable[[], list[Row]]
    revision: str = "1"

    def load(self, task: str, data: str | Path | None = None, skip_bad: bool = False, beside: bool = False) -> Loaded:
        if data is not None:
            raise UserError(f"{task} makes its own rows; leave --data out")
        rows = self.make()
        digest = hashlib.sha256(json.dumps(rows, sort_keys=True, default=str).encode()).hexdigest()
        return Loaded(rows, "generated", self.revision, digest)


def unpacked(archive: Path) -> Path:
    """A folder with the contents of a zip file, kept in the user's cache."""
    try:
        stamp = hashlib.sha256(f"{archive.resolve()}:{archive.stat().st_size}:{archive.stat().st_mtime_ns}".encode())
        cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "unmask"
        folder = cache / f"{archive.stem}-{stamp.hexdigest()[:12]}"
        if not folder.is_dir():
            cache.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=cache) as beside, zipfile.ZipFile(archive) as files:
                files.extractall(Path(beside) / "all")
                os.rename(Path(beside) / "all", folder)
        return folder
    except (zipfile.BadZipFile, OSError) as error:
        raise UserError(f"{archive} cannot be unpacked ({error}); unzip it yourself and pass the folder") from None


def reachable() -> None:
    """Fail at once where there is no network at all: the Hub's client would retry for half a minute."""
    endpoint = urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co")
    if not getproxies():
        socket.getaddrinfo(endpoint.hostname, endpoint.port or 443)


def parse(path: Path, content: bytes) -> Iterator[tuple[int, object]]:
    """(line or row number, row) of a file; a line that is not JSON yields the exception in place of the row."""
    name = path.name.lower()
    if name.endswith(".parquet"):
        yield from enumerate(parquet(content), 1)
        return
    if name.endswith(".gz"):
        try:
            content, name = gzip.decompress(content), name[:-3]
        except (OSError, EOFError) as error:
            raise UserError(f"{path}: not a gzip file ({error})") from None
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text (byte {error.start})") from None
    if name.endswith(".json") and text.lstrip()[:1] in ("[", "{"):
        try:
            whole = json.loads(text)
        except json.JSONDecodeError as error:
            if "Extra data" not in error.msg:  # json lines under the name .json are read below
                raise UserError(f"{path}:{error.lineno}: not JSON ({error.msg})") from None
        else:
            # MathVista keys its rows by pid; a lone object with a question is a row itself
            rows = (
                whole.values()
                if isinstance(whole, dict) and all(isinstance(v, dict) for v in whole.values())
                else whole
            )
            yield from enumerate([rows] if isinstance(rows, dict) else rows, 1)
            return
    for number, line in enumerate(text.split("\n"), 1):  # not splitlines: a row may hold \x0c or \u2028
        if line.strip():
            try:
                yield number, json.loads(line)
            except json.JSONDecodeError as error:
                yield number, error


def parquet(content: bytes) -> list[Row]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UserError('reading parquet needs pyarrow: pip install "unmask[eval]"') from None
    try:
        return pyarrow.parquet.read_table(pyarrow.BufferReader(content)).to_pylist()
    except pyarrow.ArrowException as error:
        raise UserError(f"not a parquet file ({error})") from None
