"""Does a real checkpoint behave here as it does in its published code? Figures to attach to a report.

For someone who has the weights: every tensor, the tokenizer, logits against the published remote code (run in a process
of its own, on the interpreter and the transformers that code needs), and one question decoded by four methods.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import safe_open

from unmask import __version__
from unmask.decoding.methods import METHODS
from unmask.errors import UserError
from unmask.generation import generate
from unmask.models.loading import Ours
from unmask.models.model import Model

QUESTION = "A baker makes 12 rolls an hour and works for 7 hours. He sells all but 9. How many rolls does he sell?"
TEXTS = (QUESTION, "What is the capital of France?", "Write a function that adds two numbers.")
MASKS = 16  # masks after each text
METHODS_TRIED = ("top-probability", "semi-ar", "suffix-anchor", "sacm")

# What the other process runs: none of our code, so that any interpreter with torch and transformers can run it.
REMOTE = f"""
import json, sys, torch
from transformers import AutoModel
where, ids, out, dtype, device = sys.argv[1:]
model = AutoModel.from_pretrained(where, trust_remote_code=True, torch_dtype=getattr(torch, dtype)).to(device).eval()
with torch.no_grad():
    logits = [model(torch.tensor([row], device=device)).logits[0, -{MASKS}:].float().cpu() for row in json.load(open(ids))]
torch.save(logits, out)
import transformers
print(transformers.__version__)
"""


def verify(
    model: Model, remote_code: Path | None = None, python: str = sys.executable, length: int = 64
) -> dict[str, Any]:
    """A record of checks; `ok` says whether all of them held."""
    record: dict[str, Any] = {
        "unmask": __version__, "model": model.name, "weights": model.weights_hash, "torch": torch.__version__,
        "device": str(model.device), "dtype": str(next(model.module.parameters()).dtype),
        "tensors": tensors(model), "tokenizer": tokenizer(model),
    }  # fmt: skip
    if remote_code is not None:
        record["remote"] = compared(model, remote_code, python)
    record["answers"] = answers(model, length)
    record["ok"] = all(part.get("ok", True) for part in record.values() if isinstance(part, dict))
    return record


def tensors(model: Model) -> dict[str, Any]:
    """`load` has matched names and shapes against config.json; here no tensor may be left over, and all must be finite."""
    state = model.module.state_dict()
    files = sorted(model.path.glob("*.safetensors")) if model.path else []
    stored = {name for file in files for name in safe_open(file, "pt").keys()}  # noqa: SIM118
    unused = sorted(stored - set(state))
    broken = [
        name for name, value in state.items() if value.is_floating_point() and not bool(torch.isfinite(value).all())
    ]
    count = sum(value.numel() for value in model.module.parameters())
    ok = not broken and not unused
    return {"tensors": len(state), "parameters": count, "not_finite": broken, "unused": unused, "ok": ok}


def tokenizer(model: Model) -> dict[str, Any]:
    """The special ids are the tokenizer's own, text comes back as it went in, and bos appears once."""
    ids = model.encode(QUESTION)
    bos = model.tokenizer.bos_token_id
    special = [model.vocab.mask_id, *model.vocab.eot_ids]
    rows = cast("Ours", model.module).get_input_embeddings().num_embeddings
    checks = {
        "round_trip": model.text(model.tokens(QUESTION)).strip() == QUESTION,
        "ids_in_range": max([*ids, *special]) < rows,
        "mask_unused_in_text": model.vocab.mask_id not in ids,
        "bos_at_most_once": bos is None or ids.count(bos) <= 1,
    }
    return {
        "size": len(model.tokenizer), "embedding_rows": rows, "mask": model.tokenizer.convert_ids_to_tokens(model.vocab.mask_id),
        "ends": model.tokenizer.convert_ids_to_tokens(list(model.vocab.eot_ids)), "prompt_ids": ids, **checks,
        "ok": all(checks.values()),
    }  # fmt: skip


@torch.inference_mode()
def compared(model: Model, remote_code: Path, python: str) -> dict[str, Any]:
    """Logits after three prompts against the published code's: the largest difference, and how often the argmax agrees."""
    if not list(remote_code.glob("modeling_*.py")):
        raise UserError(f"{remote_code} has no modeling_*.py: pass the directory of the model's published code")
    rows = [model.tokens(text) + [model.vocab.mask_id] * MASKS for text in TEXTS]
    dtype = str(next(model.module.parameters()).dtype).removeprefix("torch.")
    device = model.device
    ours = [model.module(torch.tensor([row], device=device)).logits[0, -MASKS:].float().cpu() for row in rows]
    if device.type == "cuda":  # the other process needs the room
        model.module.to("cpu")
        torch.cuda.empty_cache()
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder) / "model"
        where.mkdir()
        for source in (
            model.path,
            remote_code,
        ):  # the published code beside the weights, where transformers looks for it
            for file in Path(str(source)).iterdir():
                link = where / file.name
                if file.is_file() and (source == model.path or file.suffix == ".py"):
                    link.unlink(missing_ok=True)
                    link.symlink_to(file.resolve())
        (Path(folder) / "ids.json").write_text(json.dumps(rows))
        command = [python, "-c", REMOTE, str(where), f"{folder}/ids.json", f"{folder}/out.pt", dtype, str(device)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            why = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise UserError(
                f"the published code did not run under {python}: {why}; give --remote-python one with its transformers"
            )
        theirs = torch.load(f"{folder}/out.pt", weights_only=True)
    model.module.to(device)
    gap = max(float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True))
    agree = sum(int((a.argmax(-1) == b.argmax(-1)).sum()) for a, b in zip(ours, theirs, strict=True)) / (
        len(rows) * MASKS
    )
    largest = max(float(b.abs().max()) for b in theirs)
    close = gap <= (1e-3 if dtype == "float32" else 0.02 * largest)
    return {
        "transformers": done.stdout.strip().splitlines()[-1], "largest_difference": gap, "largest_logit": largest,
        "argmax_agreement": agree, "ok": close,
    }  # fmt: skip


def answers(model: Model, length: int) -> dict[str, Any]:
    """One question, four methods."""
    out = {}
    for name in METHODS_TRIED:
        strategy = METHODS[name].with_(at=-min(20, length // 2)) if METHODS[name].anchors else METHODS[name]
        done = generate(model, QUESTION, strategy, length=length)
        kept = ("text", "forwards", "eot_ratio", "tie_rate", "seconds")
        out[name] = {field: getattr(done, field) for field in kept}
    return out


def summary(record: dict[str, Any]) -> str:
    """A few lines for a terminal."""

    def mark(part: dict[str, Any]) -> str:
        return "ok " if part["ok"] else "BAD"

    weights, words = record["tensors"], record["tokenizer"]
    lines = [
        f"{mark(weights)} {weights['tensors']} tensors, {weights['parameters']:,} parameters",
        f"{mark(words)} tokenizer of {words['size']}, mask {words['mask']}, ends {' '.join(words['ends'])}",
    ]
    if remote := record.get("remote"):
        lines.append(
            f"{mark(remote)} logits within {remote['largest_difference']:.2g} of the published code "
            f"(transformers {remote['transformers']}), argmax equal at {remote['argmax_agreement']:.1%}"
        )
    for name, a in record["answers"].items():
        lines.append(f"    {name}: EOT {a['eot_ratio']:.2f}, {a['forwards']} forwards: {a['text'].strip()[:60]!r}")
    return "\n".join(lines)
