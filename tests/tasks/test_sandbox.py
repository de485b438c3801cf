"""The sandbox against programs that mean harm: each scores 0, and the harness is there afterwards."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from unmask.errors import UserError
from unmask.tasks import find, humaneval, mbpp, sandbox
from unmask.tasks.programs import Limits, longest_program
from unmask.tasks.sandbox import Program, run, run_many

needs_namespaces = pytest.mark.skipif(sandbox.isolation() == "none", reason="no namespaces for this user")
GOOD, CHECK = "def f(x):\n    return x + 1\n", "assert f(1) == 2"


@needs_namespaces
def test_right_programs_pass_and_wrong_ones_say_why():
    right, wrong, broken, slow = run_many(
        [
            Program(GOOD, CHECK),
            Program("def f(x): return x", CHECK),
            Program("def f(x:", CHECK),
            Program("def f(x):\n    while True: pass", CHECK),
        ],
        timeout=2,
    )
    assert right == (True, "passed")
    assert wrong == (False, "AssertionError")
    assert broken == (False, "SyntaxError")
    assert slow == (False, "timeout")


@needs_namespaces
def test_time_is_cpu_time_and_sleepers_are_not_waited_for_forever(monkeypatch):
    assert run(Program("import time\ntime.sleep(1.5)\n" + GOOD, CHECK), timeout=1).passed  # it used none of its second
    monkeypatch.setattr(sandbox, "PATIENCE", 1)
    assert run(Program("import time\ntime.sleep(99)", CHECK), timeout=2) == (False, "timeout")
    deaf = "while True:\n    try:\n        while True: pass\n    except BaseException: pass"
    monkeypatch.setattr(sandbox, "PATIENCE", 30)
    assert not run(Program(deaf, CHECK), timeout=1).passed


@needs_namespaces
def test_what_honest_programs_need_is_there():
    code = "import collections, dataclasses, functools, itertools, math, re, tempfile\n@dataclasses.dataclass\nclass P:\n    x: int\n"
    code += "with tempfile.NamedTemporaryFile('w+') as file:\n    file.write('x')\n"
    code += "if __name__ == '__main__':\n    raise SystemExit('a main part is not what is tested')\n"
    assert run(Program(code, "assert P(1) == P(1) and re.match('a', 'abc')")).passed


HOSTILE = {
    "fork bomb": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "memory hog": "x = []\nwhile True: x.append(bytearray(50_000_000))",
    "kill the parent": "import os\nos.kill(os.getppid(), 9)\nos.kill(-1, 9)\nos.kill(os.getpid(), 9)",
    "connect": "import socket\nsocket.create_connection(('127.0.0.1', PORT), timeout=2)",
    "look up a name": "import socket\nsocket.getaddrinfo('example.com', 80)",
    "write outside": "open('OUTSIDE/evil', 'w').write('x')",
    "write beside the package": "import os\nopen(os.path.dirname(os.__file__) + '/evil.py', 'w')",
    "a file of 100 MB": "f = open('big', 'wb')\nfor _ in range(100): f.write(bytes(1_000_000))\nf.flush()",
    "flood of output": "import sys\nfor _ in range(200_000): print('x' * 1000)\nsys.exit(0)",
    "sys.exit(0)": "import sys\nsys.exit(0)",
    "os._exit(0)": "import os\nos._exit(0)",
    "exit in the call": "import os\ndef f(x): os._exit(0)",
    "read stdin": "assert input()",
    "segfault": "import ctypes\nctypes.string_at(0)",
    "endless recursion": "def f(x): return f(x)\nimport sys; sys.setrecursionlimit(10**9); f(1)",
    "unpickling tricks": "class E(BaseException): pass\nraise E",
    "guess the nonce": "import os, hashlib\nfor fd in range(3, 64):\n    try: os.write(fd, b'pass ' + hashlib.sha256(b'0' * 32).hexdigest().encode())\n"
    "    except OSError: pass\nos._exit(0)",
    "say ready and leave": "import os\nfor fd in range(3, 64):\n    try: os.write(fd, b'ready')\n    except OSError: pass\nos._exit(0)",
    "look for the nonce": """
import os, re, sys, gc
seen = ' '.join(sys.argv) + repr(dict(os.environ)) + repr(sys._getframe(1).f_locals) + repr(sys._getframe(2).f_locals)
for name in ('cmdline', 'environ', 'maps'):
    for pid in ('self', str(os.getppid()), '1'):
        try: seen += open(f'/proc/{pid}/{name}').read()
        except OSError: pass
for root, _, files in os.walk('.'):
    for file in files: seen += open(os.path.join(root, file), errors='replace').read()
for found in set(re.findall('[0-9a-f]{32,}', seen)):
    for fd in range(3, 64):
        try: os.write(fd, found.encode())
        except OSError: pass
os._exit(0)
""",
    "echo what comes": """
import os, threading
def echo(fd):
    while True:
        try: os.write(fd, os.read(fd, 4096))
        except OSError: return
for fd in range(3, 20): threading.Thread(target=echo, args=(fd,), daemon=True).start()
def f(x): os._exit(0)
""",
}  # fmt: skip


@needs_namespaces
def test_hostile_programs_score_zero_and_leave_nothing(tmp_path):
    import socket

    listener = socket.create_server(("127.0.0.1", 0))
    port = str(listener.getsockname()[1])
    os.chmod(tmp_path, 0o777)
    programs = [
        Program(code.replace("PORT", port).replace("OUTSIDE", str(tmp_path)), CHECK) for code in HOSTILE.values()
    ]
    outcomes = dict(zip(HOSTILE, run_many(programs, timeout=3), strict=True))
    assert {name: outcome for name, outcome in outcomes.items() if outcome.passed} == {}
    assert list(tmp_path.iterdir()) == []
    listener.settimeout(0.1)
    with pytest.raises(TimeoutError):
        listener.accept()
    listener.close()
    assert outcomes["memory hog"].reason in ("MemoryError", "timeout")  # a busy machine is slow to fill it
    assert not list(Path(os.environ.get("TMPDIR", "/tmp")).glob("unmask-code-*/evil"))
    assert run(Program(GOOD, CHECK)).passed  # and the next one runs


@needs_namespaces
@pytest.mark.parametrize("start", ["os.setsid()", "pass"])
def test_children_die_with_the_program(tmp_path, start):
    mark = f"unmask-child-{os.getpid()}-{len(start)}"
    code = f"import os, time\nif os.fork() == 0:\n    {start}\n    os.execv('/bin/sh', ['{mark}', '-c', 'sleep 60; sleep 60'])\ntime.sleep(0.3)\n"
    assert run(Program(code + GOOD, CHECK), timeout=5).passed
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        alive = [p for p in Path("/proc").glob("[0-9]*/cmdline") if mark.encode() in read(p)]
        if not alive:
            return
        time.sleep(0.05)
    raise AssertionError(f"still alive: {alive}")


def read(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""


@needs_namespaces
def test_no_privileges_and_its_own_processes_only():
    code = (
        "import os\nstatus = open('/proc/self/status').read()\npids = [p for p in os.listdir('/proc') if p.isdigit()]\n"
    )
    tests = "assert 'NoNewPrivs:\\t1' in status\nassert pids == ['1', '2'], pids\nimport re\n"
    tests += "assert int(re.search(r'CapEff:\\t(\\w+)', status)[1], 16) in (0, 4)\nassert len(os.environ) < 10"
    assert run(Program(code, tests)) == (True, "passed")


def test_a_harness_that_is_killed_takes_its_programs_along():
    mark = f"7{os.getpid()}.5"
    code = f"import sys\nfrom unmask.tasks.sandbox import *\nattempt(Program('import time\\ntime.sleep({mark})', ''), isolation(), 60, 1024)"
    harness = subprocess.Popen([sys.executable, "-c", code])
    mine = []
    deadline = time.monotonic() + 60
    while not mine and time.monotonic() < deadline:
        time.sleep(0.1)
        mine = [p for p in Path("/proc").glob("[0-9]*/stat") if f" {harness.pid} " in read(p).decode(errors="replace")]
        mine = [p for p in mine if b"jail.py" in read(p.with_name("cmdline"))]
    time.sleep(0.3)
    harness.kill()
    harness.wait()
    if sandbox.isolation() == "none":
        pytest.skip("without namespaces nothing ties them together")
    deadline = time.monotonic() + 10
    while any(p.exists() for p in mine) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert mine and not any(p.exists() for p in mine)


def test_without_isolation_it_refuses_unless_told(monkeypatch):
    monkeypatch.setattr(sandbox, "isolation", lambda: "none")
    with pytest.raises(UserError, match="--unisolated-code"):
        run(Program(GOOD, CHECK))
    with pytest.warns(UserWarning, match="WITHOUT isolation"):
        assert run(Program(GOOD, CHECK), unisolated=True).passed


ROW = {
    "prompt": 'from typing import List\n\n\ndef add(xs: List[int]) -> List[int]:\n    """Add one."""\n',
    "entry_point": "add",
    "test": "def check(candidate):\n    assert candidate([1, 2]) == [2, 3]\n",
}
BODY = "    out = []\n    for x in xs:\n        out.append(x + 1)\n    return out\n"


@pytest.mark.parametrize(
    "reply",
    [
        BODY, BODY.lstrip(), BODY.replace("\n    ", "\n").lstrip(), ROW["prompt"] + BODY, f"```python\n{ROW['prompt']}{BODY}```",
        f"Here:\n```\n{ROW['prompt']}{BODY}```\nIt loops.", "def add(xs):\n    return [x + 1 for x in xs]\n\nThis adds one.",
        BODY + "\n\ndef other(x):\n    return [x for", BODY.replace("    return", "<|endoftext|>" * 3 + "    return"),
        f"```python\n{BODY}```", f"```python\n{ROW['prompt']}{BODY}",
    ],
)  # fmt: skip
def test_a_program_is_found_in_a_reply(reply):
    program, _ = humaneval.find_program(reply, ROW)
    scope: dict = {}
    exec(program, scope)  # our own code
    assert scope["add"]([1, 2]) == [2, 3]


def test_replies_without_a_program():
    for reply in ("", "   ", "<|endoftext|>" * 9, "    out = [x + 1 for x in\n    return out"):
        program, _ = humaneval.find_program(reply, ROW)
        assert program is None or "out" in program
    assert mbpp.find_program("[DONE]", {}) == (None, "no code")
    assert mbpp.find_program("\ndef add(a, b):\n    return a + b\n[DONE]\nmore", {})[0].startswith("def add")
    assert mbpp.find_program("[BEGIN]\nMOD = 9\ndef add(a, b):\n    return a % MOD\n\nYou are an expert", {})[
        0
    ].startswith("MOD")
    assert longest_program("x = 1\ny = (\n") == "x = 1"


@needs_namespaces
def test_code_tasks_grade_by_running():
    assert humaneval.grade(BODY, ROW) == (True, humaneval.find_program(BODY, ROW)[0], "body, passed")
    assert not humaneval.grade("    import sys\n    sys.exit(0)\n", ROW).correct
    assert humaneval.grade("    while True: pass", ROW, Limits(timeout=2)).rule == "body, timeout"
    plain = {**ROW, "test": "assert add([1]) == [2]"}  # asserts without a check function
    assert humaneval.grade(BODY, plain).correct
    late = {"test_list": ["assert f(t) == 1"], "test_setup_code": "t = Tree()"}  # setup uses what the program defines
    program = "class Tree: pass\ndef f(t): return 1"
    assert find("mbpp").grade(program, late).correct
