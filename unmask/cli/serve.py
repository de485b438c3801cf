"""The command that serves a model: serve."""

from __future__ import annotations

import argparse
import os
from contextlib import ExitStack, closing

from unmask.cli.options import MODEL, SETTINGS, command, load, loading, methods_of, option, settings, tuned_for
from unmask.errors import UserError, finite, whole
from unmask.files import read_text

LOCAL = ("127.0.0.1", "localhost", "::1")


@command(
    "serve", "serve a model behind OpenAI's API: every step of every request in one forward",
    """
  unmask serve                                           the bundled model, on http://127.0.0.1:8000
  unmask serve --model GSAI-ML/LLaDA-8B-Instruct --method sacm --set kappa=12 --port 9000
  unmask serve --replicas 2                              two engines behind one address
  UNMASK_API_KEY=... unmask serve --host 0.0.0.0 --allow-host llm.example.org --cors https://app.example.org

  curl http://127.0.0.1:8000/v1/chat/completions -H 'content-type: application/json' \\
       -d '{"messages": [{"role": "user", "content": "..."}], "max_tokens": 64, "unmask": {"method": "top-probability"}}'

docs/serve.md lists every field""",
    option("--host", default="127.0.0.1", help="the address to listen on (default: 127.0.0.1, this machine alone)"),
    option("--port", type=int, default=8000, help="the port; 0 takes a free one (default: 8000)"),
    option("--method", default="sacm", metavar="NAME",
           help="the method of requests that name none: see `unmask methods`, or FILE.py:NAME (default: sacm)"),
    option("--methods", default="", metavar="A,B",
           help="methods of your own that requests may name: FILE.py:NAME, entry points"),
    SETTINGS,
    option("--replicas", type=int, default=1, metavar="N",
           help="run N replicas of the model on Ray, each with its own GPU or CPU thread (default: 1, in this process)"),
    option("--ray-address", metavar="HOST:PORT", help='where: a running Ray cluster, "auto" for the local one (default: start one)'),
    option("--batch", type=int, default=16, metavar="N", help="rows of a forward, for each replica (default: 16)"),
    option("--tokens", type=int, default=16_384, metavar="N", help="rows x widest row of a forward (default: 16384)"),
    option("--queue", type=int, default=64, metavar="N", help="requests that may wait; the next gets 429 (default: 64)"),
    option("--timeout", type=float, default=600, metavar="S", help="seconds a request may take, waiting included (default: 600)"),
    option("--drain", type=float, default=30, metavar="S", help="seconds that requests have to finish after SIGTERM (default: 30)"),
    option("--max-body", type=int, default=8 * 2**20, metavar="BYTES", help="size of a request (default: 8388608)"),
    option("--max-prompt", type=int, default=8192, metavar="N", help="tokens of a prompt (default: 8192)"),
    option("--max-length", type=int, default=4096, metavar="L", help="tokens of a response (default: 4096)"),
    option("--max-n", type=int, default=8, metavar="N", help="choices of a request (default: 8)"),
    option("--max-settings", type=int, default=32, metavar="N", help="settings of a request (default: 32)"),
    option("--max-streams", type=int, default=256, metavar="N", help="streams open at once (default: 256)"),
    option("--max-forwards", type=int, default=8192, metavar="N", help="forwards that a request could take (default: 8192)"),
    option("--api-key-file", metavar="FILE", help="a file with the key that clients send (default: $UNMASK_API_KEY)"),
    option("--no-auth", action="store_true", help="listen beyond this machine without a key"),
    option("--allow-host", action="append", default=[], metavar="NAME",
           help="a host name the server answers to (repeatable; default: local ones)"),
    option("--cors", action="append", default=[], metavar="ORIGIN", help="a web origin whose pages may ask (repeatable; default: none)"),
    option("--log-prompts", action="store_true", help="write prompts into the log; it holds none otherwise"),
    MODEL,
)  # fmt: skip
def serve(args: argparse.Namespace) -> None:
    for name in ("batch", "tokens", "max_body", "max_prompt", "max_length", "max_n", "max_streams", "max_forwards"):
        whole(f"--{name.replace('_', '-')}", getattr(args, name), 1)
    for name in ("queue", "max_settings", "port"):
        whole(f"--{name.replace('_', '-')}", getattr(args, name), 0)
    finite("--timeout", args.timeout), finite("--drain", args.drain), finite("--port", args.port, 0, 65535)
    if whole("--replicas", args.replicas, 1) == 1 and args.ray_address:
        raise UserError("--ray-address says where the replicas are; say how many with --replicas N, 2 or more")
    key = (read_text(args.api_key_file) if args.api_key_file else os.environ.get("UNMASK_API_KEY", "")).strip() or None
    if args.api_key_file and not key:
        raise UserError(f"{args.api_key_file} is empty: it should hold the API key")
    if args.host not in LOCAL and not key and not args.no_auth:
        raise UserError(f"whoever reaches {args.host} could use this server: set UNMASK_API_KEY, or say --no-auth")
    try:
        from unmask.serving import server
        from unmask.serving.api import Defaults
        from unmask.serving.engine import Engine, Limits
        from unmask.serving.guard import Access
        from unmask.serving.replicas import replicas
    except ImportError as error:
        raise UserError(f'serving needs {error.name}: pip install "unmask[serve]"') from None
    from unmask.decoding.methods import METHODS, strategies

    given = methods_of([args.method, *(name.strip() for name in args.methods.split(",") if name.strip())])
    name, own = next(iter(given)), {name: strategy for name, strategy in given.items() if name not in METHODS}
    wanted = settings(args)
    strategies({name: given[name]}, wanted)  # a setting that it does not have is refused here
    bound = server.listening(args.host, args.port)
    limits = Limits(
        args.batch, args.tokens, args.queue, args.timeout, args.max_prompt, args.max_length, args.max_forwards
    )
    with closing(bound), ExitStack() as stack:
        if args.replicas > 1:
            port = str(bound.getsockname()[1])
            engine: Engine = stack.enter_context(replicas(loading(args), args.replicas, args.ray_address, limits, port))
            tuned_for(engine.model, args)
        else:
            engine = Engine(load(args), limits)
        server.serve(
            engine, bound,
            defaults=Defaults(name, own, wanted, min(args.max_n, args.batch), args.max_streams, args.max_settings),
            access=Access(key, server.allowed(args.host, args.allow_host), tuple(args.cors), args.max_body, log_prompts=args.log_prompts),
            drain=args.drain, say=lambda line: print(line, flush=True),
        )  # fmt: skip
