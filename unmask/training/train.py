"""Masked-diffusion training as LLaDA does it: t ~ U(0, 1), each response token masked with probability t, cross-entropy / t.

Responses are padded with end-of-text to L, and the loss counts it. A step's data and masks depend only on the seed and
the step, so a resumed run equals an uninterrupted one, bit for bit.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.utils import logging

from unmask.errors import UserError, finite, whole
from unmask.files import make_folder, write_text, write_whole
from unmask.models.frequencies import count
from unmask.models.loading import BUNDLED, Ours, architecture, load, read_config, tokenizer_of
from unmask.progress import Bar
from unmask.tasks import toy
from unmask.training.data import Batch, Source, encode, jsonl, masked_batch, paddings, read, toys
from unmask.training.optim import Muon, optimizers
from unmask.training.probe import probe

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from unmask.models.layers import Backbone


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

    def __post_init__(self) -> None:
        for name, least in (("steps", 1), ("batch", 1), ("length", 1), ("warmup", 0), ("seed", -(2**63))):
            whole(name, getattr(self, name), least)
        for name, high in (("lr", math.inf), ("muon", math.inf), ("cooldown", 1.0), ("least", 1.0)):
            finite(name, getattr(self, name), 0.0, high)
        if self.padding not in ("eot", "rainbow"):
            raise UserError(f"padding is eot or rainbow, not {self.padding!r}")

    def rate(self, step: int) -> float:
        """What both learning rates are multiplied by."""
        rest = (self.steps - step) / max(1, self.cooldown * self.steps)
        return min(1.0, (step + 1) / max(1, self.warmup), rest)


def loss_of(module: Backbone, batch: Batch) -> Tensor:
    """The sum over masked slots of cross-entropy / t, divided by the number of response tokens."""
    hidden = module.hidden(batch.ids, batch.valid)
    rows, slots = batch.masked.nonzero(as_tuple=True)
    logits = module.head(hidden[rows, slots - int(module.shifted)])
    each = F.cross_entropy(logits.float(), batch.target[rows, slots], reduction="none")
    return (each * batch.weight[rows, 0]).sum() / (batch.length * len(batch.ids))


def initialise(module: nn.Module, seed: int) -> None:
    """Small embeddings, and zero output projections and head: the model begins as a uniform guess, every block as the identity."""
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


def save(state: dict[str, Any], file: Path) -> None:
    """All or nothing: written beside, then put in place."""
    beside = file.with_suffix(".tmp")
    try:
        torch.save(state, beside)
        os.replace(beside, file)
    except (OSError, RuntimeError) as error:  # torch says RuntimeError when the disk is full
        beside.unlink(missing_ok=True)
        why = getattr(error, "strerror", None) or "is the disk full?"
        raise UserError(
            f"cannot write {file} ({why}); the last saved state is untouched: make room and run the same command"
        ) from error


def train(
    module: Ours, tokenizer: PreTrainedTokenizerBase, source: Source, recipe: Recipe, out: Path, *,
    identity: str = "", probe: Callable[[Ours], dict[str, Any]] | None = None, probe_every: int = 500,
    save_every: float = 60.0, report: Callable[[dict[str, Any]], None] = lambda record: None,
) -> list[dict[str, Any]]:  # fmt: skip
    """Train in place, resuming from out/training.pt where it belongs to the same run. Returns the log, one record per report."""
    make_folder(out)
    file, made, log, begin = out / "training.pt", optimizers(module, recipe), [], 0
    run = hashlib.sha256(json.dumps([asdict(recipe), identity]).encode()).hexdigest()
    padding, trained = paddings(tokenizer, recipe.padding), [p for p in module.parameters() if p.requires_grad]
    if file.is_file():
        try:
            state = torch.load(file, weights_only=True)
            same = state["run"] == run
        except Exception as error:  # a damaged archive fails in many ways
            raise UserError(
                f"{file} is damaged ({type(error).__name__}); delete it to train from the beginning"
            ) from None
        if not same:
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


def fresh(config: str | Path, seed: int) -> tuple[Ours, PreTrainedTokenizerBase]:
    """A model with random weights and its tokenizer, from a directory (or the name of a bundled model) with both configs."""
    where = next((p for p in (BUNDLED / str(config), Path(config)) if (p / "config.json").is_file()), None)
    if where is None:
        raise UserError(
            f"there is no config.json in {config}: a model from nothing needs a directory with it and a tokenizer"
        )
    fields = read_config(where)
    cls: Any = architecture(fields, config)
    tokenizer = tokenizer_of(where, fields)
    module = cls(cls.config_class(**{k: v for k, v in fields.items() if k != "rainbow_ids"}))
    initialise(module, seed)
    return module.float(), tokenizer


def new(texts: list[str], vocab: int, recipe: Recipe) -> tuple[Ours, PreTrainedTokenizerBase]:
    """A model as small as the bundled one, with random weights, and a byte-level BPE tokenizer made from the texts."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    special = [*toy.SPECIAL[:-1], *toy.PADDING]  # a byte-level tokenizer needs no unknown token
    core = Tokenizer(models.BPE())
    core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    core.train_from_iterator(
        texts,
        trainers.BpeTrainer(vocab_size=vocab, special_tokens=special, initial_alphabet=alphabet, show_progress=False),
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token=special[0],
        eos_token=special[1],
        pad_token=special[1],
        additional_special_tokens=special[2:],
    )
    tokenizer.chat_template = toy.CHAT_TEMPLATE
    fields = read_config(BUNDLED / "tiny")
    ids = {"mask_token_id": special.index("<|mdm_mask|>"), "eos_token_id": 1, "pad_token_id": 1}
    cls: Any = architecture(fields, "new")
    module = cls(cls.config_class(**{**fields, **ids, "vocab_size": len(tokenizer), "embedding_size": len(tokenizer)}))
    initialise(module, recipe.seed)
    return module.float(), tokenizer


def adapt(module: Ours, rank: int, seed: int) -> None:
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


def digest(module: nn.Module) -> str:
    """A digest of the weights a run begins with."""
    found = hashlib.sha256()
    for name, value in module.state_dict().items():
        found.update(name.encode() + value.detach().cpu().contiguous().flatten()[:256].float().numpy().tobytes())
    return found.hexdigest()


def export(
    module: Ours,
    tokenizer: PreTrainedTokenizerBase,
    recipe: Recipe,
    out: Path,
    dtype: torch.dtype | None = None,
    texts: list[str] | None = None,
) -> None:
    """The published layout: config.json, model.safetensors (or an adapter), tokenizer, UNCODE's frequencies of `texts`."""
    module.config.response_length = recipe.length
    if recipe.padding == "rainbow":
        module.config.rainbow_ids = paddings(tokenizer, "rainbow")[1:]
    if not sys.stderr.isatty():
        logging.disable_progress_bar()
    weights = {name: value.to(dtype) for name, value in module.state_dict().items()} if dtype else None
    if dtype:
        module.config.dtype = dtype
    module.save_pretrained(out, state_dict=weights)
    tokenizer.save_pretrained(out)
    if texts:
        counted = count(texts, lambda text: tokenizer(text, add_special_tokens=False)["input_ids"])
        write_text(out / "frequencies.json", json.dumps(counted) + "\n")


def curve(log: list[dict[str, Any]], out: Path) -> str:
    """The loss over the steps: loss.png where matplotlib is installed, and always a line of text."""
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


def watched(bar: Bar, steps: int) -> Callable[[dict[str, Any]], None]:
    """What `train` reports, on a bar: the loss of every step, and one line for each probe."""

    def report(record: dict[str, Any]) -> None:
        if "done" in record:
            bar.show("training", record["done"], steps, f"loss {record['loss']:.3f}")
            return
        line = f"step {record['step']}  loss {record['loss']:.3f}"
        for world, shares in record.get("probes", {}).items():
            line += f"  {world}: " + " ".join(f"{kind} {100 * share:.0f}" for kind, share in shares.items())
        bar.tell(line)

    return report


def start(
    recipe: Recipe, out: Path, *, model: str | None = None, config: str | None = None, data: str | None = None,
    tasks: list[str] | None = None, vocab: int = 4000, lora: int = 0, device: str | None = None, half: bool = False, probe_every: int = 250,
    report: Callable[[dict[str, Any]], None] = lambda record: None, tell: Callable[[str], None] = lambda line: None,
) -> str:  # fmt: skip
    """What `unmask train` does: put the pieces together, train, export. Returns the loss curve as a line."""
    if (model is None) == (config is None):
        raise UserError("give --model (weights to begin with) or --config (a model from nothing)")
    if (data is None) == (not tasks):
        raise UserError("give --data FILE.jsonl or --task NAMES")
    whole("probe_every", probe_every, 1)
    if config == "new":
        if data is None:
            raise UserError("--config new makes a tokenizer from your rows: give --data FILE.jsonl")
        module, tokenizer = new([text for _, *pair in read(data) for text in pair], whole("vocab", vocab, 300), recipe)
    elif config is not None:
        module, tokenizer = fresh(config, recipe.seed)
    else:
        loaded = load(str(model), device=device)
        module, tokenizer = cast("Ours", loaded.module), loaded.tokenizer
    if device:
        cast(nn.Module, module).to(device)  # in place
    if lora:
        adapt(module, lora, recipe.seed)
    else:
        module.requires_grad_(True)
    if data is not None:
        context = getattr(module.config, "max_position_embeddings", None)
        source, probes = jsonl(data, tokenizer, recipe, module.config.mask_token_id, context, tell), None
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
    write_whole(out / "training.json", {"recipe": asdict(recipe), "data": data or tasks, "lora": lora, "log": log})
    return curve(log, out)
