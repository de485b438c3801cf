"""The command that talks: chat. A model in this process answers (Local), or a server (Remote).

Both have `begin`, which says what is wrong with a request, or gives a function that writes the answer and returns it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import replace
from http.client import HTTPException
from itertools import chain
from textwrap import indent
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from unmask.cli import options
from unmask.cli.options import ANSWER, LIVE, LOADING, MODEL, SETTINGS, command, option
from unmask.decoding.settings import check, offered, parse
from unmask.errors import TooLong, UserError

HELP = """\
/method NAME          answer with this method and its own settings; without NAME: say which it is
/set NAME=VALUE ...   change settings of the method; without any: say what they are
/live                 show answers as they are filled in, or stop that
/clear                forget the conversation
/help                 this list
/quit                 the end, like Ctrl-D"""
ENDS = "/quit or Ctrl-D ends the conversation"
COMMANDS = re.findall("^/[a-z]+", HELP, re.M)
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")  # all but tabs and line ends
PATIENCE = 60  # seconds without a sign of life from a server, which gives one every 15
Messages = list[dict[str, str]]
Settings = dict[str, Any]
Answer = Callable[[bool], str]  # is it to be shown live?


class Local:
    """A model in this process."""

    def __init__(self, args: argparse.Namespace, method: Any, wanted: Settings):
        self.how, self.seeds = replace(options.decoding(args), system=None), [args.seed]  # a system prompt is a message
        self.strategy(method, wanted)  # refused before a model is loaded
        self.model = options.load(args)
        self.name = self.model.name
        if not self.model.chats:
            raise UserError(f"{self.name} has no chat template; `unmask generate --raw` gives it plain text")

    def strategy(self, method: Any, wanted: Settings) -> Any:
        from unmask.decoding.methods import strategies

        return next(iter(strategies(options.methods_of([method]), wanted).values()))

    def settings(self, method: Any, wanted: Settings) -> Settings:
        return {name: value for name, value, *_ in offered(self.strategy(method, wanted))}

    @contextmanager
    def begin(self, method: Any, wanted: Settings, messages: Messages) -> Iterator[Answer]:
        from unmask.generation import decode_canvas, encode_prompts, open_canvas, read_canvas, strategy_for
        from unmask.views.live import Screen
        from unmask.views.stream import Stream

        model, how = self.model, self.how
        strategy = strategy_for(model, self.strategy(method, wanted), how)
        canvas = open_canvas(model, encode_prompts(model, [messages], how, None, strategy), strategy, how)
        check(strategy, strategy.steps(canvas.length, how.steps), canvas)

        def answer(live: bool) -> str:
            stream, screen = Stream(model, Out(), how.stop), Screen([method], model) if live else None
            with screen or nullcontext():
                watch = screen.columns if screen else [stream]
                done = decode_canvas(model, canvas, strategy, how, self.seeds, watch=watch)
            (made,) = read_canvas(model, done, strategy, how, self.seeds, seconds=0)
            stream.end(made.text, "")
            return made.text

        yield answer


class Remote:
    """A server: `unmask serve`."""

    def __init__(self, args: argparse.Namespace):
        self.args, self.name = args, args.url.rstrip("/").removesuffix("/v1")
        self.key = os.environ.get("UNMASK_API_KEY", "").strip()
        if not re.fullmatch(r"https?://(\[[\da-fA-F:.]+\]|[^\s/:@\[\]]+)(:\d+)?(/\S*)?", self.name):
            raise UserError(f"--url is an address such as http://127.0.0.1:8000, not {args.url!r:.60}")
        if not (self.key.isascii() and self.key.isprintable()):
            raise UserError("UNMASK_API_KEY holds a character that cannot be sent")
        if given := [name for name in ("model", *LOADING) if getattr(args, name) not in (None, "tiny")]:
            raise UserError(f"the server at --url has its own model: leave out --{given[0].replace('_', '-')}")

    def settings(self, method: Any, wanted: Settings) -> Settings:
        return wanted

    @contextmanager
    def begin(self, method: Any, wanted: Settings, messages: Messages) -> Iterator[Answer]:
        args, out = self.args, Out()
        body = {
            "messages": messages, "stream": True, "seed": args.seed, "stop": args.stop, "max_tokens": args.length,
            "temperature": args.temperature,
            "unmask": {"method": method, "settings": wanted, "steps": args.steps, "cfg": args.cfg, "cache": args.cache},
        }  # fmt: skip
        data = json.dumps(body, default=str, skipkeys=True).encode()  # what is no JSON the server refuses

        def answer(live: bool) -> str:
            said = ""
            for piece in chain([first], pieces):
                said += piece
                out.write(piece)
                out.flush()
            return said

        with closing(self.pieces(data)) as pieces:
            first = next(pieces, "")  # or a refusal
            yield answer

    def pieces(self, data: bytes) -> Generator[str, None, None]:
        """The text of a streamed answer, bit by bit."""
        try:
            request = Request(f"{self.name}/v1/chat/completions", data, {"content-type": "application/json"})
            if self.key:
                request.add_unredirected_header("authorization", f"Bearer {self.key}")  # for this server only
            try:
                response = urlopen(request, timeout=PATIENCE)
            except HTTPError as error:
                response = error  # it is a response, too
            with response:
                for line in response:
                    if line.startswith(b"data: [DONE]"):
                        return
                    if line.startswith((b"data: {", b"{")):
                        chunk = json.loads(line.removeprefix(b"data: "))
                        if "error" in chunk:
                            raise refusal(response.status, **chunk["error"])
                        yield "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])
                raise ConnectionError("it hung up" if response.status == 200 else f"status {response.status}")
        except UserError:
            raise
        except (OSError, HTTPException) as error:
            cause = getattr(error, "reason", error)
            why = one_line(getattr(cause, "strerror", None) or cause)
            raise UserError(f"`unmask serve` does not answer at {self.name} ({why:.100})") from None
        except (ValueError, LookupError, TypeError, AttributeError):
            raise UserError(f"`unmask serve` does not answer at {self.name}: what came is not its language") from None


def refusal(status: int, message: str, code: str | None = None, **_: Any) -> UserError:
    kind = TooLong if code == TooLong.code else UserError
    return kind(one_line(message)[:400] + ("; set UNMASK_API_KEY" if status == 401 else ""))


class Out:
    """Standard output for what a model says: none of its control characters reach a terminal."""

    def write(self, text: str) -> object:
        return sys.stdout.write(CONTROL.sub("�", text) if sys.stdout.isatty() else text)

    def flush(self) -> None:
        sys.stdout.flush()


def one_line(text: object) -> str:
    return CONTROL.sub("�", " ".join(str(text).split()))


def note(line: str) -> None:
    """Beside the answers, which have standard output to themselves."""
    print(line, file=sys.stderr, flush=True)


class Chat:
    """A conversation, and how it is answered."""

    def __init__(self, mind: Local | Remote, system: str | None, method: str | None, wanted: Settings):
        self.mind, self.live, self.turns = mind, False, list[tuple[str, str]]()
        self.system: Messages = [{"role": "system", "content": system}] if system else []
        self.choose(method, wanted)

    def choose(self, method: str | None, wanted: Settings) -> None:
        """Another method or other settings, if a message could be answered with them."""
        with self.mind.begin(method, wanted, self.messages([], "Hello")):
            self.method, self.wanted = method, wanted

    def messages(self, turns: list[tuple[str, str]], question: str) -> Messages:
        said = [*(text for turn in turns for text in turn), question]
        return self.system + [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(said)]

    def hear(self, line: str) -> None:
        """What the user typed: a command or a message."""
        name, rest = [*line.split(maxsplit=1), "", ""][:2]
        if not line.startswith("/"):
            self.ask(line) if line.strip() else None
        elif name not in COMMANDS:
            raise UserError(f"there is no {name:.40}; there are {', '.join(COMMANDS)}")
        elif name == "/method":
            self.choose(rest, {}) if rest else None
            note(self.method or "the server's own")
        elif name == "/set":
            try:
                self.choose(self.method, {**self.wanted, **parse(shlex.split(rest))}) if rest else None
            except ValueError as error:
                raise error if isinstance(error, UserError) else UserError("a quotation mark is not closed") from None
            found = self.mind.settings(self.method, self.wanted)
            note(" ".join(f"{name}={value!r}" for name, value in found.items()) or "no settings of your own")
        elif rest:
            raise UserError(f"{name} takes nothing more")
        elif name == "/live":
            if isinstance(self.mind, Remote):
                raise UserError("answers are shown live by a model in this process: leave out --url")
            self.live = not self.live
            note("(answers are shown as they are filled in)" if self.live else "(answers are not shown live any more)")
        elif name == "/clear":
            self.turns = []
            note("(the conversation is forgotten)")
        elif name == "/help":
            note(HELP)
        else:
            raise EOFError

    def ask(self, question: str) -> None:
        """Answer with as many of the latest turns as fit the context. A turn is kept once its answer is complete."""
        for dropped in range(len(self.turns) + 1):
            kept = self.turns[dropped:]
            try:
                with self.mind.begin(self.method, self.wanted, self.messages(kept, question)) as answer:
                    if dropped:
                        which = f"{dropped} turns were" if dropped > 1 else "turn was"
                        note(f"(the oldest {which} dropped: the context is full)")
                    try:
                        said = answer(self.live)
                    finally:
                        print(flush=True)
                self.turns = [*kept, (question, said)]
                return None if said.strip() else note("(the answer is empty: `unmask doctor` says what to do)")
            except TooLong:
                if not kept:
                    raise


@command(
    "chat", "a conversation in the terminal, with a model in this process or with a server",
    f"""
  unmask chat                                            with the bundled model
  unmask chat --model GSAI-ML/LLaDA-8B-Instruct --method sacm --set kappa=12 --length 128
  unmask chat --url http://127.0.0.1:8000                with `unmask serve`; UNMASK_API_KEY is its key
  unmask chat < questions.txt > answers.txt              one message per line

{indent(HELP, "  ")}

Ctrl-C stops an answer; that turn is forgotten. When the context is full, the oldest turns are dropped, the system
prompt never. A message that begins with / needs a space before it""",
    option("--url", metavar="URL", help="the address of a running `unmask serve`, in place of a model in this process"),
    option("--method", metavar="NAME", help="see `unmask methods`, or FILE.py:NAME (default: sacm, or the server's own)"),
    SETTINGS,
    ANSWER,
    LIVE,
    MODEL,
)  # fmt: skip
def chat(args: argparse.Namespace) -> None:
    if not sys.stdin:
        raise UserError("standard input cannot be read: it is closed")
    method, wanted = args.method or ("sacm" if args.url is None else None), options.settings(args)
    talk = Chat(Local(args, method, wanted) if args.url is None else Remote(args), args.system, method, wanted)
    if args.live:
        talk.hear("/live")
    prompt = "> " if sys.stdin.isatty() and sys.stdout.isatty() else ""
    if prompt:
        with suppress(ImportError):
            import readline  # noqa: F401 (with it, input() edits lines and remembers them)
        note(f"{talk.mind.name}: /help lists the commands, {ENDS}")
    if hasattr(sys.stdin, "reconfigure"):  # a line that is not UTF-8 is refused, and the next one is read
        sys.stdin.reconfigure(errors="surrogateescape")
    line: str | None = ""
    while True:
        with suppress(KeyboardInterrupt):  # a second one, while the first is being dealt with
            try:
                line = None
                line = input(prompt)
                talk.hear(line)
            except EOFError:
                break
            except UserError as error:
                options.say(str(error))
            except KeyboardInterrupt:
                note(f"\n({ENDS})" if line is None else "(stopped: this turn is forgotten)")
    if prompt and line is None:
        print()
