"""The inside of the sandbox: run as a script by sandbox.py, in a fresh interpreter, once per program.

It locks itself in (namespaces, read-only file system, limits, no privileges), runs the program's top level, and only then
is handed the nonce and the tests over its one socket. It imports nothing of unmask: whatever is loaded here, the program
can reach."""

import contextlib
import ctypes
import hashlib
import os
import resource
import signal
import sys
import types

NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
RDONLY, NOSUID, NODEV, NOEXEC, REC, PRIVATE = 1, 2, 4, 8, 0x4000, 0x40000
PDEATHSIG, DUMPABLE, KEEPCAPS, CAPBSET_DROP, NO_NEW_PRIVS = 1, 4, 8, 24, 38
READ_ANY = 1 << 2  # CAP_DAC_READ_SEARCH
MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE = 442, -100, 0x8000


def system(result, what):
    if result != 0:
        raise OSError(ctypes.get_errno(), what)


def isolate(mode, folder, outside_uid):
    """Leave the network, the process table and the writable file system behind. mode: "root", "user", or "root+read" where
    the interpreter itself lies in a folder that only root can read."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    uid, gid = os.getuid(), os.getgid()
    new = NEWNS | NEWUTS | NEWIPC | NEWPID | NEWNET
    system(libc.unshare(new | (NEWUSER if mode == "user" else 0)), "unshare")
    if mode == "user":
        for name, line in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(line)
    wait_for(os.fork())  # the child is process 1 of the new table: when it ends, all its descendants do
    libc.prctl(PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
    system(libc.mount(None, b"/", None, REC | PRIVATE, None), "mount private")
    attributes = (ctypes.c_uint64 * 4)(RDONLY | NOSUID, 0, 0, 0)  # struct mount_attr: set, clear, propagation, userns
    system(libc.syscall(MOUNT_SETATTR, AT_FDCWD, b"/", AT_RECURSIVE, attributes, 32), "mount_setattr")
    size = b"size=32m,nr_inodes=1000,mode=777"
    system(libc.mount(b"tmpfs", folder.encode(), b"tmpfs", NOSUID | NODEV, size), "mount tmpfs")
    system(libc.mount(b"proc", b"/proc", b"proc", RDONLY | NOSUID | NODEV | NOEXEC, None), "mount proc")
    os.chdir(folder)
    for capability in range(64):
        libc.prctl(CAPBSET_DROP, capability, 0, 0, 0)
    if mode != "user":  # a user id of its own, so that its limit on processes is its own too
        libc.prctl(KEEPCAPS, mode == "root+read", 0, 0, 0)
        os.setgroups([])
        os.setresgid(outside_uid, outside_uid, outside_uid)
        os.setresuid(outside_uid, outside_uid, outside_uid)
    kept = READ_ANY if mode == "root+read" else 0
    effective_permitted = (ctypes.c_uint32 * 6)(kept, kept, 0, 0, 0, 0)
    system(libc.capset((ctypes.c_uint32 * 2)(0x20080522, 0), effective_permitted), "capset")
    system(libc.prctl(NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    libc.prctl(DUMPABLE, 0, 0, 0, 0)  # process 1 cannot be looked into by the program, process 2
    wait_for(os.fork())
    libc.prctl(DUMPABLE, 1, 0, 0, 0)


def wait_for(child):
    """Return in the child; the parent stays here until the child ends."""
    if child:
        os.waitpid(child, 0)
        os._exit(0)


class OutOfTime(BaseException):
    """The program has used up its CPU time."""


def out_of_time(number, frame):
    raise OutOfTime


def limit(seconds, megabytes):
    signal.signal(signal.SIGXCPU, out_of_time)  # said once; who does not listen is killed two seconds later
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 2))
    for what, amount in (
        (resource.RLIMIT_FSIZE, 1 << 20),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, 32),
        (resource.RLIMIT_AS, megabytes << 20),
    ):
        with contextlib.suppress(ValueError, OSError):  # macOS refuses some; outside, the user has accepted that
            resource.setrlimit(what, (amount, amount))


def receive(socket):
    """One message: its length in eight digits, then so many bytes."""
    size = int(os.read(socket, 8))
    data = b""
    while len(data) < size:
        data += os.read(socket, size - len(data))
    return data


def run(socket):
    # taken aside before the program can replace them
    read, write, leave, execute, digest, name_of = receive, os.write, os._exit, exec, hashlib.sha256, type
    program = read(socket)
    module = types.ModuleType("solution")  # not __main__: a program's own main part is not what is tested
    sys.modules["solution"] = module
    sys.argv = ["solution.py"]
    try:
        execute(compile(program, "solution.py", "exec"), module.__dict__)
        write(socket, b"ready")
        nonce, tests = read(socket), read(socket)
        execute(compile(tests, "tests.py", "exec"), module.__dict__)
        write(socket, b"pass " + digest(nonce).hexdigest().encode())
    except BaseException as error:  # SystemExit and KeyboardInterrupt too: a program that leaves early has not passed
        write(socket, b"fail " + name_of(error).__name__.encode()[:60])
        leave(1)
    leave(0)


if __name__ == "__main__":
    mode, control, scratch, other_uid, cpu_seconds, memory = sys.argv[1:7]
    if mode != "none":
        isolate(mode, scratch, int(other_uid))
    limit(int(cpu_seconds), int(memory))
    run(int(control))
