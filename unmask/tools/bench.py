"""Speed and memory of decoding, as ratios within one run: repeated and interleaved, so that a machine's noise cancels.

The model is LLaDA-shaped with random weights and LLaDA's vocabulary. B rows, P prompt tokens, L response tokens, T steps.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from typing import Any

import torch
from torch import Tensor

from unmask.decoding.algorithm import Strategy, Watch, decode
from unmask.decoding.canvas import Canvas, Vocab
from unmask.decoding.methods import METHODS
from unmask.decoding.running import answer
from unmask.models.denoisers import Plain
from unmask.models.llada import LLaDAConfig, LLaDAModelLM
from unmask.tables import markdown
from unmask.views.trace import Trace

VOCABULARY, MASK = 126464, 126336


@dataclass(frozen=True)
class Shape:
    """One block is built and run `layers` times: the arithmetic of a deep model in the memory of a shallow one."""

    name: str
    d: int
    layers: int
    heads: int
    rows: int
    prompt: int
    length: int
    steps: int

    @property
    def head_share(self) -> float:
        """The LM head's share of a forward's multiplications."""
        body = self.layers * (4 * self.d**2 + 3 * self.d * 3 * self.d)
        return self.d * VOCABULARY / (self.d * VOCABULARY + body)


SHAPES = (
    Shape("small", d=64, layers=2, heads=4, rows=2, prompt=16, length=32, steps=8),  # the head dominates
    Shape("proportioned", d=256, layers=512, heads=4, rows=1, prompt=16, length=16, steps=2),  # as in the 8B
)


def build(shape: Shape, device: str = "cpu") -> LLaDAModelLM:
    torch.manual_seed(0)
    config = LLaDAConfig(
        d_model=shape.d, n_heads=shape.heads, n_layers=1, mlp_hidden_size=3 * shape.d, vocab_size=VOCABULARY,
        mask_token_id=MASK, eos_token_id=126081, pad_token_id=126081,
    )  # fmt: skip
    model: Any = LLaDAModelLM(config)
    model = model.to(device).eval().requires_grad_(False)
    block = model.body.blocks[0]
    model.body.blocks = torch.nn.ModuleList([block] * shape.layers)
    return model


def blank(shape: Shape, device: str = "cpu", rows: int | None = None) -> Canvas:
    torch.manual_seed(1)
    prompts = torch.randint(0, 126000, (rows or shape.rows, shape.prompt)).tolist()
    return Canvas.blank(prompts, shape.length, Vocab(MASK, (126081,)), device)


def anchored(canvas: Canvas, at: int = -8) -> Canvas:
    return canvas.pin([11, 12, 13], at, anchor=True)


Work = Generator[None, None, Tensor]  # stops after every step, so that steps of different variants can be interleaved


def ours(model: LLaDAModelLM, canvas: Canvas, strategy: Strategy, steps: int, watch: Sequence[Watch] = ()) -> Work:
    denoiser, decoding = Plain(model), decode(canvas, strategy, steps, watch=watch)
    try:
        ask = next(decoding)
        while True:
            ask = decoding.send(answer(denoiser, ask))
            yield
    except StopIteration as done:
        return done.value.canvas.ids


def bare(model: LLaDAModelLM, canvas: Canvas, steps: int) -> Work:
    """Full forwards with full logits, and nothing else."""
    for _ in range(steps):
        model(canvas.ids)
        yield
    return canvas.ids


def reference(model: LLaDAModelLM, canvas: Canvas, steps: int) -> Work:
    """A plain loop as published: logits and softmax over every position and all of V, top-k row by row."""
    x, p0 = canvas.ids.clone(), canvas.start
    for step in range(steps):
        logits = model(x).logits
        probability = torch.softmax(logits, dim=-1)
        x0 = logits.argmax(-1)
        confidence = probability.gather(-1, x0[..., None]).squeeze(-1)
        masked = x == MASK
        x0, confidence = torch.where(masked, x0, x), torch.where(masked, confidence, -torch.inf)
        for row in range(len(x)):
            k = -(-int(masked[row, p0:].sum()) // (steps - step))
            chosen = confidence[row].topk(k).indices
            x[row, chosen] = x0[row, chosen]
        yield
    return x


@torch.inference_mode()
def finished(work: Work) -> Tensor:
    while True:
        try:
            next(work)
        except StopIteration as done:
            return done.value


def now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def body_clock(model: Any) -> list[float]:
    """From now on, the seconds of each call of the model's body (all but the LM head)."""
    spent: list[float] = []
    body = model.hidden

    def hidden(*args: Any, **settings: Any) -> Tensor:
        begun = now()
        out = body(*args, **settings)
        spent.append(now() - begun)
        return out

    model.hidden = hidden
    return spent


@torch.inference_mode()
def measure(shape: Shape, seconds: float, device: str = "cpu") -> dict[str, Any]:
    """The ratios of one shape. The variants are run side by side, a step of each in turn. Every step of every variant
    makes the same call of the model's body and differs in the rest, so the two are timed separately: the body's time is the
    best of all its calls, and the same for all; the rest of a step is the best of the rounds that `seconds` hold, as anything
    else the machine does only ever adds time. Otherwise a body's noise of 5 % would hide a rest of 5 %."""
    model, canvas = build(shape, device), blank(shape, device)
    pinned, steps = anchored(canvas), shape.steps
    plain, sacm = METHODS["top-probability"], METHODS["sacm"]
    variants: dict[str, Callable[[], Work]] = {
        "top_probability": lambda: ours(model, canvas, plain, steps),
        "anchored": lambda: ours(model, pinned, plain, steps),
        "sacm": lambda: ours(model, pinned, sacm, steps),
        "trace": lambda: ours(model, canvas, plain, steps, [Trace()]),
        "forwards": lambda: bare(model, canvas, steps),
        "reference": lambda: reference(model, canvas, steps),
    }
    equal = torch.equal(
        finished(ours(model, canvas, plain, steps)), finished(reference(model, canvas, steps))
    )  # warms up
    spent, bodies = body_clock(model), []
    rest = {name: [math.inf] * steps for name in variants}
    end = now() + seconds
    for turn in count():
        if turn > 1 and now() > end:
            break
        names = list(variants)[turn % len(variants) :] + list(variants)[: turn % len(variants)]
        works = {name: variants[name]() for name in names}
        for step in range(steps):
            for name, work in works.items():
                begun = now()
                next(work, None)
                whole = now() - begun
                bodies.append(spent.pop())
                rest[name][step] = min(rest[name][step], whole - bodies[-1])
    took = {name: steps * min(bodies) + sum(times) for name, times in rest.items()}
    return {
        "shape": asdict(shape),
        "head_share_of_flops": shape.head_share,
        "tokens_equal_reference": equal,
        "sacm_over_top_probability": took["sacm"] / took["anchored"],
        "decode_over_forwards": took["top_probability"] / took["forwards"],
        "reference_over_ours": took["reference"] / took["top_probability"],
        "trace_over_plain": took["trace"] / took["top_probability"],
        "rounds": turn,
        "seconds": took,
    }


def memory(shape: Shape, rows: int = 8, length: int = 128, steps: int = 2) -> float | None:
    """Peak memory above the weights, ours over the reference's, B = 8; each in a process of its own."""
    import subprocess
    import sys

    def start(which: str) -> subprocess.Popen[str]:
        code = f"from unmask.tools.bench import *; print(peak_of({which!r}, {shape!r}, {rows}, {length}, {steps}))"
        return subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    peaks = [process.communicate()[0].strip() for process in (start("ours"), start("reference"))]
    return float(peaks[0]) / float(peaks[1]) if all(peak not in ("", "None") for peak in peaks) else None


def peak_of(which: str, shape: Shape, rows: int, length: int, steps: int) -> float | None:
    """Bytes at the peak of a decode above what was held before it; None where the system cannot tell."""
    from dataclasses import replace

    shape = replace(shape, length=length, layers=2)
    cuda = torch.cuda.is_available()
    model = build(shape, "cuda" if cuda else "cpu")
    canvas = blank(shape, "cuda" if cuda else "cpu", rows)
    with torch.inference_mode():
        model.head(model.hidden(canvas.ids[:1, :2]))  # libraries allocate on first use
    if not cuda and (before := _high_water(reset=True)) is None:
        return None
    if cuda:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    finished(
        ours(model, canvas, METHODS["top-probability"], steps) if which == "ours" else reference(model, canvas, steps)
    )
    return (torch.cuda.max_memory_allocated() if cuda else _high_water(reset=False)) - before


def _high_water(reset: bool) -> int | Any:
    """Linux: the process's peak resident memory in bytes, counted anew from a reset on."""
    try:
        if reset:
            with open("/proc/self/clear_refs", "w") as f:
                f.write("5")
        with open("/proc/self/status") as f:
            return next(int(line.split()[1]) * 1024 for line in f if line.startswith("VmHWM"))
    except OSError:
        return None


def bench(seconds: float = 12, device: str = "cpu") -> Iterator[dict[str, Any]]:
    """One record per shape, as each is done."""
    for shape in SHAPES:
        yield {**measure(shape, seconds, device), "memory_over_reference": memory(shape)}


# What each ratio is, and what it should be: at most or at least.
AIMS = {
    "sacm_over_top_probability": ("SACM / top probability, both with the anchor", "<=", {"proportioned": 1.01}),
    "decode_over_forwards": ("decode / T bare forwards with full logits", "<=", {"proportioned": 1.0}),
    "reference_over_ours": ("a plain published-style loop / ours", ">=", {"small": 1.5, "proportioned": 1.0}),
    "memory_over_reference": ("peak memory above the weights, ours / the plain loop, B = 8", "<=", {"small": 0.25, "proportioned": 0.25}),
    "trace_over_plain": ("decode with a Trace / without", "<=", {"proportioned": 1.03}),
}  # fmt: skip


def table(records: list[dict[str, Any]]) -> str:
    """Markdown: a row for each ratio, a column for each shape, with the aim beside it."""
    rows = []
    for key, (what, sign, aims) in AIMS.items():
        row = {"ratio": what}
        for record in records:
            name, value = record["shape"]["name"], record[key]
            aim = f" (aim {sign} {aims[name]:g})" if name in aims else ""
            row[_head_of(record)] = "not measured here" if value is None else f"{value:.3f}{aim}"
        rows.append(row)
    equal = {_head_of(r): "yes" if r["tokens_equal_reference"] else "NO" for r in records}
    rows.append({"ratio": "tokens equal to the plain loop's", **equal})
    return markdown(rows, list(rows[0])).rstrip("\n")


def _head_of(record: dict[str, Any]) -> str:
    return f"{record['shape']['name']} (head {record['head_share_of_flops']:.0%} of FLOPs)"
