"""The inside of the sandbox: run as a script by sandbox.py, in a fresh interpreter, once for a program and once for its judge.

It locks itself in (namespaces, a file system with little in it, a filter of system calls, limits, no privileges) and then
takes its side of border.py. It imports nothing of unmask: whatever is loaded here, the program can reach."""

import contextlib
import ctypes
import os
import resource
import signal
import sys

NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = (
    0x20000,
    0x2000000,
    0x4000000,
    0x8000000,
    0x10000000,
    0x20000000,
    0x40000000,
)
RDONLY, NOSUID, NODEV, NOEXEC, BIND, REC, PRIVATE = 1, 2, 4, 8, 0x1000, 0x4000, 0x40000
PDEATHSIG, DUMPABLE, KEEPCAPS, SECCOMP, CAPBSET_DROP, NO_NEW_PRIVS = 1, 4, 8, 22, 24, 38
READ_ANY = 1 << 2  # CAP_DAC_READ_SEARCH
MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE, DETACH = 442, -100, 0x8000, 2

# All that is left of the file system, read-only: programs and libraries, harmless devices, the interpreter.
VISIBLE = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/nix/store", "/etc/ld.so.cache", "/etc/localtime", "/dev/null",
           "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", sys.base_prefix, sys.prefix)  # fmt: skip

# System calls by machine; those from 424 on have one number everywhere.
MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
PIVOT_ROOT, CLONE, CLONE3, SOCKETPAIR = (155, 41), (56, 220), (435, 435), (53, 199)
FORBIDDEN: dict[str, tuple[int, int | None]] = {
    # new processes
    "fork": (57, None), "vfork": (58, None),
    # sockets
    "socket": (41, 198), "connect": (42, 203), "bind": (49, 200),
    # namespaces and mounts
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39), "pivot_root": PIVOT_ROOT,
    "chroot": (161, 51), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    "open_tree_attr": (467, 467), "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265),
    # other processes
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_send_signal": (424, 424), "pidfd_open": (434, 434), "pidfd_getfd": (438, 438), "process_madvise": (440, 440),
    # memory outside the address space
    "shmget": (29, 194), "msgget": (68, 186), "semget": (64, 190), "mq_open": (240, 180), "memfd_create": (319, 279),
    "memfd_secret": (447, 447), "userfaultfd": (323, 282),
    # the kernel
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "bpf": (321, 280),
    "perf_event_open": (298, 241), "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106), "kexec_load": (246, 104),
    "kexec_file_load": (320, 294), "reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225), "acct": (163, 89),
    "quotactl": (179, 60), "syslog": (103, 116), "sethostname": (170, 161), "setdomainname": (171, 162),
    "iopl": (172, None), "ioperm": (173, None), "modify_ldt": (154, None),
}  # fmt: skip


def system(result, what):
    if result != 0:
        raise OSError(ctypes.get_errno(), what)


def isolate(mode, folder, outside_uid):
    """Leave the network, the process table and the file system behind. mode: "root", "user", or "root+read" where the
    interpreter's own files can be read by root alone."""
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
    change_root(libc, folder)
    for capability in range(64):
        libc.prctl(CAPBSET_DROP, capability, 0, 0, 0)
    if mode != "user":  # a user id of its own, so that its limit on threads is its own too
        libc.prctl(KEEPCAPS, mode == "root+read", 0, 0, 0)
        os.setgroups([])
        os.setresgid(outside_uid, outside_uid, outside_uid)
        os.setresuid(outside_uid, outside_uid, outside_uid)
        libc.prctl(PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # again: a change of user forgets it
    kept = READ_ANY if mode == "root+read" else 0
    effective_permitted = (ctypes.c_uint32 * 6)(kept, kept, 0, 0, 0, 0)
    system(libc.capset((ctypes.c_uint32 * 2)(0x20080522, 0), effective_permitted), "capset")
    system(libc.prctl(NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    libc.prctl(DUMPABLE, 0, 0, 0, 0)  # process 1 cannot be looked into by the program, process 2
    wait_for(os.fork())
    libc.prctl(DUMPABLE, 1, 0, 0, 0)
    forbid(libc)


def change_root(libc, folder):
    """Make `folder` the root: what is in VISIBLE, a /proc of its own, and 32 MB in memory to write to, at the folder's path."""

    def mount(what, where, kind, flags, options=None):
        system(libc.mount(what, where.encode(), kind, flags, options), f"mount {where}")

    os.umask(0o022)  # another user must find its way through these folders
    mount(None, "/", None, REC | PRIVATE)
    mount(b"tmpfs", folder, b"tmpfs", NOSUID, b"size=1m,nr_inodes=1000,mode=755")
    for path in sorted(filter(os.path.exists, VISIBLE), key=len):
        inside = folder + path
        if os.path.exists(inside):  # it came with a folder above it
            continue
        if os.path.isdir(path):
            os.makedirs(inside)
        else:
            os.makedirs(os.path.dirname(inside), exist_ok=True)
            os.close(os.open(inside, os.O_CREAT))
        mount(path.encode(), inside, None, BIND | REC)
    os.mkdir(folder + "/proc")
    os.makedirs(folder + folder)
    mount(b"proc", folder + "/proc", b"proc", NOSUID | NODEV | NOEXEC)
    attributes = (ctypes.c_uint64 * 4)(RDONLY | NOSUID, 0, 0, 0)  # struct mount_attr: set, clear, propagation, userns
    system(libc.syscall(MOUNT_SETATTR, AT_FDCWD, folder.encode(), AT_RECURSIVE, attributes, 32), "mount_setattr")
    mount(b"tmpfs", folder + folder, b"tmpfs", NOSUID | NODEV, b"size=32m,nr_inodes=1000,mode=777")
    os.chdir(folder)
    system(libc.syscall(PIVOT_ROOT[MACHINES[os.uname().machine][1]], b".", b"."), "pivot_root")
    system(libc.umount2(b".", DETACH), "umount")
    os.chdir(folder)


def forbid(libc):
    """A filter of system calls. Threads are allowed, and connected pairs of sockets (asyncio); other processes are not, so
    that the limits of one process are those of the program."""
    arch, column = MACHINES[os.uname().machine]
    load, equal, at_least, any_bit, mask, result = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
    kill, allow, no, unknown = 0x80000000, 0x7FFF0000, 0x00050000 | 1, 0x00050000 | 38  # EPERM, ENOSYS
    number, architecture, first, second = 0, 4, 16, 24  # places in struct seccomp_data
    namespaces = NEWNS | NEWCGROUP | NEWUTS | NEWIPC | NEWUSER | NEWPID | NEWNET
    threads = 0x10000  # CLONE_THREAD
    # (operation, steps to skip if it holds, if it does not, operand)
    rules = [(load, 0, 0, architecture), (equal, 1, 0, arch), (result, 0, 0, kill), (load, 0, 0, number)]
    rules += [(at_least, 0, 1, 1 << 30), (result, 0, 0, kill)]  # x86's x32: the same calls by other numbers
    for numbers in FORBIDDEN.values():
        if (call := numbers[column]) is not None:
            rules += [(equal, 0, 1, call), (result, 0, 0, no)]
    rules += [(equal, 0, 1, CLONE3[column]), (result, 0, 0, unknown)]  # its flags cannot be seen; libc then takes clone
    rules += [(equal, 0, 5, CLONE[column]), (load, 0, 0, first), (any_bit, 2, 0, namespaces), (any_bit, 0, 1, threads),
               (result, 0, 0, allow), (result, 0, 0, no)]  # fmt: skip
    rules += [(equal, 0, 5, SOCKETPAIR[column]), (load, 0, 0, second), (mask, 0, 0, 0xF), (equal, 0, 1, 1),
               (result, 0, 0, allow), (result, 0, 0, no)]  # fmt: skip
    rules += [(result, 0, 0, allow)]

    class Instruction(ctypes.Structure):
        _fields_ = [("code", ctypes.c_uint16), ("jt", ctypes.c_uint8), ("jf", ctypes.c_uint8), ("k", ctypes.c_uint32)]

    class Filter(ctypes.Structure):
        _fields_ = [("length", ctypes.c_uint16), ("instructions", ctypes.POINTER(Instruction))]

    instructions = (Instruction * len(rules))(*(Instruction(*rule) for rule in rules))
    system(libc.prctl(SECCOMP, 2, ctypes.byref(Filter(len(rules), instructions)), 0, 0), "seccomp")


def wait_for(child):
    """Return in the child; the parent stays here until the child ends."""
    if child:
        os.waitpid(child, 0)
        os._exit(0)


class OutOfTime(BaseException):
    """The CPU time is used up."""


def out_of_time(number, frame):
    raise OutOfTime


def limit(seconds, megabytes):
    signal.signal(signal.SIGXCPU, out_of_time)  # a program that ignores it is killed two seconds later
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


if __name__ == "__main__":
    mode, scratch, other_uid, cpu_seconds, memory, *files = sys.argv[1:]
    sys.path.append(os.path.dirname(__file__))
    import border  # now, since this folder will be out of sight

    sys.path.pop()
    lines = [border.Line(int(files[i]), int(files[i + 1])) for i in range(0, len(files), 2)]
    if mode != "none":
        isolate(mode, scratch, int(other_uid))
    limit(int(cpu_seconds), int(memory))
    if len(lines) == 1:
        border.serve(*lines)
    else:
        border.Judge(*lines).run()
