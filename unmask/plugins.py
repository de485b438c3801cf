"""Methods and tasks from outside the package: found by name when a caller asks for them, and told apart by their source code.

`methods` and `task` take FILE.py:NAME and the names of installed entry points (groups unmask.methods and unmask.tasks) besides
the built-in names. They run other people's code, so nothing calls them implicitly: METHODS and tasks.find know built-in names
only, and whatever must not load code, such as a server, uses those.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import TypeVar

from unmask.decoding import methods as builtin
from unmask.decoding.algorithm import Strategy
from unmask.errors import UserError
from unmask.tasks import Task, find, known

T = TypeVar("T")
FILES: dict[str, str] = {}  # modules made from files: their names, and the sha256 of what was loaded
# Packages whose code is identified by a version, not by its text.
KNOWN = {"unmask", "torch", "transformers", "peft", "torchao", "accelerate", "numpy", *sys.stdlib_module_names}


# ---------------------------------------------------------------- by name


def methods(names: Sequence[str]) -> dict[str, Strategy]:
    """Strategies by name: built-in names, entry points, and FILE.py:NAME, which is called NAME."""
    found: dict[str, Strategy] = {}
    for name in dict.fromkeys(names):
        called = name.rpartition(":")[2] if is_file(name) else name
        own = None if name in builtin.METHODS else outside(name, "unmask.methods", Strategy)
        if own is not None and (called in builtin.METHODS or called in found):
            raise UserError(f"there is another method called {called!r}; give the one in {name} a name of its own")
        found[called] = builtin.method(name) if own is None else own
    return found


def task(name: str) -> Task:
    """The task of this name: built in, an entry point, or FILE.py:NAME."""
    try:
        return find(name)
    except UserError:
        own = outside(name, "unmask.tasks", Task)
        if own is None:
            raise
    if own.name in known():
        raise UserError(f"{name} is called {own.name!r}, as a built-in task is; give it a name of its own")
    return own


def is_file(name: str) -> bool:
    return name.rpartition(":")[0].endswith(".py")


def outside(name: str, group: str, kind: type[T]) -> T | None:
    """What FILE.py:NAME or an entry point of the group holds; None if the name is neither."""
    if is_file(name):
        path, _, attribute = name.rpartition(":")
        module = load_file(path)
        if not hasattr(module, attribute):
            there = [key for key, value in vars(module).items() if isinstance(value, kind)]
            hint = f"it has {', '.join(there)}" if there else f"define it there: {attribute} = {kind.__name__}(...)"
            raise UserError(f"{path} has no {attribute!r}; {hint}")
        return _made(name, getattr(module, attribute), kind)
    if name.endswith(".py"):
        raise UserError(f"which {kind.__name__} of {name}? name it, as in {name}:mine")
    points = entry_points(group, name)
    if not points:
        return None
    if len(points) > 1:
        owners = " and ".join(sorted(point.dist.name if point.dist else "?" for point in points))
        raise UserError(f"{name!r} is an entry point of {owners}; uninstall one of them")
    try:
        found = points[0].load()
    except Exception as error:
        raise UserError(f"the entry point {name} ({points[0].value}) cannot be loaded: {_said(error)}") from error
    return _made(name, found, kind)


def entry_points(group: str, name: str | None = None) -> list[metadata.EntryPoint]:
    """The entry points of a group, all or those of one name; nothing is loaded."""
    every = metadata.entry_points(group=group)
    return [point for point in every if name is None or point.name == name]


def _made(name: str, value: object, kind: type[T]) -> T:
    """The Strategy or Task itself, or what a function without arguments makes."""
    if isinstance(value, kind):
        return value
    if callable(value) and not isinstance(value, type):
        try:
            value = value()
        except Exception as error:
            raise UserError(f"{name}() fails: {_said(error)}") from error
        if isinstance(value, kind):
            return value
        raise UserError(f"{name}() returns {value!r:.40}; it must return a {kind.__name__}")
    raise UserError(f"{name} is {value!r:.40}; it must be a {kind.__name__}, or a function that returns one")


def load_file(path: str) -> ModuleType:
    """A Python file as a module. It is named by its contents: an edited file is another module, in every process."""
    try:
        source = Path(path).expanduser().read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    sha256 = hashlib.sha256(source).hexdigest()
    name = f"unmask_file_{sha256[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    module = ModuleType(name)
    module.__file__ = str(Path(path).expanduser().absolute())
    sys.modules[name] = module  # dataclasses and pickle look it up there
    try:
        exec(compile(source, module.__file__, "exec"), vars(module))
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, SyntaxError) and error.filename == module.__file__:
            raise UserError(f"{path}, line {error.lineno}: {error.msg}") from None
        if isinstance(error, (Exception, SystemExit)):
            raise UserError(f"{path} cannot be loaded: {_said(error)}") from error
        raise
    FILES[name] = sha256
    return module


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split()):.200}"


# ---------------------------------------------------------------- by source


def code_hash(*values: object) -> str:
    """sha256 of the source of every class and function among the values that is not this package's (or torch's, ...): of the
    whole file it is in, else, in a notebook, of its own lines; "" if there is none. What a function was given counts too."""
    parts = sorted(set(_parts(values, set())))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest() if parts else ""


def _parts(value: object, seen: set[int]) -> Iterator[str]:
    if id(value) in seen:  # a function may hold itself
        return
    seen.add(id(value))
    inner: list[object] = []
    if isinstance(value, (tuple, list)):
        inner = list(value)
    elif isinstance(value, dict):
        inner = list(value.values())
    elif isinstance(value, MethodType):
        inner = [value.__func__, value.__self__]
    elif isinstance(value, partial):
        inner = [value.func, *value.args, *value.keywords.values()]
        if _own(value.func):
            yield called(value)
    elif isinstance(value, FunctionType) and _own(value):
        inner = [
            *(cell.cell_contents for cell in value.__closure__ or () if _filled(cell)),
            *(value.__defaults__ or ()),
        ]
        yield f"{value.__qualname__}: {_source(value)} {[x for x in inner if _plain(x)]}"
    elif isinstance(value, type) and _own(value):
        inner = list(value.__mro__)
        yield f"{value.__qualname__}: {_source(value)}"
    elif is_dataclass(value) and not isinstance(value, type):
        inner = [type(value), *(getattr(value, f.name) for f in fields(value))]
    elif callable(value) and not isinstance(value, (type, FunctionType)):
        inner = [type(value)]
    for item in inner:
        yield from _parts(item, seen)


def called(function: Callable[..., object]) -> str:
    """A function's name, and the arguments a partial gives it."""
    if isinstance(function, partial):
        given = [
            *map(repr, filter(_plain, function.args)),
            *(f"{k}={v!r}" for k, v in function.keywords.items() if _plain(v)),
        ]
        return f"{called(function.func)}({', '.join(given)})"
    return f"{function.__module__}.{getattr(function, '__qualname__', type(function).__qualname__)}"


def _plain(value: object) -> bool:
    """Does its repr say all of it?"""
    if isinstance(value, (tuple, list)):
        return all(map(_plain, value))
    return value is None or isinstance(value, (str, bytes, int, float))


def _filled(cell: CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:  # a name that is not bound yet
        return False


def _own(thing: object) -> bool:
    return str(getattr(thing, "__module__", "builtins")).partition(".")[0] not in KNOWN


def _source(thing: type | FunctionType) -> str:
    module = sys.modules.get(thing.__module__)
    if thing.__module__ in FILES:
        return FILES[thing.__module__]
    try:
        text = Path(str(getattr(module, "__file__", None) or "")).read_bytes()
    except OSError:
        try:
            text = inspect.getsource(thing).encode()
        except (OSError, TypeError):  # typed at a prompt
            functions = vars(thing).values() if isinstance(thing, type) else [thing]
            text = repr([_compiled(f.__code__) for f in functions if isinstance(f, FunctionType)]).encode()
    return hashlib.sha256(text).hexdigest()


def _compiled(code: CodeType) -> tuple[bytes, tuple[str, ...], list[object]]:
    return code.co_code, code.co_names, [_compiled(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
