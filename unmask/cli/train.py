"""The command that trains."""

from __future__ import annotations

import argparse
from pathlib import Path

from unmask.cli.options import command, names, option, say
from unmask.progress import Bar


@command(
    "train", "train a masked diffusion model as LLaDA is trained; run again to resume",
    """
  unmask train --config tiny --task stories,cups,compass --steps 6500 --out my-tiny
  unmask train --model tiny --data pairs.jsonl --steps 500 --out mine         rows: {"prompt": ..., "response": ...}
  unmask train --model GSAI-ML/LLaDA-8B-Instruct --lora 32 --lr 5e-5 --data pairs.jsonl --length 256 --out adapter
  unmask train --config new --vocab 2000 --data pairs.jsonl --out mine                  with a tokenizer made from your data
  unmask train --config tiny --task cups --padding rainbow --out rainbow""",
    option("--out", required=True, metavar="DIR", help="where the checkpoint goes; a run that was stopped resumes from here"),
    option("--model", metavar="DIR_OR_ID", help="start from these weights"),
    option("--config", metavar="DIR", help="start from random weights: a folder with config.json and a tokenizer; tiny; or new"),
    option("--vocab", type=int, default=4000, metavar="N", help="with --config new: tokens of the tokenizer (default: 4000)"),
    option("--data", metavar="FILE", help="JSONL of prompts and responses"),
    option("--task", metavar="NAMES", help="built-in tasks, comma-separated: stories, cups, compass"),
    option("--steps", type=int, default=1000, metavar="N", help="training steps (default: 1000)"),
    option("--batch", type=int, default=32, metavar="N", help="rows per step (default: 32)"),
    option("--length", type=int, default=96, metavar="L", help="response tokens, including end-of-text padding (default: 96)"),
    option("--lr", type=float, default=3e-3, help="AdamW learning rate (embeddings, head, norms, LoRA) (default: %(default)s)"),
    option("--muon", type=float, default=4e-3, help="Muon learning rate (hidden matrices) (default: %(default)s)"),
    option("--warmup", type=int, default=40, metavar="STEPS", help="steps over which the rates rise (default: 40)"),
    option("--cooldown", type=float, default=0.4, metavar="SHARE", help="final share of the steps, while they fall to 0 (default: 0.4)"),
    option("--padding", choices=["eot", "rainbow"], default="eot", help="rainbow: one end-of-text, then 7 padding tokens in turn"),
    option("--lora", type=int, default=0, metavar="RANK", help="train a LoRA adapter instead of the weights"),
    option("--half", action="store_true", help="save float16 weights"),
    option("--seed", type=int, default=0, help="seed of weights, data and masks (default: 0)"),
    option("--probe-every", type=int, default=250, metavar="STEPS", help="how often to report (default: 250)"),
    option("--device", help="cpu, cuda or mps"),
    option("--threads", type=int, metavar="N", help="CPU threads"),
)  # fmt: skip
def train(args: argparse.Namespace) -> None:
    import torch

    from unmask.training.train import Recipe, start, watched

    if args.threads:
        torch.set_num_threads(args.threads)
    fields = ("steps", "batch", "length", "lr", "muon", "warmup", "cooldown", "padding", "seed")
    recipe, out = Recipe(**{name: getattr(args, name) for name in fields}), Path(args.out)
    try:
        with Bar() as bar:
            line = start(
                recipe, out, model=args.model, config=args.config, data=args.data, tasks=names(args.task) if args.task else None,
                vocab=args.vocab, lora=args.lora, device=args.device, half=args.half, probe_every=args.probe_every,
                report=watched(bar, args.steps), tell=say,
            )  # fmt: skip
    except KeyboardInterrupt:
        kept = (out / "training.pt").exists()
        raise KeyboardInterrupt(
            f"stopped; {'the same command goes on from the last saved step' if kept else 'nothing was saved yet'}"
        ) from None
    print(line)
