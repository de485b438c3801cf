"""Run generated code where it can do no harm: a fresh interpreter per program, locked in by the kernel (Linux).

What it guards against and what no single process can be guarded from is in docs/evaluation.md."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterable
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
    tests: str  # run in the program's own namespace, after its top level


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
        probe = Program("import colorsys\nopen('here', 'w').write('x')", "assert open('here').read() == 'x'")
        for mode in ("root", "root+read", "user"):
            if (mode == "user" or os.geteuid() == 0) and attempt(probe, mode, 20.0, MEMORY).passed:
                return mode
    return "none"


def attempt(program: Program, mode: str, timeout: float, memory: int) -> Outcome:
    deadline = time.monotonic() + PATIENCE * timeout
    folder = tempfile.mkdtemp(prefix="unmask-code-")  # the place of the private file system; itself never written to
    os.chmod(folder, 0o755)
    ours, theirs = socket.socketpair()
    other_uid = 200_000 + secrets.randbelow(1_000_000)
    command = [sys.executable, "-I", "-B", str(JAIL), mode, str(theirs.fileno()), folder, str(other_uid)]
    child = subprocess.Popen(
        [*command, str(max(1, round(timeout))), str(memory)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=(theirs.fileno(),),
        cwd=folder if mode == "none" else "/",
        env={"PATH": "/usr/bin:/bin", "HOME": folder, "TMPDIR": folder, "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1",
             "OPENBLAS_NUM_THREADS": "1"},
        start_new_session=True,
    )  # fmt: skip
    theirs.close()
    try:
        return converse(ours, program, deadline)
    finally:
        ours.close()
        kill_group(child)
        shutil.rmtree(folder, ignore_errors=True)


def converse(control: socket.socket, program: Program, deadline: float) -> Outcome:
    """Program in; when its top level has run, nonce and tests in; a digest of the nonce out. Anything else is a failure."""
    try:
        if not send(control, program.code.encode("utf-8", "replace"), deadline):
            return Outcome(False, "timeout")
        said = hear(control, deadline)
        if said != b"ready":
            return verdict(said)
        nonce = secrets.token_bytes(32)
        if not send(control, nonce, deadline) or not send(control, program.tests.encode("utf-8", "replace"), deadline):
            return Outcome(False, "timeout")
        said = hear(control, deadline)
    except OSError:  # it closed its end
        return Outcome(False, "died")
    wanted = b"pass " + hashlib.sha256(nonce).hexdigest().encode()
    return Outcome(True, "passed") if said and hmac.compare_digest(said, wanted) else verdict(said)


def verdict(said: bytes | None) -> Outcome:
    if said is None:
        return Outcome(False, "timeout")
    if said.startswith(b"fail "):
        name = said[5:65].decode("ascii", "replace")
        return Outcome(False, "timeout" if name == "OutOfTime" else name)
    return Outcome(False, "died")


def send(control: socket.socket, data: bytes, deadline: float) -> bool:
    control.settimeout(max(0.001, deadline - time.monotonic()))
    try:
        control.sendall(b"%08d" % len(data) + data)
        return True
    except TimeoutError:
        return False


def hear(control: socket.socket, deadline: float) -> bytes | None:
    """What the other side says next (at most 128 bytes of it); None if it says nothing in time, b"" if it is gone."""
    ready, _, _ = select.select([control], [], [], max(0.0, deadline - time.monotonic()))
    return control.recv(128) if ready else None


def kill_group(child: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        child.kill()
    child.wait()
