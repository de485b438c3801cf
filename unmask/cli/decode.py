"""Commands that decode prompts: demo, generate, compare, methods, frequencies."""

from __future__ import annotations

import argparse
import difflib
import json
import sys
from contextlib import nullcontext
from dataclasses import asdict, replace
from importlib.resources import files
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING

from unmask.cli.options import (
    DECODING,
    IMAGE,
    LIVE,
    METHODS,
    MODEL,
    PROMPTS,
    SETTINGS,
    asked,
    command,
    decoding,
    images,
    load,
    methods_of,
    names,
    option,
    prompts,
    settings,
    writable,
)  # fmt: skip
from unmask.errors import UserError
from unmask.files import write_text
from unmask.progress import Bar, track

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unmask.decoding.algorithm import Watch
    from unmask.generation import Generation

PROMPT = option("prompt", nargs="?", metavar="PROMPT", help='the prompt; "-" reads it from standard input')


@command(
    "demo", "one question by three methods and with its answer first, a table over a few dozen, and a replay",
    """
  unmask demo""",
    option("--questions", type=int, default=12, metavar="N", help="validation questions per task (default: 12)"),
    option("-o", "--out", default="replay.html", metavar="FILE", help="where the replay goes (default: replay.html)"),
    MODEL,
)  # fmt: skip
def demo(args: argparse.Namespace) -> None:
    from rich.console import Console

    from unmask.paper.demo import demo as show

    show(load(args), Console(), args.questions, Path(args.out))


@command(
    "generate", "decode prompts with one method",
    """
  unmask generate "Tom has 3 apples ..."
  unmask generate "What is 12 * 7?" --model GSAI-ML/LLaDA-8B-Instruct --method sacm --length 256 --steps 128
  unmask generate --prompts questions.jsonl --out answers.jsonl         rows: {"prompt": ...} or {"messages": [...]}
  unmask generate "What is the tallest bar?" --image chart.png --model jacklishufan/lavida-llada-v1.0-instruct
  unmask generate "Write a letter" --infill "Dear [MASK*4], [MASK*40] Yours, Ada" --method top-probability
  unmask generate "..." --method sacm --set kappa=12 --set text=Answer: --set at=-30""",
    PROMPT,
    PROMPTS,
    option("--method", default="sacm", metavar="NAME", help="see `unmask methods`, or FILE.py:NAME (default: sacm)"),
    SETTINGS,
    DECODING,
    option("--samples", type=int, default=1, metavar="N", help="samples per prompt, with seeds seed, seed + 1, ... (default: 1)"),
    option("--infill", metavar="TEXT", help="the response, with [MASK*n] where n tokens are to be filled in"),
    IMAGE,
    option("--stream", action="store_true", help="print the text as its beginning settles (one prompt)"),
    LIVE,
    option("--json", action="store_true", help="one JSON record per line: text, tokens, order, forwards, work, tie rate, EOT ratio"),
    option("-o", "--out", metavar="FILE", help="write those records to a file; the same command resumes after a crash"),
    MODEL,
)  # fmt: skip
def generate(args: argparse.Namespace) -> None:
    from unmask.decoding.methods import strategies
    from unmask.evaluation.answers import write_answers
    from unmask.generation import generations
    from unmask.views.live import Screen
    from unmask.views.stream import Stream

    rows = prompts(args.prompt, args.prompts)
    ((name, strategy),) = strategies(methods_of([args.method]), settings(args)).items()
    how, pictures = decoding(args), images(args, rows)
    total = len(rows) * how.samples
    live = watched(args, total)
    if args.out and (live or args.stream):
        raise UserError("--out writes records to a file: leave out --stream and --live")
    out = writable(args.out) if args.out else None
    model = load(args)
    if out:
        with Bar() as bar:
            write_answers(model, rows, pictures, strategy, how, out, lambda done: bar.show("decoding", done, total))
        print(out)
        return
    stream = Stream(model, sys.stdout, how.stop) if args.stream and total == 1 and not args.json else None
    screen = Screen([name], model) if live else None
    watch: Sequence[Watch] = [stream] if stream else screen.columns if screen else []
    made = generations(model, [asked(row) for row in rows], strategy, how, images=pictures, watch=watch)
    if screen:
        with screen:
            made = iter(list(made))
    for i, generation in enumerate(track(made, total, "decoding")):
        if args.json:
            row = rows[i // how.samples]
            about = {"prompt": asked(row), "model": args.model, "method": repr(strategy)}
            print(json.dumps({**about, **asdict(generation), "input": row}, ensure_ascii=False), flush=True)
        elif stream:
            stream.end(generation.text)
        else:
            print(generation.text, flush=True)


def watched(args: argparse.Namespace, total: int) -> bool:
    """Is the decode to be shown as it goes?"""
    if args.live and (total > 1 or args.json or getattr(args, "stream", False)):
        raise UserError("--live shows one prompt being decoded, without --json, --stream or --samples")
    return args.live


@command(
    "compare", "decode one prompt with several methods, one below the other",
    """
  unmask compare "Tom has 3 apples ..."
  unmask compare "..." --methods top-probability,suffix-anchor,sacm --model GSAI-ML/LLaDA-8B-Instruct""",
    PROMPT,
    PROMPTS,
    METHODS,
    SETTINGS,
    DECODING,
    IMAGE,
    LIVE,
    option("--json", action="store_true", help="one JSON record per method"),
    MODEL,
)  # fmt: skip
def compare(args: argparse.Namespace) -> None:
    from unmask.decoding.methods import strategies
    from unmask.generation import generations
    from unmask.views.live import Screen

    (row, *more) = prompts(args.prompt, args.prompts)
    if more:
        raise UserError("compare takes one prompt; `unmask generate --prompts` takes many")
    found, how, live = strategies(methods_of(names(args.methods)), settings(args)), decoding(args), watched(args, 1)
    pictures, model = images(args, [row]), load(args)
    made: dict[str, Generation] = {}
    with Screen(list(found), model) if live else nullcontext() as screen:
        for i, (name, strategy) in enumerate(found.items()):
            watch = [screen.columns[i]] if screen else []
            (made[name],) = generations(
                model, [asked(row)], strategy, replace(how, samples=1), images=pictures, watch=watch
            )
            if screen:
                screen.columns[i].finish(f"{made[name].forwards} forwards, EOT {made[name].eot_ratio:.2f}")
    for name, generation in made.items():
        if args.json:
            print(json.dumps({**row, "method": name, **asdict(generation)}, ensure_ascii=False), flush=True)
        else:
            figures = f"{generation.forwards} forwards, EOT {generation.eot_ratio:.2f}, ties {generation.tie_rate:.2f}"
            figures += "" if generation.work is None else f", work {generation.work:.2f}"
            print(f"{name}  ({figures})\n{indent(generation.text.strip() or '(empty)', '  ')}\n", flush=True)


@command(
    "methods", "the decoding methods: what each does, its settings, where it comes from",
    """
  unmask methods                       every method, by family, in plain words
  unmask methods sacm                  one: its recipe, its settings and their defaults, its source
  unmask methods --json""",
    option("name", nargs="?", metavar="NAME", help="a method, for all that is known of it"),
    option("--json", action="store_true", help="a JSON object: recipe, family, words, source, needs, recordings"),
)  # fmt: skip
def methods(args: argparse.Namespace) -> None:
    from unmask.decoding.about import FAMILIES

    known = json.loads(
        (files("unmask.cli") / "methods.json").read_text()
    )  # by scripts/methods.py: importing torch takes seconds
    if args.name and args.name not in known:
        near = difflib.get_close_matches(args.name, known, n=1)
        raise UserError(
            f"there is no method {args.name!r}; {f'did you mean {near[0]!r}?' if near else '`unmask methods` lists them'}"
        )
    if args.json:
        print(json.dumps({name: about for name, about in known.items() if args.name in (None, name)}, indent=1))
        return
    if args.name:
        about = known[args.name]
        print(f"{args.name}: {about['words']}\n\n  {about['short']}\n")
        for name, value, low, high in about["settings"]:
            print(f"  --set {name}={value!r}" + (f"  from {low:g} to {high:g}" if low is not None else ""))
        print(f"\nfamily:    {FAMILIES[about['family']]}\nneeds:     {', '.join(about['needs']) or 'nothing special'}")
        print(f"source:    {about['source'] or 'the rule as its paper states it'}")
        print(f"recording: {about['pinned'] or 'none; worked by hand in the tests'}")
        return
    width = max(map(len, known))
    for family, title in FAMILIES.items():
        print(f"{title}:")
        for name, about in known.items():
            if about["family"] == family:
                extra = f" (needs {', '.join(about['needs'])})" if about["needs"] else ""
                print(f"  {name:{width}}  {about['words']}{extra}")
        print()
    print("`unmask methods NAME` shows its recipe and settings.")


@command(
    "frequencies", "count the token frequencies of a corpus, for UNCODE",
    """
  unmask frequencies corpus.txt --model GSAI-ML/LLaDA-8B-Instruct -o llada.json
  unmask generate "..." --method uncode --frequencies llada.json""",
    option("corpus", nargs="+", metavar="CORPUS", help='text files, or JSONL files whose rows have a "text"'),
    option("-o", "--out", metavar="FILE", help="where to write the table (default: standard output)"),
    MODEL,
)  # fmt: skip
def frequencies(args: argparse.Namespace) -> None:
    from unmask.models.frequencies import count, lines

    table = json.dumps(count(lines(args.corpus), load(args).tokens))
    if args.out:
        write_text(args.out, table + "\n")
    else:
        print(table)
