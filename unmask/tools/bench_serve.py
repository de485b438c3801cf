"""How well serving works, as ratios within one run: two servers of the bundled model, `--batch 16` and `--batch 1`, asked in turn;
a new one each time for its memory; then two more, one thread for each engine, with two replicas and with one."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from statistics import median
from typing import Any

from unmask.errors import UserError
from unmask.generation import generate
from unmask.models.loading import load
from unmask.tables import markdown

QUESTION = "The dial from 0 to 4 shows 3. First mirror. Second triple. Third skip. Fourth up. What does it show?"
AIMS = {
    "throughput": "tokens/s, --batch 16 over --batch 1|>= 1.5", "short": "a short request behind eight long ones, --batch 16 over 1|<= 0.2",
    "tail": "64 clients: p99 / median|<= 3", "memory": "peak above the weights, 64 clients / 16|<= 1.2",
    "http": "one request, HTTP / generate|<= 1.15", "trace": "one stream, with trace / without|<= 1.15",
    "replicas": "tokens/s, 2 replicas over 1, one thread each|>= 1.4",
}  # fmt: skip


@contextmanager
def server(*options: str, threads: int | None = None) -> Iterator[tuple[str, int]]:
    """Its host:port, and its process id."""
    env = {**os.environ, **({"OMP_NUM_THREADS": str(threads)} if threads else {})}
    command = [sys.executable, "-m", "unmask", "serve", "--port", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env)
    try:
        line = process.stdout.readline().strip() if process.stdout else ""
        if not line:
            raise UserError("the server to measure did not start: `unmask serve --port 0` says why")
        yield line.removeprefix("http://"), process.pid
    finally:
        process.terminate()
        process.wait(30)


def ask(where: str, length: int = 64, steps: int | None = None, **more: Any) -> tuple[float, int]:
    """Seconds until the whole answer is there, and its tokens."""
    about = {
        "method": "sacm" if length >= 24 else "top-probability",
        "steps": steps,
        "trace": bool(more.pop("trace", False)),
    }
    body = {
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": length,
        "unmask": about,
        "seed": 0,
        **more,
    }
    begun = time.perf_counter()
    line = http.client.HTTPConnection(where, timeout=600)
    line.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
    answer = line.getresponse()
    content = answer.read()
    line.close()
    if answer.status != 200:
        raise UserError(f"the server to measure said {answer.status}: {content[:200]!r}")
    return time.perf_counter() - begun, length


def crowd(where: str, clients: int, each: int, **more: Any) -> tuple[float, list[float]]:
    """Tokens per second of so many clients with so many requests each, and how long every request took."""

    def one(_: int) -> list[float]:
        return [ask(where, **more)[0] for _ in range(each)]

    begun = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        took = [seconds for some in pool.map(one, range(clients)) for seconds in some]
    return clients * each * more.get("length", 64) / (time.perf_counter() - begun), took


def behind(where: str, length: int) -> float:
    """Seconds of a short request that comes when eight long ones are under way."""
    with ThreadPoolExecutor(8) as pool:
        long = [pool.submit(ask, where, length) for _ in range(8)]
        time.sleep(0.2)
        took, _ = ask(where, 16, 4)
        for one in long:
            one.result()
    return took


def in_process(model: Any, length: int) -> float:
    """Seconds of the same request without a server."""
    begun = time.perf_counter()
    generate(model, QUESTION, "sacm", length=length)
    return time.perf_counter() - begun


def best(*works: Callable[[], float], rounds: int = 5) -> list[float]:
    """The shortest time of each; they take turns, and anything else the machine does only ever adds time."""
    return [min(took) for took in zip(*([work() for work in works] for _ in range(rounds)), strict=True)]


def peak(pid: int, reset: bool = False) -> int | None:
    """Linux: the process's resident memory now, its peak counted anew from here on; or that peak. In bytes."""
    try:
        if reset:
            with open(f"/proc/{pid}/clear_refs", "w") as f:
                f.write("5")
        with open(f"/proc/{pid}/status") as f:
            return next(int(line.split()[1]) * 1024 for line in f if line.startswith("VmRSS" if reset else "VmHWM"))
    except OSError:
        return None


def grown(clients: int, length: int, requests: int = 128) -> int | None:
    """Bytes above the weights at a server's peak, when so many clients share the requests: above what it has before its first
    request. A new server each time: memory that was needed once is not given back."""
    with server("--batch", "16") as (where, pid):
        before = peak(pid, reset=True)
        crowd(where, clients, requests // clients, length=length)
        after = peak(pid)
    return after - before if before and after else None


def bench(rounds: int = 3, length: int = 64) -> dict[str, Any]:
    """The ratios; every one is the median of `rounds`, its two sides measured in turn."""
    found: dict[str, list[float]] = {name: [] for name in AIMS}
    model = load("tiny")
    with ExitStack() as stack:
        wide, _ = stack.enter_context(server("--batch", "16"))
        narrow, _ = stack.enter_context(server("--batch", "1"))
        for where in (wide, narrow):
            ask(where)
        for _ in range(rounds):
            fast, slow = (crowd(where, 16, 1, length=length)[0] for where in (wide, narrow))
            found["throughput"].append(fast / slow)
            found["short"].append(behind(wide, 2 * length) / behind(narrow, 2 * length))
            alone, asked, plain, traced = best(
                lambda: in_process(model, length), lambda: ask(wide, length)[0],
                lambda: ask(wide, length, stream=True)[0], lambda: ask(wide, length, stream=True, trace=True)[0],
            )  # fmt: skip
            found["http"].append(asked / alone)
            found["trace"].append(traced / plain)
            took = sorted(crowd(wide, 64, 2, length=length)[1])
            found["tail"].append(took[int(0.99 * (len(took) - 1))] / median(took))
    few, many = ([grown(clients, length) or 0 for _ in range(rounds)] for clients in (16, 64))
    if median(few) > 0:
        found["memory"].append(median(many) / median(few))
    found["replicas"] = replicas(rounds, length)
    return {
        "rounds": rounds,
        "length": length,
        **{name: median(values) if values else None for name, values in found.items()},
    }


def replicas(rounds: int, length: int) -> list[float]:
    """Tokens per second of two replicas over those of one, 64 clients each; nothing without Ray Serve or a second core."""
    try:
        from ray import serve  # noqa: F401
    except ImportError:
        return []
    if (os.cpu_count() or 1) < 2:
        return []
    with ExitStack() as stack:
        two, _ = stack.enter_context(server("--replicas", "2", threads=1))
        one, _ = stack.enter_context(server(threads=1))
        for where in (two, one):
            crowd(where, 4, 1, length=length)
        return [crowd(two, 64, 2, length=length)[0] / crowd(one, 64, 2, length=length)[0] for _ in range(rounds)]


def table(record: dict[str, Any]) -> str:
    rows = [dict(zip(("what", "aim"), AIMS[name].split("|"), strict=True), here=record[name]) for name in AIMS]
    return markdown(rows, ["what", "aim", "here"])
