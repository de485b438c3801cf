"""Run generated code where it can do no harm: in an interpreter of its own, locked in by the kernel (Linux), with its tests
in another.

What this guards against, and what it does not, is in docs/evaluation.md."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from unmask.errors import UserError

JAIL = Path(__file__).with_name("jail.py")
TIMEOUT = 15.0  # seconds of CPU time: one of MBPP's reference solutions takes eight on a slow machine
PATIENCE = 4  # seconds on the clock for each of those, so that a score does not depend on what else the machine does
MEMORY = 1024  # megabytes of address space


class Outcome(NamedTuple):
    passed: bool
    reason: str  # "passed", "timeout", "died", or the name of the exception


class Program(NamedTuple):
    code: str
    tests: str  # run by the judge; a name they do not define is the program's
    setup: str = ""  # run by the judge before the tests: helpers that are given, not written
    names: tuple[str, ...] = ()  # the program's even where Python has them too, such as `sum`
    inside: bool = False  # run the tests in the program's own process, because they hand it more than plain values


def run(program: Program, timeout: float = TIMEOUT, memory: int = MEMORY, unisolated: bool = False) -> Outcome:
    """Does the program's code pass its tests within `timeout` seconds of CPU time (PATIENCE times that on the clock)?
    `unisolated` allows running where the kernel offers no namespaces."""
    mode = isolation()
    if mode == "none" and not unisolated:
        raise UserError(
            "this system cannot isolate generated code (no Linux namespaces for this user): run in a container, "
            "or accept the risk with --unisolated-code"
        )
    if mode == "none":
        warnings.warn("generated code runs WITHOUT isolation: it can do all that this user can", stacklevel=2)
    return attempt(program, mode, timeout, memory)


def run_many(
    programs: Iterable[Program],
    timeout: float = TIMEOUT,
    memory: int = MEMORY,
    unisolated: bool = False,
    workers: int | None = None,
) -> list[Outcome]:
    """Each program in its own sandbox, as many at a time as there are cores."""
    with ThreadPoolExecutor(workers or os.cpu_count() or 1) as pool:
        return list(pool.map(lambda program: run(program, timeout, memory, unisolated), programs))


@lru_cache(maxsize=1)
def isolation() -> str:
    """The strongest that works here of "root" and "root+read" (namespaces made with privileges, then a user id of its
    own), "user" (user namespaces) and "none"."""
    if sys.platform == "linux":
        probe = Program(
            "import colorsys\nopen('x', 'w').write('x')\ndef f(): return open('x').read()", "assert f() == 'x'"
        )
        for mode in ("root", "root+read", "user"):
            if (mode == "user" or os.geteuid() == 0) and attempt(probe, mode, 20.0, MEMORY).passed:
                return mode
    return "none"


def attempt(program: Program, mode: str, timeout: float, memory: int) -> Outcome:
    """Two processes, the program's and the judge's, with a pipe each way between them; only the judge reports to us."""
    deadline = time.monotonic() + PATIENCE * timeout
    ours, judges = socket.socketpair()
    (asked, asking), (heard, answering) = os.pipe(), os.pipe()
    with contextlib.ExitStack() as stack:
        stack.callback(ours.close)
        try:
            for files in ((asked, answering), (judges.fileno(), judges.fileno(), heard, asking)):
                stack.enter_context(jailed(files, mode, timeout, memory))
        finally:
            judges.close()
            for file in (asked, asking, heard, answering):
                os.close(file)
        return converse(ours, program, deadline)


@contextlib.contextmanager
def jailed(files: Sequence[int], mode: str, timeout: float, memory: int) -> Iterator[None]:
    """A jail with these files open; it ends with the block."""
    folder = tempfile.mkdtemp(prefix="unmask-code-")  # the place of the private file system; itself never written to
    os.chmod(folder, 0o755)
    other_uid = 200_000 + secrets.randbelow(1_000_000)
    child = subprocess.Popen(
        [sys.executable, "-I", "-B", str(JAIL), mode, folder, str(other_uid), str(max(1, round(timeout))), str(memory),
         *map(str, files)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=files,
        cwd=folder if mode == "none" else "/",
        env={"PATH": "/usr/bin:/bin", "HOME": folder, "TMPDIR": folder, "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1",
             "OPENBLAS_NUM_THREADS": "1"},
        start_new_session=True,
    )  # fmt: skip
    try:
        yield
    finally:
        kill_group(child)
        shutil.rmtree(folder, ignore_errors=True)


def converse(judge: socket.socket, program: Program, deadline: float) -> Outcome:
    """Everything in, the verdict out."""
    data = json.dumps(program).encode()
    try:
        judge.settimeout(max(0.001, deadline - time.monotonic()))
        judge.sendall(b"%08d" % len(data) + data)
        verdict, size = b"", 8
        while len(verdict) < size:
            judge.settimeout(max(0.001, deadline - time.monotonic()))
            if not (more := judge.recv(4096)):
                return Outcome(False, "died")
            verdict += more
            size = 8 + int(verdict[:8]) if len(verdict) >= 8 else 8
    except TimeoutError:
        return Outcome(False, "timeout")
    except OSError:  # it closed its end
        return Outcome(False, "died")
    passed, reason = json.loads(verdict[8:])
    return Outcome(passed, "timeout" if reason == "OutOfTime" else reason)


def kill_group(child: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        child.kill()
    child.wait()
