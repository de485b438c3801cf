"""The sandbox for honest programs: what they need is there, time is measured fairly, and programs are found in replies."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from unmask.errors import UserError
from unmask.tasks import find, humaneval, mbpp, sandbox
from unmask.tasks.border import pack, unpack
from unmask.tasks.programs import Limits, from_outside, longest_program
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
    code = "import asyncio, collections, dataclasses, functools, itertools, math, re, tempfile, threading, zoneinfo\n"
    code += "@dataclasses.dataclass\nclass P:\n    x: int\n    def twice(self): return 2 * self.x\n"
    code += "with tempfile.NamedTemporaryFile('w+') as file:\n    file.write('x')\n"
    code += "if __name__ == '__main__':\n    raise SystemExit('a main part is not what is tested')\n"
    code += "async def slowly(): return 3\ndef wait(): return asyncio.run(slowly())\n"
    code += "found = []\nthread = threading.Thread(target=found.append, args=(1,))\nthread.start()\nthread.join()\n"
    code += "def area(p): return p.x ** 2\n"
    tests = "assert wait() == 3 and found == [1]\np = P(3)\nassert p.twice() == 6 and area(p) == 9\np.x = 5\nassert area(p) == 25\nassert area(P(x=2)) == 4"
    assert run(Program(code, tests)) == (True, "passed")


RESULTS = {
    "Counter('aab')": "{'a': 2, 'b': 1}", "OrderedDict(a=1)": "{'a': 1}", "defaultdict(int, a=1)": "{'a': 1}", "Pair(1, 2)": "(1, 2)",
    "{'a': 1}.keys()": "{'a'}", "Fraction(1, 2)": "0.5", "Decimal(3)": "3", "True": "1", "Colour.RED": "1", "range(3)": "range(3)",
    "2 ** 70": "2 ** 70", "10 ** 5000": "10 ** 5000", "float('inf')": "float('inf')", "1 + 2j": "1 + 2j", "b'x'": "b'x'", "bytearray(b'x')": "b'x'",
    "{1: {(2, 3): [None]}}": "{1: {(2, 3): [None]}}", "{frozenset({1})}": "{frozenset({1})}", "'\\ud800é'": "'\\ud800é'",
}  # fmt: skip


@needs_namespaces
def test_results_are_as_equal_from_outside_as_within():
    code = "from collections import *\nfrom decimal import Decimal\nfrom enum import IntEnum\nfrom fractions import Fraction\n"
    code += "Pair = namedtuple('Pair', 'a b')\nColour = IntEnum('Colour', 'RED')\n"
    code += f"def f(i): return [{', '.join(RESULTS)}][i]\n"
    code += "def walk(n):\n    for i in range(n): yield i\ndef fail(): raise ValueError('no')\nclass Own(KeyError): pass\ndef own(): raise Own\n"
    tests = "".join(f"assert f({i}) == {value}\n" for i, value in enumerate(RESULTS.values()))
    tests += "assert list(walk(3)) == [0, 1, 2] and sum(map(abs, walk(3))) == 3 and walk(3) != [0, 1, 2]\n"
    tests += "assert [1] != (1,) and f(7) is True and type(f(0)) is dict\n"
    tests += "try: fail()\nexcept ValueError: pass\nelse: assert 0\ntry: own()\nexcept KeyError: pass\nelse: assert 0\n"
    assert run(Program(code, tests)) == (True, "passed")


@needs_namespaces
def test_numbers_of_numpy_are_numbers():
    pytest.importorskip("numpy")
    code = "import numpy\ndef f(xs): return [numpy.sum(xs), numpy.mean(xs), numpy.any(xs)]\n"
    assert run(Program(code, "assert f([1, 2]) == [3, 1.5, True]"), memory=4096) == (True, "passed")


def test_plain_values_survive_the_border():
    values = [
        None,
        True,
        1,
        -(2**80),
        1.5,
        -0.0,
        1 - 2j,
        "é\ud800",
        b"\0",
        [1, [2]],
        (1,),
        {1: "a", (2,): {3}},
        {1},
        frozenset({1}),
        range(2, 9, 3),
    ]
    for value in values:
        back = unpack(json.loads(json.dumps(pack(value, None))), None)
        assert back == value and type(back) is type(value)
    for foul in ({"eval": "1"}, {"tuple": [1], "set": [2]}, {}, {"bytes": "xy"}, {"set": [[]]}, {"int": 3}):
        with pytest.raises((ValueError, TypeError, KeyError)):
            unpack(foul, None)


@pytest.mark.parametrize(
    ("tests", "outside"),
    [
        ("assert f([1, 2], key='x') == sorted([2, 1], key=lambda x: x)", True),
        ("def check(candidate):\n    assert tuple(candidate(len([1]))) == (1,)\ncheck(f)", True),
        ("assert f(lambda x: x) == 1", False),
        ("def twice(x): return 2 * x\nassert f(twice, 2) == 4", False),
        ("def twice(x): return 2 * x\nassert f(twice(2)) == 4", True),
        ("assert f([len]) == 1", False),
        ("str = 'x'\nassert f(str) == 1", True),  # HumanEval has such names
        ("assert f(x for x in [1]) == 1", True),
        ("class A: pass\nassert f(A()) == 1", False),
        ("assert f(", True),
    ],
)
def test_which_tests_can_be_run_from_outside(tests, outside):
    assert from_outside(tests) is outside


@needs_namespaces
def test_tests_that_hand_over_functions_run_in_one_process():
    row = {"test_list": ["assert apply(lambda x: x + 1, 2) == 3"]}
    assert mbpp.grade("def apply(f, x): return f(x)", row) == (
        True,
        "def apply(f, x): return f(x)",
        "program, passed in one process",
    )
    assert mbpp.grade("def apply(f, x): return x", row).rule == "program, AssertionError in one process"
    assert not mbpp.grade("import sys\ndef apply(f, x): sys.exit(0)", row).correct


@needs_namespaces
def test_a_function_may_have_the_name_of_one_of_pythons():
    row = {"code": "def sum(a, b): ...", "test_list": ["assert sum(1, 2) == 2"]}
    assert mbpp.grade("def sum(a, b): return a * b", row).correct
    assert mbpp.grade("def bisect(a): return a", {"test_list": ["assert bisect(1) == 1"]}).correct  # a module's name


@needs_namespaces
def test_no_privileges_and_its_own_processes_only():
    code = (
        "import os\nstatus = open('/proc/self/status').read()\npids = [p for p in os.listdir('/proc') if p.isdigit()]\n"
    )
    code += "environ, root, here = len(os.environ), sorted(os.listdir('/')), os.getcwd()\n"
    tests = (
        "assert 'NoNewPrivs:\\t1' in status and 'Seccomp:\\t2' in status\nassert pids == ['1', '2'], pids\nimport re\n"
    )
    tests += "assert int(re.search(r'CapEff:\\t(\\w+)', status)[1], 16) in (0, 4)\nassert environ < 10 and 'unmask-code-' in here\n"
    tests += "assert not {'run', 'sys', 'mnt', 'srv', 'media', 'boot'} & set(root), root"
    assert run(Program(code, tests)) == (True, "passed")


def read(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""


@needs_namespaces
def test_a_harness_that_is_killed_takes_its_programs_along(tmp_path):
    memory = 1_000_000 + os.getpid()  # on the command line of its jails, to know them by
    code = f"from unmask.tasks.sandbox import *\nattempt(Program('import time\\ntime.sleep(999)', ''), isolation(), 60, {memory})"
    harness = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "TMPDIR": str(tmp_path)})

    def alive():
        return [path for path in Path("/proc").glob("[0-9]*/cmdline") if f"\0{memory}\0".encode() in read(path)]

    deadline = time.monotonic() + 60
    while (
        len(alive()) < 6 and time.monotonic() < deadline
    ):  # program and judge: who sits in the jail, and two who wait for it
        time.sleep(0.1)
    assert len(alive()) == 6
    harness.kill()
    harness.wait()
    deadline = time.monotonic() + 10
    while alive() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive()


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
