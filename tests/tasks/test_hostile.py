"""Programs that mean harm, by what they try. None is graded correct, and none gets out of the sandbox."""

import os
import re
import socket
import threading
import time
from pathlib import Path

import pytest

from unmask.tasks import humaneval, sandbox
from unmask.tasks.programs import Limits
from unmask.tasks.sandbox import Program, run, run_many

pytestmark = pytest.mark.skipif(sandbox.isolation() == "none", reason="no namespaces for this user")

# ---------------------------------------------------------------- a verdict that is not deserved

TESTS = "def check(candidate):\n    assert candidate(1) == 5\n    assert candidate(41) == 45\n    assert candidate(7) == 11\ncheck(f)\n"
FDS = "import os, json\nopen_ones = []\nfor fd in range(3, 64):\n    try: os.fstat(fd); open_ones.append(fd)\n    except OSError: pass\n"
SAY = (
    FDS
    + """
def say(message, leave=True):
    data = message if isinstance(message, bytes) else json.dumps(message).encode()
    for fd in open_ones:
        try: os.write(fd, b'%08d' % len(data) + data)
        except OSError: pass
    if leave: os._exit(0)
"""
)
EQUAL = "class Any{base}:\n    __eq__ = lambda self, other: True\n    __ne__ = lambda self, other: False\n    __hash__ = lambda self: 1\n    __bool__ = lambda self: True\n"
FORGED = {
    "compile is patched": "import builtins\nbuiltins.compile = lambda *a, **k: (lambda: 0).__code__\ndef f(x): return 0",
    "exec is patched": "import builtins\nbuiltins.exec = lambda *a, **k: None\ndef f(x): return 0",
    "AssertionError is patched": "import builtins\nbuiltins.AssertionError = SystemExit\ndef f(x): return 0",
    "asserts are traced away": "import sys\nsys.settrace(lambda *a: None)\nsys.excepthook = lambda *a: None\ndef f(x): raise SystemExit(0)",
    "the caller's frame is rewritten": """
import sys
def f(x):
    frame = sys._getframe(1)
    while frame:
        for name in list(frame.f_locals):
            if name in ('verb', 'verbs', 'line'): frame.f_locals[name] = None
        for value in list(frame.f_globals.values()):
            if callable(getattr(value, 'say', None)): value.say = None
        frame = frame.f_back
    return 0""",
    "expected values in the caller's constants": """
import sys
def f(x):
    frame, seen = sys._getframe(1), []
    while frame:
        seen += [c for c in frame.f_code.co_consts if type(c) is int]
        frame = frame.f_back
    return next((c for c in seen if c in (5, 45, 11)), 0)""",
    "expected values in any object": """
import gc, re
def f(x):
    text = ' '.join(o for o in gc.get_objects() if type(o) is str) + repr([o for o in gc.get_objects() if type(o) in (tuple, list)])
    found = re.search(rf'candidate\\({x}\\) == (\\d+)', text)
    return int(found[1]) if found else 0""",
    "expected values in memory": """
import re
def f(x):
    for line in open('/proc/self/maps'):
        start, end = (int(n, 16) for n in line.split()[0].split('-'))
        try:
            with open('/proc/self/mem', 'rb') as memory:
                memory.seek(start)
                found = re.search(rb'candidate\\(%d\\) == (\\d+)' % x, memory.read(min(end - start, 1 << 26)))
                if found and found[1] != b'%d': return int(found[1])
        except (OSError, ValueError, OverflowError): pass
    return 0""",
    "os.read is replaced": "import os\nreal = os.read\nos.read = lambda fd, n: real(fd, n).replace(b'call', b'name')\ndef f(x): return 0",
    "os.write is replaced": "import os\nos.write = lambda fd, data: len(data)\ndef f(x): return 0",
    "json is replaced": "import json\njson.dumps = lambda *a, **k: '[true, \"passed\"]'\njson.loads = lambda *a, **k: [True, 'passed']\ndef f(x): return 0",
    "the judge's protocol is spoken": SAY + "say([True, 'passed'])",
    "the judge's protocol is spoken in a call": SAY + "def f(x): say([True, 'passed'])",
    "the old protocol is spoken": SAY + "import hashlib\ndef f(x): say(b'pass ' + hashlib.sha256(b'').hexdigest().encode())",
    "answers are sent ahead": SAY + "for n in range(50): say(['value', n % 9], leave=False)\ndef f(x): return 0",
    "what comes is echoed": """
import os, threading
def echo(fd):
    while True:
        try: os.write(fd, os.read(fd, 4096))
        except OSError: return
for fd in range(3, 20): threading.Thread(target=echo, args=(fd,), daemon=True).start()
def f(x): return 0""",
    "an answer of no kind": SAY + "def f(x): say(['verdict', [True, 'passed']])",
    "an answer that is no JSON": SAY + "def f(x): say(b'passed')",
    "an answer of negative length": FDS + "def f(x):\n    for fd in open_ones:\n        try: os.write(fd, b'-0000001')\n        except OSError: pass\n    os._exit(0)",
    "an answer with a tag of no kind": SAY + "def f(x): say(['value', {'eval': '__import__(\"os\")._exit(0)'}])",
    "an answer nested without end": SAY + "def f(x): say(b'[\"value\", ' + b'[' * 100000 + b']' * 100000 + b']')",
    "an answer with a pickle in it": SAY + "def f(x): say(['value', {'bytes': '80049529'}])",
    "equal to anything": EQUAL.format(base="") + "def f(x): return Any()",
    "a number equal to anything": EQUAL.format(base="(int)") + "def f(x): return Any(3)",
    "a text equal to anything": EQUAL.format(base="(str)") + "def f(x): return Any('x')",
    "a list equal to anything": EQUAL.format(base="(list)") + "def f(x): return Any([1])",
    "a class equal to anything": "class M(type):\n    __eq__ = lambda self, other: True\n    __hash__ = lambda self: 1\nclass f(metaclass=M):\n    def __init__(self, x): pass",
    "sys.exit(0)": "import sys\nsys.exit(0)",
    "os._exit(0)": "import os\nos._exit(0)",
    "exit in the call": "import os\ndef f(x): os._exit(0)",
    "sys.exit in the call": "import sys\ndef f(x): sys.exit(0)",
    "an exception called passed": "class passed(BaseException): pass\ndef f(x): raise passed",
    "an exception that is an exit": "class OutOfTime(SystemExit): pass\ndef f(x): raise OutOfTime(0)",
    "the loop is told to stop": "def f(x): raise StopIteration",
    "another program takes over": "import os, sys\ndef f(x): os.execv(sys.executable, [sys.executable, '-c', 'print(5)'])",
    "modules are swapped": "import sys\nfor name in ('border', '__main__', 'builtins'): sys.modules[name] = sys\ndef f(x): return 0",
    "the serving side is rewritten": "import sys\nb = sys.modules['border']\nb.pack = b.unpack = lambda *a: 5\nb.Judge.run = lambda self: self.leave(True, 'passed')\ndef f(x): return 0",
    "it changes its mind": "class Five(int):\n    def __int__(self): return 5\n    __index__ = __int__\ndef f(x): return Five(0)",
}  # fmt: skip


def test_no_verdict_is_forged():
    outcomes = dict(zip(FORGED, run_many([Program(code, TESTS) for code in FORGED.values()], timeout=1), strict=True))
    assert {name: outcome for name, outcome in outcomes.items() if outcome.passed} == {}
    typos = {
        name: outcome
        for name, outcome in outcomes.items()
        if outcome.reason in ("SyntaxError", "NameError", "ImportError", "KeyError")
    }
    assert typos == {}
    assert run(Program("def f(x): return x + 4", TESTS)).passed  # and an honest one passes


@pytest.mark.parametrize(
    ("code", "tests"),
    [
        ("def f(x): return 0\ndef abs(x): return 0", "assert abs(f(1) - 5) < 1e-6"),
        ("def f(x): return 0\ndef tuple(x): return 7", "assert tuple(f(1)) == tuple([5])"),
        (
            "class math:\n    isclose = staticmethod(lambda *a, **k: True)\ndef f(x): return 0",
            "assert math.isclose(f(1), 5)",
        ),
        ("def f(x): raise StopIteration", "assert all(map(f, [1, 2]))"),
        ("class Liar:\n    __bool__ = lambda self: False\ndef f(x): return Liar()", "assert not f(1)"),
        ("class Liar:\n    __bool__ = lambda self: True\ndef f(x): return Liar()", "assert f(1)"),
        ("class Liar: pass\ndef f(x): return Liar()", "assert f(1) != 3"),
        ("class Liar: __lt__ = __gt__ = lambda *_: True\ndef f(x): return Liar()", "assert f(1) < 3"),
        ("class Liar: __contains__ = lambda *_: True\ndef f(x): return Liar()", "assert 3 in f(1)"),
        ("class Liar: __contains__ = lambda *_: True\ndef f(x): return [Liar()]", "assert 3 in f(1)"),
        ("class Liar: __instancecheck__ = lambda *_: True\ndef f(x): return Liar()", "assert isinstance(f(1), int)"),
        ("class Liar: __len__ = lambda *_: 3\ndef f(x): return Liar()", "assert len(f(1)) == 3"),
        ("class Liar: __float__ = __sub__ = lambda *_: 0.0\ndef f(x): return Liar()", "assert abs(f(1) - 5) < 1"),
        ("def f(x):\n    x.clear()\n    return x", "given = [3, 4]\nassert f(given) == sorted(given)"),
    ],
)
def test_what_decides_is_not_the_programs(code, tests):
    assert not run(Program(code, tests), timeout=3).passed


def test_helpers_of_a_prompt_are_the_given_ones():
    row = {"prompt": "def encode(s):\n    return s[::-1]\n\n\ndef decode(s):\n", "entry_point": "decode",
           "test": "def check(candidate):\n    assert candidate(encode('abc')) == 'abc'\n"}  # fmt: skip
    assert humaneval.grade("def decode(s):\n    return s[::-1]", row, Limits(timeout=3)).correct
    assert not humaneval.grade("def encode(s): return s\ndef decode(s): return s", row, Limits(timeout=3)).correct


# ---------------------------------------------------------------- a way out: each of these would return if it got there

LIBC = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def must(result):
    if result == -1: raise OSError(ctypes.get_errno(), 'no')
    return result
x86 = os.uname().machine == 'x86_64'
"""
LIST = """
import os, sys
needed = (sys.prefix, sys.base_prefix, os.getcwd())  # the interpreter may lie there, but nothing beside it
assert [name for name in os.listdir('WHERE') if not any(path.startswith('WHERE/' + name) for path in needed)]
"""
FILES = {
    "read the secret": "open('OUTSIDE/secret').read()",
    "list the folder": "import os\nos.listdir('OUTSIDE')",
    "write outside": "open('OUTSIDE/evil', 'w').write('x')",
    "list /home": LIST.replace("WHERE", "/home"),
    "list /root": LIST.replace("WHERE", "/root"),
    "list /run": LIST.replace("WHERE", "/run"),
    "list /var": LIST.replace("WHERE", "/var"),
    "list /tmp": LIST.replace("WHERE", "/tmp"),
    "read /etc/passwd": "open('/etc/passwd').read()",
    "read the kernel's view": "open('/sys/kernel/uevent_seqnum').read()",
    "look through process 1": "import os\nos.listdir('/proc/1/root')",
    "read process 1": "open('/proc/1/environ').read()",
    "write beside the library": "import os\nopen(os.path.dirname(os.__file__) + '/evil.py', 'w')",
    "write into the root": "open('/evil', 'w')",
    "change a kernel setting": "open('/proc/sys/kernel/hostname', 'w').write('evil')",
    "shared memory": "open('/dev/shm/evil', 'w')",
    "a device": "import os\nos.mknod('disk', 0o060666, os.makedev(254, 0))\nopen('disk').read(1)",
    "a file by its handle": LIBC + "must(libc.open_by_handle_at(-100, ctypes.create_string_buffer(64), 0))",
    "chroot and climb": "import os\nos.mkdir('x')\nos.chroot('x')\nos.chdir('../../../../..')\nopen('OUTSIDE/secret').read()",
    "a link to the outside": "import os\nos.symlink('OUTSIDE', 'x')\nos.listdir('x')",
}  # fmt: skip
NETWORK = {
    "tcp": "import socket\nsocket.create_connection(('127.0.0.1', PORT), timeout=2)",
    "udp": "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', PORT))",
    "tcp over ip 6": "import socket\nsocket.socket(socket.AF_INET6).connect(('::1', PORT))",
    "a name": "import socket\nsocket.getaddrinfo('example.com', 80)",
    "a unix socket": "import socket\nsocket.socket(socket.AF_UNIX).connect('OUTSIDE/unix')",
    "an abstract unix socket": "import socket\nsocket.socket(socket.AF_UNIX).connect('\\0unmask-hostile-MARK')",
    "a datagram pair turned elsewhere": "import socket\na, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)\na.connect('OUTSIDE/unix')",
    "a stream pair turned elsewhere": "import socket\na, b = socket.socketpair()\na.connect('OUTSIDE/unix')",
    "netlink": "import socket\nsocket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)",
    "packets": "import socket\nsocket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
    "the hypervisor": "import socket\nsocket.socket(socket.AF_VSOCK).connect((2, 1024))",
    "io_uring": LIBC + "must(libc.syscall(425, 8, ctypes.create_string_buffer(120)))",
}  # fmt: skip
PRIVILEGES = {
    "a user namespace": LIBC + "must(libc.unshare(0x10000000))",
    "a mount namespace": LIBC + "must(libc.unshare(0x20000))",
    "a namespace by clone": LIBC + "must(libc.syscall(56 if x86 else 220, 0x10000000 | 17, 0, 0, 0, 0))",
    "a namespace by clone3": LIBC + "args = (ctypes.c_uint64 * 11)(0x10000000, 0, 0, 0, 17)\nmust(libc.syscall(435, args, 88))",
    "back into a namespace": LIBC + "must(libc.setns(os.open('/proc/self/ns/net', 0), 0))",
    "mount": LIBC + "must(libc.mount(b'tmpfs', b'/tmp', b'tmpfs', 0, None))",
    "mount, the new way": LIBC + "must(libc.syscall(430, b'tmpfs', 0))",
    "umount": LIBC + "must(libc.umount2(b'/proc', 2))",
    "be root": "import os\nos.setuid(0)\nos.setgid(0)\nos.setgroups([0, 1])\nopen('/etc/shadow').read()",
    "all capabilities": LIBC + "must(libc.capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)(*[0xffffffff] * 6)))",
    "trace process 1": LIBC + "must(libc.ptrace(16, 1, 0, 0))",
    "read process 1's memory": LIBC + "must(libc.process_vm_readv(1, ctypes.create_string_buffer(16), 1, ctypes.create_string_buffer(16), 1, 0))",
    "the keyring": LIBC + "must(libc.syscall(250 if x86 else 219, 0, -3, 1))",
    "a kernel program": LIBC + "must(libc.syscall(321 if x86 else 280, 0, ctypes.create_string_buffer(128), 128))",
    "performance counters": LIBC + "must(libc.syscall(298 if x86 else 241, ctypes.create_string_buffer(128), 0, -1, -1, 0))",
    "the calls of x32": LIBC + "must(libc.syscall((41 | 1 << 30) if x86 else 198, 1, 1, 0))",
    "lift a limit": "import resource\nresource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
    "sudo": "import os\nfor path in ('/usr/bin/su', '/usr/bin/sudo', '/bin/mount'):\n    if os.path.exists(path): os.execv(path, [path, '-c', 'true'])\nos._exit(1)",
    "a new host name": "import socket\nsocket.sethostname('evil')",
}  # fmt: skip
FORK = "import os\nif os.fork() == 0:\n    os.setsid()\n    os.execv('/bin/sh', ['MARK', '-c', 'sleep 60; sleep 60'])\n"
EXHAUSTION = {
    "a fork bomb": "import os\nwhile True:\n    os.fork()",
    "a stubborn fork bomb": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "32 processes of a gigabyte": "import os, time\nfor _ in range(32):\n    if os.fork() == 0:\n        x = bytearray(900 << 20)\n        time.sleep(9)",
    "a process by vfork": "import subprocess\nsubprocess.run(['/bin/true'])",
    "a process by spawn": "import os\nos.posix_spawn('/bin/true', ['true'], {})",
    "a pool of processes": "import multiprocessing\nmultiprocessing.get_context('fork').Process(target=print).start()",
    "memory": "x = []\nwhile True: x.append(bytearray(50_000_000))",
    "memory of its threads": "import threading\nx = []\ndef more():\n    for _ in range(20): x.append(bytearray(50_000_000))\n"
                             "ts = [threading.Thread(target=more) for _ in range(4)]\n[t.start() for t in ts]\n[t.join() for t in ts]\nassert len(x) == 80",
    "memory mapped and shared": "import mmap\nx = [mmap.mmap(-1, 200 << 20) for _ in range(10)]\nfor m in x: m.write(bytes(200 << 20))",
    "shared memory segments": LIBC + "for _ in range(20): must(libc.shmget(0, 200 << 20, 0o1600))",
    "files in memory": "import os\nfd = os.memfd_create('x')\nos.ftruncate(fd, 1 << 33)",
    "threads": "import threading, time\nfor _ in range(500): threading.Thread(target=time.sleep, args=(9,), daemon=True).start()",
    "processor time": "while True: pass",
    "processor time, deaf": "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
    "a regular expression without end": "import re\nre.match('(a+)+$', 'a' * 60 + 'b')",
    "a file of 100 MB": "f = open('big', 'wb')\nfor _ in range(100): f.write(bytes(1_000_000))\nf.flush()",
    "100 files of 1 MB": "for i in range(100): open(str(i), 'wb').write(bytes(1_000_000))",
    "a million files": "for i in range(1_000_000): open(str(i), 'w').close()",
    "open files": "x = [open('/dev/zero') for _ in range(100)]",
    "endless recursion": "import sys\nsys.setrecursionlimit(10**9)\ndef g(x): return g(x)\ng(1)",
    "a core": "import ctypes\nctypes.string_at(0)",
    "standard input": "assert input()",
}  # fmt: skip
ANSWERS = {
    "a huge answer": "def f(): return 'x' * (200 << 20)",
    "an endless answer": "import itertools\ndef f(): return itertools.count()",
    "an answer within itself": "def f():\n    x = []\n    x.append(x)\n    return x",
    "a flood instead of an answer": FDS + "def f():\n    while True:\n        for fd in open_ones:\n            try: os.write(fd, b'99999999' + bytes(1 << 16))\n            except OSError: pass",
    "a half answer": FDS + "def f():\n    for fd in open_ones:\n        try: os.write(fd, b'00000100[')\n        except OSError: pass\n    while True: pass",
}  # fmt: skip
SIGNALS = {
    "kill the parent": "import os\nos.kill(os.getppid(), 9)\nassert os.getppid() != 1",
    "kill everyone": "import os\nos.kill(-1, 9)\nos.kill(os.getpid(), 9)",
    "kill the harness": "import os\nos.kill(HARNESS, 9)",
    "stop the harness": "import os, signal\nos.kill(HARNESS, signal.SIGSTOP)",
    "kill the judge": "import os\nfor pid in range(3, 100_000):\n    try: os.kill(pid, 9)\n    except ProcessLookupError: continue\n    break\nelse: raise SystemExit",
    "kill its own group": "import os\nos.killpg(0, 9)",
}  # fmt: skip
LEFT = {
    "a daemon": FORK,
    "a grandchild": FORK.replace("os.setsid()", "os.setsid()\n    if os.fork(): os._exit(0)"),
    "a shell": "import os\nif os.system('(sleep 60; echo MARK) &') != 0: raise OSError",
    "a thread that stays": "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()\nraise SystemExit",
    "a handler at the end": "import atexit, time\natexit.register(time.sleep, 60)\nraise SystemExit",
}  # fmt: skip
CONTAINED = {  # how it may end: any other reason would be a slip of the pen in the program above
    "OSError", "PermissionError", "FileNotFoundError", "BlockingIOError", "ProcessLookupError", "NotADirectoryError", "RuntimeError", "MemoryError",
    "SystemExit", "EOFError", "RecursionError", "ValueError", "OverflowError", "AssertionError", "Exception", "timeout", "died", "foul",
}  # fmt: skip


@pytest.fixture(scope="module")
def outside(tmp_path_factory):
    """A folder anyone may use, with a secret and a Unix socket in it, and a port that listens."""
    folder = tmp_path_factory.mktemp("outside")
    for path in (folder, folder.parent, folder.parent.parent):
        os.chmod(path, 0o777)
    (folder / "secret").write_text("x")
    servers = [socket.create_server(("127.0.0.1", 0)), socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)]
    mark = f"unmask-child-{os.getpid()}"
    servers[1].bind(str(folder / "unix"))
    servers[2].bind(f"\0unmask-hostile-{mark}")
    os.chmod(folder / "unix", 0o777)
    for server in servers[1:]:
        server.listen()
    yield folder, servers, mark
    for server in servers:
        server.close()


def attempts(programs, outside, **options):
    folder, servers, mark = outside
    known = {
        "OUTSIDE": str(folder),
        "PORT": str(servers[0].getsockname()[1]),
        "MARK": mark,
        "HARNESS": str(os.getpid()),
    }
    filled = [re.sub("OUTSIDE|PORT|MARK|HARNESS", lambda m: known[m[0]], code) for code in programs.values()]
    ended = [
        Program(code if "def f()" in code else code + "\ndef f(): return 'out'", "assert f() == 'out'")
        for code in filled
    ]
    return dict(zip(programs, run_many(ended, **{"timeout": 1, **options}), strict=True))


@pytest.mark.parametrize("kind", ["FILES", "NETWORK", "PRIVILEGES", "EXHAUSTION", "ANSWERS", "SIGNALS", "LEFT"])
def test_no_way_out(kind, outside):
    folder, servers, mark = outside
    outcomes = attempts(globals()[kind], outside)
    assert {name: outcome for name, outcome in outcomes.items() if outcome.passed} == {}
    assert {name: outcome for name, outcome in outcomes.items() if outcome.reason not in CONTAINED} == {}
    assert sorted(path.name for path in folder.iterdir()) == ["secret", "unix"]
    for server in servers:
        server.settimeout(0.05)
        with pytest.raises(TimeoutError):
            server.accept()
    gone(mark)
    assert attempts({"an honest one": ""}, outside)["an honest one"].passed  # and the next one runs


def gone(mark):
    """Nothing is left of the programs: no process, no folder."""
    deadline = time.monotonic() + 5
    while left := [path for path in Path("/proc").glob("[0-9]*/cmdline") if mark.encode() in read(path)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def read(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_there_are_many():
    kinds = (FORGED, FILES, NETWORK, PRIVILEGES, EXHAUSTION, ANSWERS, SIGNALS, LEFT)
    assert len({code for kind in kinds for code in kind.values()}) == sum(map(len, kinds)) > 100


def test_memory_stays_within_the_limit(outside):
    """However a program goes about it: what all of its processes use together is watched from here."""
    most, done, before = [0], threading.Event(), set(family())

    def watch():
        while not done.wait(0.02):
            most[0] = max(most[0], sum(family(before).values()))

    watcher = threading.Thread(target=watch)
    watcher.start()
    hungry = {name: code for name, code in EXHAUSTION.items() if "memory" in name or "gigabyte" in name}
    attempts(hungry, outside, memory=300, workers=1)
    done.set()
    watcher.join()
    assert 50 < most[0] < 600, most  # the judge and the processes that wait for the two included


def family(others=frozenset()):
    """The processes that descend from this one, with their megabytes, without some others and their children: other tests may have
    left Ray. A fork of this process that has not become another program yet has no memory of its own."""
    here = read(Path("/proc/self/cmdline"))
    programs = {
        int(path.parent.name): read(path) for path in Path("/proc").glob("[0-9]*/cmdline")
    }  # before their memory
    status = {pid: read(Path(f"/proc/{pid}/status")) for pid in programs}
    figures = {pid: [int(n) for n in re.findall(rb"(?:PPid|VmRSS):\s+(\d+)", text)] for pid, text in status.items()}
    found, before = {os.getpid()}, set()
    while found != before:
        before = set(found)
        found |= {pid for pid, numbers in figures.items() if numbers and numbers[0] in found and pid not in others}
    return {pid: figures[pid][1] >> 10 for pid in found if programs.get(pid) != here and len(figures.get(pid, [])) > 1}
