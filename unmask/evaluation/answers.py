"""Answers to a file of prompts, kept as they come: `unmask generate --prompts FILE --out FILE`, which the same command resumes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from unmask.decoding.algorithm import Strategy
from unmask.errors import UserError
from unmask.evaluation.recipe import digest, frequency_hash
from unmask.evaluation.store import append
from unmask.files import write_bytes
from unmask.generation import Decoding, encode_prompts, generations
from unmask.models.images import Picture
from unmask.models.model import Model
from unmask.plugins import code_hash


def write_answers(
    model: Model,
    rows: Sequence[Mapping[str, Any]],
    images: Sequence[Sequence[Picture]],
    strategy: Strategy,
    decoding: Decoding,
    out: Path,
    report: Callable[[int], None] = lambda done: None,
) -> None:
    """A JSON line for every row and sample, written a batch at a time: a crash costs the batch that was being decoded. The lines
    the file holds already are kept, if their keys say that they answer these prompts with these settings."""
    asked = [(row, some) for row, some in zip(rows, images, strict=True) for _ in range(decoding.samples)]
    seeds = [decoding.seed + i for i in range(len(asked))] if isinstance(decoding.seed, int) else list(decoding.seed)
    questions = [row.get("messages") or row["prompt"] for row in rows]
    encode_prompts(
        model, questions, replace(decoding, samples=1), images
    )  # what does not fit is said now, not hours later
    named = keys(model, asked, strategy, decoding, seeds)
    done = kept(out, named, decoding.batch)
    report(done)
    for first in range(done, len(asked), decoding.batch):
        some = slice(first, first + decoding.batch)
        prompts = [row.get("messages") or row["prompt"] for row, _ in asked[some]]
        how = replace(decoding, samples=1, seed=seeds[some])
        made = generations(model, prompts, strategy, how, images=[pictures for _, pictures in asked[some]])
        about = {"model": model.name, "method": repr(strategy)}
        append(out, [
            {"key": key, "prompt": prompt, **about, **asdict(generation), "input": row}
            for key, prompt, generation, (row, _) in zip(named[some], prompts, made, asked[some], strict=True)
        ])  # fmt: skip
        report(min(len(asked), some.stop))


def keys(
    model: Model,
    asked: Sequence[tuple[Mapping[str, Any], Sequence[Picture]]],
    strategy: Strategy,
    decoding: Decoding,
    seeds: Sequence[int],
) -> list[str]:
    """What identifies each answer: all that decides which tokens come out."""
    settings = {
        **{k: v for k, v in asdict(decoding).items() if k not in ("seed", "samples", "batch")},
        "strategy": repr(strategy), "code": code_hash(strategy), "denoiser": repr(model.denoiser(decoding.cfg, decoding.cache)),
        "weights": model.weights_hash, "dtype": str(next(model.module.parameters()).dtype), "frequency": frequency_hash(model),
    }  # fmt: skip
    same = digest(settings)
    return [
        digest([same, row, [_seen(x) for x in some], seed])[:24] for (row, some), seed in zip(asked, seeds, strict=True)
    ]


def _seen(image: Picture) -> str:
    """A picture by its contents, wherever it lies."""
    return (
        sha256(Path(image).read_bytes()).hexdigest() if isinstance(image, str) and Path(image).is_file() else str(image)
    )


def kept(out: Path, named: Sequence[str], batch: int) -> int:
    """How many answers the file holds, in whole batches; a line that a crash has torn, and its batch, are cut off."""
    try:
        content = out.read_bytes() if out.exists() else b""
    except OSError as error:
        raise UserError(f"{out} cannot be read: {error.strerror}") from None
    lines = content.splitlines(keepends=True)  # bytes: at \n and \r alone, which JSON escapes
    whole = [line for line in lines if line.endswith(b"\n")]
    if [_key(line) for line in whole] != list(named[: len(whole)]):
        raise UserError(
            f"{out} holds other prompts' answers, or was made with other settings; pass another --out, or remove it"
        )
    done = len(whole) if len(whole) == len(named) else len(whole) // batch * batch
    if (left := b"".join(whole[:done])) != content:
        write_bytes(out, left)
    return done


def _key(line: bytes) -> str | None:
    try:
        return json.loads(line).get("key")
    except (ValueError, AttributeError, RecursionError):
        return None
