"""Both sides of the border between a generated program and the judge that runs its tests.

Each is a process of its own. The judge has the tests and asks the program to call its functions; arguments and results
cross as plain values, in JSON with a tag for what JSON lacks. Whatever else the program returns stays with it, and the
judge gets a number for it. So the program never sees a test, and all it can do to the verdict is to send data.

jail.py runs this file in both processes. It imports nothing of unmask: whatever is loaded here, the program can reach."""

import builtins
import importlib
import json
import os
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Set, ValuesView
from decimal import Decimal
from fractions import Fraction
from itertools import islice

LARGEST = 16 << 20  # bytes of a message
LONGEST = 100_000  # items of an iterator
ITEMS: dict[str, Callable[[list], object]] = {
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "deque": deque,
    "iterator": iter,
    "range": lambda x: range(*x),
}
TEXT: dict[str, Callable[[str], object]] = {
    "int": lambda x: int(x, 16),
    "bytes": bytes.fromhex,
    "bytearray": bytearray.fromhex,
    "complex": complex,
    "Fraction": Fraction,
    "Decimal": Decimal,
}


def pack(value, other):
    """The value as JSON. A subclass becomes its base, a view or a mapping the set or dict it equals; `other` is asked for
    what is not plain."""
    if value is None or isinstance(value, (bool, str, float)):
        return value
    if isinstance(value, int):
        return int(value) if abs(value) < 1 << 63 else {"int": hex(value)}  # json would write a long one in decimals
    if isinstance(value, list):
        return [pack(item, other) for item in value]
    if isinstance(value, Mapping):
        return {"dict": [[pack(key, other), pack(value[key], other)] for key in value]}
    if isinstance(value, range):
        return {"range": [pack(end, other) for end in (value.start, value.stop, value.step)]}
    for kind in (tuple, frozenset, deque, Set):
        if isinstance(value, kind):
            return {"set" if kind is Set else kind.__name__: [pack(item, other) for item in value]}
    if isinstance(value, (Iterator, ValuesView)):
        items = list(islice(value, LONGEST + 1))
        if len(items) > LONGEST:
            raise OverflowError("too many items to be sent")
        return {"iterator": [pack(item, other) for item in items]}
    if isinstance(value, (bytes, bytearray)):
        return {"bytearray" if isinstance(value, bytearray) else "bytes": value.hex()}
    for number in (complex, Fraction, Decimal):
        if isinstance(value, number):
            return {number.__name__: str(value)}
    if type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0:
        return pack(value.item(), other)
    return other(value)


def unpack(value, other):
    """The value of what `pack` made, with `other` for the rest; an exception if `pack` never made it."""
    if isinstance(value, list):
        return [unpack(item, other) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, inside),) = value.items()
    if kind == "object":
        return other(inside)
    if kind == "dict":
        return {unpack(key, other): unpack(item, other) for key, item in inside}
    return ITEMS[kind]([unpack(item, other) for item in inside]) if kind in ITEMS else TEXT[kind](inside)


class Line:
    """One end of a conversation in JSON: the length in eight digits, then so many bytes."""

    def __init__(self, incoming, outgoing):
        self.incoming, self.outgoing = incoming, outgoing

    def say(self, message):
        data = json.dumps(message).encode()
        if len(data) > LARGEST:
            raise OverflowError("too large to be sent")
        data = b"%08d" % len(data) + data
        while data:
            data = data[os.write(self.outgoing, data) :]

    def hear(self):
        size = int(self.read(8))
        if not 0 <= size <= LARGEST:
            raise ValueError("too large to be heard")
        return json.loads(self.read(size))

    def read(self, size):
        data = bytearray()
        while len(data) < size:
            if not (more := os.read(self.incoming, size - len(data))):
                raise EOFError
            data += more
        return bytes(data)


def digest(nonce):
    import hashlib  # slow to load, and seldom needed

    return hashlib.sha256(nonce.encode()).hexdigest()


# ---------------------------------------------------------------- the program's side


def serve(line):
    """Do what the judge asks, forever."""
    module = types.ModuleType("solution")  # not __main__: a program's own main part is not what is tested
    sys.modules["solution"] = module
    sys.argv = ["solution.py"]
    kept = []  # what the judge knows by number

    def keep(value):
        kept.append(value)
        return {"object": len(kept) - 1}

    def run(code):
        exec(compile(code, "solution.py", "exec"), module.__dict__)

    def name(word):
        try:
            return module.__dict__[word]
        except KeyError:
            raise NameError(word) from None

    def call(function, positional, named):
        return function(*positional, **named)

    def test(tests, nonce):  # where the tests cannot be run from outside
        exec(compile(tests, "tests.py", "exec"), module.__dict__)
        return digest(nonce)

    verbs: dict[str, Callable] = {
        "run": run,
        "name": name,
        "call": call,
        "get": getattr,
        "set": setattr,
        "test": test,
    }
    while True:
        verb, arguments = line.hear()
        try:
            result = verbs[verb](*unpack(arguments, kept.__getitem__))
            line.say(["value", pack(result, keep)])
        except BaseException as error:  # SystemExit and KeyboardInterrupt too: a program that leaves has not passed
            line.say(["raise", [kind.__name__[:60] for kind in type(error).__mro__]])


# ---------------------------------------------------------------- the judge's side


class Remote:
    """Something that the program keeps. It can be called, have its attributes read and set, and be handed back. It cannot
    be compared or taken for true: the program would have the say."""

    def __init__(self, judge, number):
        object.__setattr__(self, "_judge", judge)
        object.__setattr__(self, "_number", number)

    def __call__(self, *positional, **named):
        return self._judge.ask("call", self, positional, named)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self._judge.ask("get", self, name)

    def __setattr__(self, name, value):
        self._judge.ask("set", self, name, value)

    def refuse(self, *_):
        raise TypeError("this is not a plain value")

    __eq__ = __ne__ = __bool__ = __hash__ = refuse


class Tests(dict):
    """The namespace of the tests: a name that neither they nor Python define is the program's, and so are `names`."""

    def __init__(self, judge, names):
        super().__init__(__name__="tests")
        self.judge, self.names = judge, names

    def __missing__(self, name):
        if name in self.names:
            self[name] = self.judge.ask("name", name)
        elif hasattr(builtins, name):
            raise KeyError(name)
        elif name in sys.stdlib_module_names:  # the real module, not what the program has under its name
            self[name] = importlib.import_module(name)
        else:
            self[name] = self.judge.ask("name", name)
        return self[name]


class Judge:
    def __init__(self, harness, program):
        self.harness, self.program = harness, program

    def run(self):
        code, tests, setup, names, inside = self.harness.hear()
        try:
            self.ask("run", code)
            if inside:
                nonce = os.urandom(32).hex()
                if self.ask("test", tests, nonce) != digest(nonce):
                    self.leave(False, "foul")
            else:
                world = Tests(self, names)
                exec(compile(setup, "setup.py", "exec"), world)
                exec(compile(tests, "tests.py", "exec"), world)
        except BaseException as error:
            self.leave(False, type(error).__name__)
        self.leave(True, "passed")

    def leave(self, passed, reason):
        self.harness.say([passed, reason])
        os._exit(0)

    def ask(self, verb, *arguments):
        """What the program answers. If it raises an exception, so does this; if it leaves or breaks the rules, all is over."""
        message = [verb, pack(list(arguments), self.number)]
        try:
            self.program.say(message)
            kind, content = self.program.hear()
            if kind == "value":
                return unpack(content, lambda number: Remote(self, number))
            error = self.error(content)
        except (EOFError, OSError):
            self.leave(False, "died")
        except Exception:  # not what serve() would send
            self.leave(False, "foul")
        raise error

    def error(self, names) -> Exception:
        """The exception of these classes, if Python has one of them."""
        if "OutOfTime" in names:
            self.leave(False, "OutOfTime")
        for name in names:
            kind = getattr(builtins, name, None)
            if name.startswith("Stop"):  # raised here, it would end a loop over the tests
                continue
            if isinstance(kind, type) and issubclass(kind, Exception):
                return kind.__new__(kind)
            if isinstance(kind, type) and issubclass(kind, BaseException):  # SystemExit
                self.leave(False, name)
        raise ValueError(names)

    @staticmethod
    def number(value):
        if isinstance(value, Remote):
            return {"object": value._number}
        raise TypeError(f"{type(value).__name__} cannot be sent to the program")
