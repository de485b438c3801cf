"""Commands that check the package itself and the checkpoints: verify, bench."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from unmask.cli.options import command, option
from unmask.errors import UserError, whole
from unmask.files import write_whole
from unmask.progress import track


@command(
    "verify", "check a checkpoint you have against its published code, and write the figures down",
    """
  unmask verify GSAI-ML/LLaDA-8B-Instruct
  unmask verify ./LLaDA-8B-Instruct --remote-code ./LLaDA-8B-Instruct --remote-python ~/venvs/tf-4.49/bin/python""",
    option("checkpoint", metavar="MODEL", help="checkpoint folder or Hub id"),
    option("--remote-code", metavar="DIR", help="the model's published modeling_*.py, to compare logits with"),
    option("--remote-python", metavar="PY", default=sys.executable, help="the interpreter that runs that code (default: this one)"),
    option("--length", type=int, default=64, metavar="L", help="response length of the question that is decoded (default: 64)"),
    option("--device", help="cpu, cuda, cuda:1 or mps (default: a GPU if there is one)"),
    option("--dtype", help="float32, bfloat16 or float16 (default: the checkpoint's own; float32 on a CPU)"),
    option("-o", "--out", metavar="FILE", default="verify.json", help="where the record goes (default: verify.json)"),
)  # fmt: skip
def verify(args: argparse.Namespace) -> None:
    from unmask.models.loading import load
    from unmask.tools.verify import summary
    from unmask.tools.verify import verify as check

    model = load(args.checkpoint, device=args.device, dtype=args.dtype)
    record = check(model, Path(args.remote_code) if args.remote_code else None, args.remote_python, args.length)
    write_whole(args.out, record)
    print(summary(record))
    print(f"written to {args.out}")
    if not record["ok"]:
        sys.exit(1)


@command(
    "bench", "speed and memory of decoding, as ratios within one run",
    """
  unmask bench
  unmask bench --json --seconds 60                      on a noisy machine, more rounds
  unmask bench cache                                    what the near cache saves, on the bundled model
  unmask bench serve                                    the server: throughput, waiting, memory""",
    option("what", nargs="?", choices=["decoding", "cache", "serve"], default="decoding", help="what is measured (default: decoding)"),
    option("--seconds", type=float, metavar="S", help="how long each of the two shapes is timed (default: 12), or the caches (60)"),
    option("--rows", type=int, default=50, metavar="N", help="cache: questions decoded together (default: 50)"),
    option("--rounds", type=int, default=3, metavar="N", help="serve: each figure is the median of so many (default: 3)"),
    option("--model", default="tiny", metavar="DIR_OR_ID", help='cache: the model (default: the bundled "tiny")'),
    option("--device", default="cpu", help="where to run it (default: cpu)"),
    option("--json", action="store_true", help="print the whole record as JSON"),
)  # fmt: skip
def bench(args: argparse.Namespace) -> None:
    if args.what == "serve":
        from unmask.tools import bench_serve

        record = bench_serve.bench(whole("--rounds", args.rounds, 1))
        print(json.dumps(record, indent=1) if args.json else bench_serve.table(record))
        return
    from unmask.evaluation.recipe import machine
    from unmask.evaluation.workers import speedup
    from unmask.tools.bench import SHAPES, table
    from unmask.tools.bench import bench as measured

    if args.what == "cache":
        from unmask.models.loading import load
        from unmask.tools import bench_cache

        if args.rows < 1:
            raise UserError(f"--rows is at least 1, not {args.rows}")
        found = bench_cache.measure(load(args.model, device=args.device), args.seconds or 60, args.rows)
        print(json.dumps({"machine": machine(), **found}, indent=1) if args.json else bench_cache.table(found))
        return
    records = list(track(measured(args.seconds or 12, args.device), len(SHAPES), "timing"))
    times = speedup()
    if args.json:
        print(json.dumps({"machine": machine(), "workers_speedup": times, "shapes": records}, indent=1))
        return
    print(table(records))
    print(f"\n2 workers are {times:.2f} times as quick as 1, each with 1 thread (aim >= 1.8)" if times else
          "\nthe speed-up of 2 workers is not measured here: it takes Ray and 2 cores")  # fmt: skip
