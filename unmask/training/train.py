"""Masked-diffusion training as LLaDA does it: t ~ U(0, 1), each response token masked with probability t, cross-entropy / t.

B rows, P prompt slots (left-padded), L response slots. Responses are padded with end-of-text to L, and the loss counts it.
A step's data and masks depend on the seed and the step alone, so a resumed run is the straight one, bit for bit.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from unmask.errors import UserError

Rows = list[tuple[str, str]]  # (prompt, response)
Source = Callable[[int, float], tuple[Rows, int]]  # (step, share of training behind) -> rows and their response length


@dataclass(frozen=True)
class Recipe:
    steps: int = 1000
    batch: int = 32
    length: int = 96  # L
    lr: float = 3e-3  # AdamW: embeddings, head, norms, LoRA
    muon: float = 4e-3  # Muon: the hidden matrices
    warmup: int = 40
    cooldown: float = 0.4  # the last share of the steps, in which the rates go linearly to 0
    least: float = 0.02  # t is drawn from (least, 1]
    padding: str = "eot"  # or "rainbow": one end-of-text, then a cycle of padding tokens
    seed: int = 0

    def rate(self, step: int) -> float:
        """What both learning rates are multiplied by."""
        rest = (self.steps - step) / max(1, self.cooldown * self.steps)
        return min(1.0, (step + 1) / max(1, self.warmup), rest)


class Muon(torch.optim.Optimizer):
    """Momentum whose update is replaced by the nearest orthogonal matrix (Newton-Schulz, 5 iterations, in float32)."""

    def __init__(self, params: Any, lr: float, momentum: float = 0.9):
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            shapes: dict[torch.Size, list[Tensor]] = {}
            for p in group["params"]:
                if p.grad is not None:
                    shapes.setdefault(p.shape, []).append(p)
            for same in shapes.values():  # matrices of one shape go through Newton-Schulz together
                updates = []
                for p in same:
                    velocity = self.state[p].setdefault("velocity", torch.zeros_like(p))
                    velocity.mul_(group["momentum"]).add_(p.grad)
                    updates.append(p.grad + group["momentum"] * velocity)
                for p, update in zip(same, orthogonal(torch.stack(updates)), strict=True):
                    p.add_(update, alpha=-group["lr"] * max(1, p.shape[0] / p.shape[1]) ** 0.5)


def orthogonal(g: Tensor, iterations: int = 5) -> Tensor:
    """The orthogonal factor of each matrix of g (n, rows, columns), nearly."""
    tall = g.shape[-2] > g.shape[-1]
    x = (g.mT if tall else g).float()
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(iterations):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return (x.mT if tall else x).to(g.dtype)


def optimizers(module: Any, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the blocks, AdamW for the rest (and for adapters)."""
    hidden: list[Tensor] = []
    rest: list[Tensor] = []
    for name, p in module.named_parameters():
        if p.requires_grad:
            inside = p.ndim == 2 and (".blocks." in name or ".layers." in name) and "lora_" not in name
            (hidden if inside else rest).append(p)
    made: list[torch.optim.Optimizer] = [Muon(hidden, recipe.muon)] if hidden else []
    return made + ([torch.optim.AdamW(rest, recipe.lr, betas=(0.9, 0.98), weight_decay=0.0)] if rest else [])


@dataclass(frozen=True)
class Batch:
    ids: Tensor  # (B, P + L) with masks
    valid: Tensor  # (B, P + L) bool, False on left padding
    target: Tensor  # (B, P + L)
    masked: Tensor  # (B, P + L) bool
    weight: Tensor  # (B, 1): 1 / t
    length: int  # L

    def to(self, device: Any) -> Batch:
        moved: dict[str, Any] = {name: x.to(device) for name, x in vars(self).items() if isinstance(x, Tensor)}
        return replace(self, **moved)


def encode(tokenizer: Any, rows: Rows, length: int, padding: list[int]) -> tuple[list[list[int]], list[list[int]]]:
    """Prompt ids, and response ids padded to L."""
    if getattr(tokenizer, "chat_template", None):
        asked = [
            tokenizer.apply_chat_template([{"role": "user", "content": p}], tokenize=False, add_generation_prompt=True)
            for p, _ in rows
        ]
    else:
        asked = [p for p, _ in rows]
    prompts = tokenizer(asked, add_special_tokens=False)["input_ids"]
    responses = tokenizer([r for _, r in rows], add_special_tokens=False)["input_ids"]
    cycle = padding[1:] or padding
    return prompts, [(r + padding[:1] + cycle * length)[:length] for r in responses]


def masked_batch(
    prompts: list[list[int]],
    responses: list[list[int]],
    mask_id: int,
    pad_id: int,
    least: float,
    generator: torch.Generator,
) -> Batch:
    width, rows = max(map(len, prompts)), len(prompts)
    target = torch.tensor([[pad_id] * (width - len(p)) + p + r for p, r in zip(prompts, responses, strict=True)])
    valid = torch.ones_like(target, dtype=torch.bool)
    for row, prompt in enumerate(prompts):
        valid[row, : width - len(prompt)] = False
    # t is stratified: one draw in each of B equal parts of (least, 1], which steadies the loss
    t = least + (1 - least) * ((torch.arange(rows) + torch.rand((), generator=generator)) / rows)[:, None]
    masked = torch.rand(target.shape, generator=generator) < t
    masked[:, :width] = False
    return Batch(target.masked_fill(masked, mask_id), valid, target, masked, 1 / t, target.shape[1] - width)


def loss_of(module: Any, batch: Batch) -> Tensor:
    """sum over masked of cross-entropy / t, by the number of response tokens."""
    hidden = module.hidden(batch.ids, batch.valid)
    rows, slots = batch.masked.nonzero(as_tuple=True)
    logits = module.head(hidden[rows, slots - int(module.shifted)])
    each = F.cross_entropy(logits.float(), batch.target[rows, slots], reduction="none")
    return (each * batch.weight[rows, 0]).sum() / (batch.length * len(batch.ids))


def initialise(module: Any, seed: int) -> None:
    """Small embeddings, and zero output projections and head: the model begins as the uniform guess, every block as nothing."""
    generator = torch.Generator().manual_seed(seed)
    for name, p in module.named_parameters():
        with torch.no_grad():
            if p.ndim < 2:
                p.fill_(1.0)
            elif "wte" in name or "embed" in name:
                p.normal_(0, 0.05, generator=generator)
            elif name.endswith(
                ("attn_out.weight", "ff_out.weight", "o_proj.weight", "down_proj.weight", "lm_head.weight")
            ):
                p.zero_()
            else:
                p.normal_(0, p.shape[1] ** -0.5, generator=generator)


def read(file: str | Path) -> list[tuple[int, str, str]]:
    """(line number, prompt, response) of a JSONL file."""
    try:
        content = Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}") from error
    found = []
    for number, line in enumerate(content.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(f"{file}, line {number}: not JSON ({error.msg})") from error
        for name in ("prompt", "response"):
            if not isinstance(row, dict) or not isinstance(row.get(name), str) or not row[name].strip():
                raise UserError(f'{file}, line {number}: a row needs a "{name}", a text')
        found.append((number, row["prompt"], row["response"]))
    if not found:
        raise UserError(f"{file} holds no rows")
    return found


def jsonl(file: str | Path, tokenizer: Any, recipe: Recipe, tell: Callable[[str], None] = lambda line: None) -> Source:
    """Rows {"prompt": ..., "response": ...}, in a new order each epoch; responses longer than L are told and left out."""
    rows, long = [], []
    for number, prompt, response in read(file):
        if len(tokenizer(response, add_special_tokens=False)["input_ids"]) > recipe.length:
            long.append(number)
        else:
            rows.append((prompt, response))
    if long:
        first = ", ".join(map(str, long[:10])) + (", ..." if len(long) > 10 else "")
        tell(
            f"{file}: {len(long)} of {len(long) + len(rows)} responses are longer than {recipe.length} tokens and left out (lines {first})"
        )
    if not rows:
        raise UserError(f"{file}: every response is longer than {recipe.length} tokens; give a greater --length")
    orders: dict[int, list[int]] = {}

    def source(step: int, done: float) -> tuple[Rows, int]:
        picked = []
        for place in range(step * recipe.batch, (step + 1) * recipe.batch):
            epoch, at = divmod(place, len(rows))
            if epoch not in orders:
                orders[epoch] = Random(f"{recipe.seed}/{epoch}").sample(range(len(rows)), len(rows))
                orders.pop(epoch - 2, None)
            picked.append(rows[orders[epoch][at]])
        return picked, recipe.length

    return source


def toys(worlds: list[str], recipe: Recipe) -> Source:
    """The built-in tasks."""
    from unmask.tasks import toy

    for world in worlds:
        if world not in toy.WORLDS:
            raise UserError(f"there is no built-in task {world!r}; there are {', '.join(toy.WORLDS)}")
    if recipe.length < toy.SHORTEST:
        raise UserError(
            f"the built-in tasks need --length {toy.SHORTEST} or more: their reasoning does not fit {recipe.length} tokens"
        )
    return lambda step, done: toy.examples(worlds, recipe.seed, step, done, recipe.batch, recipe.length)


def paddings(tokenizer: Any, kind: str) -> list[int]:
    """The end-of-text id, and for rainbow padding the cycle that follows it."""
    if kind == "eot":
        return [tokenizer.eos_token_id]
    known = tokenizer.get_vocab()
    cycle = [known[f"<|pad_{k}|>"] for k in range(7) if f"<|pad_{k}|>" in known]
    if len(cycle) < 7:
        raise UserError("rainbow padding needs the tokens <|pad_0|> .. <|pad_6|> in the tokenizer")
    return [tokenizer.eos_token_id, *cycle]


def save(state: dict[str, Any], file: Path) -> None:
    """All or nothing: written beside, then put in place."""
    beside = file.with_suffix(".tmp")
    try:
        torch.save(state, beside)
        os.replace(beside, file)
    except (OSError, RuntimeError) as error:  # torch says RuntimeError when the disk is full
        beside.unlink(missing_ok=True)
        raise UserError(
            f"{file} could not be written ({error}); the last saved state is untouched: make room and run again"
        ) from error


def train(
    module: Any, tokenizer: Any, source: Source, recipe: Recipe, out: Path, *,
    identity: str = "", probe: Callable[[Any], dict[str, Any]] | None = None, probe_every: int = 500,
    save_every: float = 60.0, report: Callable[[dict[str, Any]], None] = lambda record: None,
) -> list[dict[str, Any]]:  # fmt: skip
    """Train in place, resuming from out/training.pt where it belongs to the same run. Returns the log, a record a report."""
    out.mkdir(parents=True, exist_ok=True)
    file, made, log, begin = out / "training.pt", optimizers(module, recipe), [], 0
    run = hashlib.sha256(json.dumps([asdict(recipe), identity]).encode()).hexdigest()
    padding, trained = paddings(tokenizer, recipe.padding), [p for p in module.parameters() if p.requires_grad]
    if file.is_file():
        state = torch.load(file, weights_only=True)
        if state["run"] != run:
            raise UserError(
                f"{file} is of another run (other data, model or settings); give another --out or delete it"
            )
        for p, saved in zip(trained, state["weights"], strict=True):
            p.data.copy_(saved)
        for optimizer, saved in zip(made, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        log, begin = state["log"], state["step"]
    mask_id, pad_id, device = module.config.mask_token_id, tokenizer.pad_token_id, next(module.parameters()).device

    def keep(step: int) -> None:
        weights, states = [p.detach().clone() for p in trained], [o.state_dict() for o in made]
        save({"run": run, "step": step, "weights": weights, "optimizers": states, "log": log}, file)

    recent: list[float] = []
    saved_at, module = time.monotonic(), module.train()
    for step in range(begin, recipe.steps):
        rows, length = source(step, step / recipe.steps)
        prompts, responses = encode(tokenizer, rows, length, padding)
        generator = torch.Generator().manual_seed(recipe.seed * 1_000_003 + step)
        batch = masked_batch(prompts, responses, mask_id, pad_id, recipe.least, generator).to(device)
        loss = loss_of(module, batch)
        value = float(loss.detach())
        if not math.isfinite(value):
            raise UserError(
                f"the loss is {value} at step {step}; {file} keeps the last good state: try a lower --lr and --muon"
            )
        for optimizer in made:
            optimizer.zero_grad(set_to_none=True)
            for group in optimizer.param_groups:
                group["lr"] = (recipe.muon if isinstance(optimizer, Muon) else recipe.lr) * recipe.rate(step)
        loss.backward()
        for optimizer in made:
            optimizer.step()
        report({"step": step + 1, "loss": value, "done": step + 1})
        recent.append(value)
        if (step + 1) % probe_every == 0 or step + 1 == recipe.steps:
            record: dict[str, Any] = {"step": step + 1, "loss": sum(recent) / max(1, len(recent))}
            recent.clear()
            if probe:
                module.eval()
                record["probes"] = probe(module)
                module.train()
            log.append(record)
            report(record)
            keep(step + 1)
            saved_at = time.monotonic()
        elif time.monotonic() - saved_at > save_every:
            keep(step + 1)
            saved_at = time.monotonic()
    module.eval()
    return log


def fresh(config: str | Path, seed: int) -> tuple[Any, Any]:
    """A model with random weights and its tokenizer, from a directory (or the name of a bundled model) with both configs."""
    from unmask.models.loading import BUNDLED, architecture, tokenizer_of

    where = next((p for p in (BUNDLED / str(config), Path(config)) if (p / "config.json").is_file()), None)
    if where is None:
        raise UserError(
            f"there is no config.json in {config}: a model from nothing needs a directory with it and a tokenizer"
        )
    fields = json.loads((where / "config.json").read_text())
    cls, tokenizer = architecture(fields, config), tokenizer_of(where, fields)
    module = cls(cls.config_class(**{k: v for k, v in fields.items() if k != "rainbow_ids"}))
    initialise(module, seed)
    return module.float(), tokenizer


def adapt(module: Any, rank: int, seed: int) -> None:
    """LoRA on every linear layer of the blocks."""
    try:
        from peft import LoraConfig
    except ImportError as error:
        raise UserError('LoRA needs peft: pip install "unmask[lora]"') from error
    torch.manual_seed(seed)  # peft draws from the global generator
    linear = sorted(
        {
            name.split(".")[-1]
            for name, part in module.named_modules()
            if isinstance(part, torch.nn.Linear) and (".blocks." in name or ".layers." in name)
        }
    )
    module.add_adapter(
        LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=rf".*\.(?:blocks|layers)\.\d+\..*?({'|'.join(linear)})")
    )


def digest(module: Any) -> str:
    """Of the weights a run begins with."""
    found = hashlib.sha256()
    for name, value in module.state_dict().items():
        found.update(name.encode() + value.detach().cpu().contiguous().flatten()[:256].float().numpy().tobytes())
    return found.hexdigest()


def export(
    module: Any,
    tokenizer: Any,
    recipe: Recipe,
    out: Path,
    dtype: torch.dtype | None = None,
    texts: list[str] | None = None,
) -> None:
    """The published layout: config.json, model.safetensors (or an adapter), tokenizer, UNCODE's frequencies of `texts`."""
    from unmask.models.frequencies import count

    module.config.response_length = recipe.length
    if recipe.padding == "rainbow":
        module.config.rainbow_ids = paddings(tokenizer, "rainbow")[1:]
    weights = {name: value.to(dtype) for name, value in module.state_dict().items()} if dtype else None
    if dtype:
        module.config.dtype = dtype
    module.save_pretrained(out, **({"state_dict": weights} if weights else {}))
    tokenizer.save_pretrained(out)
    if texts:
        (out / "frequencies.json").write_text(
            json.dumps(count(texts, lambda text: tokenizer(text, add_special_tokens=False)["input_ids"])) + "\n"
        )


def curve(log: list[dict[str, Any]], out: Path) -> str:
    """The loss over the steps: loss.png where matplotlib is there, a line of text always."""
    losses = [record["loss"] for record in log]
    low, high = min(losses), max(losses)
    marks = "▁▂▃▄▅▆▇█"
    line = "".join(marks[round((x - low) / ((high - low) or 1) * 7)] for x in losses)
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        return f"loss {high:.3f} {line} {losses[-1]:.3f}"
    figure, axes = pyplot.subplots(figsize=(7, 4))
    axes.plot([record["step"] for record in log], losses)
    axes.set(xlabel="step", ylabel="loss", yscale="log")
    figure.savefig(out / "loss.png", dpi=120, bbox_inches="tight")
    pyplot.close(figure)
    return f"loss {high:.3f} {line} {losses[-1]:.3f}   {out / 'loss.png'}"


class Bar:
    """Reports to standard error: on a terminal a bar with the loss and the probes, elsewhere a line a probe."""

    def __init__(self, steps: int):
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        console = Console(stderr=True)
        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("loss {task.fields[loss]:.3f}"), TimeRemainingColumn())
        self.bar = Progress(*columns, console=console, disable=not console.is_terminal)
        self.steps = steps

    def __enter__(self) -> Bar:
        self.bar.start()
        self.task = self.bar.add_task("", total=self.steps, loss=math.nan)
        return self

    def __exit__(self, *_: Any) -> None:
        self.bar.stop()

    def __call__(self, record: dict[str, Any]) -> None:
        if "done" in record:
            self.bar.update(self.task, completed=record["done"], loss=record["loss"])
            return
        line = f"step {record['step']}  loss {record['loss']:.3f}"
        for world, shares in record.get("probes", {}).items():
            line += f"  {world}: " + " ".join(f"{kind} {100 * share:.0f}" for kind, share in shares.items())
        self.bar.console.print(line, highlight=False, soft_wrap=True)


def start(
    recipe: Recipe, out: Path, *, model: str | None = None, config: str | None = None, data: str | None = None,
    tasks: list[str] | None = None, lora: int = 0, device: str | None = None, half: bool = False, probe_every: int = 250,
    report: Callable[[dict[str, Any]], None] = lambda record: None, tell: Callable[[str], None] = lambda line: None,
) -> str:  # fmt: skip
    """What `unmask train` does: put the pieces together, train, export. Returns the loss curve as a line."""
    import unmask
    from unmask.paper.acceptance import probe

    if (model is None) == (config is None):
        raise UserError("give --model (weights to begin with) or --config (a model from nothing)")
    if (data is None) == (not tasks):
        raise UserError("give --data FILE.jsonl or --task NAMES")
    if config is not None:
        module, tokenizer = fresh(config, recipe.seed)
    else:
        loaded = unmask.load(str(model), device=device)
        module, tokenizer = loaded.module, loaded.tokenizer
    if device:
        module = module.to(device)
    if lora:
        adapt(module, lora, recipe.seed)
    else:
        module.requires_grad_(True)
    if data is not None:
        source, probes = jsonl(data, tokenizer, recipe, tell), None
        what = hashlib.sha256(Path(data).read_bytes()).hexdigest()
    else:
        source, what = toys(tasks or [], recipe), ",".join(tasks or [])
        probes = lambda m: probe(m, tokenizer, list(dict.fromkeys(tasks or [])), "validation", 100, recipe.length)  # noqa: E731
    log = train(
        module,
        tokenizer,
        source,
        recipe,
        out,
        identity=f"{what} {digest(module)}",
        probe=probes,
        probe_every=probe_every,
        report=report,
    )
    texts = [response for step in range(1, 201) for _, response in source(step, 1.0)[0]]
    export(module, tokenizer, recipe, out, torch.float16 if half else None, texts)
    (out / "training.json").write_text(
        json.dumps({"recipe": asdict(recipe), "data": data or tasks, "lora": lora, "log": log}, indent=1) + "\n"
    )
    return curve(log, out)
