"""A conversation in the terminal: typed into a pseudo-terminal, piped, and with a server."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from support.command import refused
from support.serving import post, served, until

import unmask
from unmask import cli

pyte = pytest.importorskip("pyte", reason="tests of the terminal need an emulator: pip install pyte")

DIAL = "The dial from 0 to 4 shows 3. First mirror. Second triple. What does it show?"
CUPS = "The cups are A B C D. The ball is under B. First reverse. Second left. Third pairs. Where is the ball?"
SHORT = ("--method", "top-probability", "--length", "16")
SLOW = (
    "--method",
    "semi-ar",
    "--length",
    "192",
    "--set",
    "pace=1",
)  # "The answer is" comes soon, the end 180 forwards later
KEY = "a key of the tests"


def command(*argv: str) -> list[str]:
    return [sys.executable, "-m", "unmask", "chat", *argv]


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "TERM": "xterm-256color", "OMP_NUM_THREADS": "1", **more}


# ---------------------------------------------------------------- piped, in process


@pytest.fixture(scope="module")
def model():
    return unmask.load("tiny")


@pytest.fixture
def talk(model, monkeypatch, capsys):
    """What is said to these lines: the answers, and what stands beside them."""
    monkeypatch.setattr("unmask.cli.options.load", lambda args: model)

    def talk(lines: list[str], *argv: str) -> tuple[list[str], list[str]]:
        monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(lines)))
        cli.main(["chat", *argv])
        said = capsys.readouterr()
        return said.out.splitlines(), said.err.splitlines()

    return talk


def conversation(model, questions: list[str], method: str, length: int, system: str = "") -> list[str]:
    """The answers that `generate` gives to the messages."""
    messages = [{"role": "system", "content": system}] if system else []
    answers = []
    for question in questions:
        messages.append({"role": "user", "content": question})
        answers.append(unmask.generate(model, messages, method, length=length).text)
        messages.append({"role": "assistant", "content": answers[-1]})
    return answers


def test_every_line_is_a_message_of_one_conversation(talk, model):
    for method, length in (("sacm", 32), ("remdm", 8)):
        out, err = talk([DIAL, "", "  ", CUPS], "--method", method, "--length", str(length), "--system", "Be short.")
        assert out == conversation(model, [DIAL, CUPS], method, length, "Be short.") and err == []


def test_clear_forgets_and_a_space_sends_a_slash(talk, model):
    out, err = talk([DIAL, "/clear", CUPS, " /clear", "/quit", DIAL], *SHORT)
    assert out == [
        *conversation(model, [DIAL], "top-probability", 16),
        *conversation(model, [CUPS, " /clear"], "top-probability", 16),
    ]
    assert err == ["(the conversation is forgotten)"]


def test_methods_and_settings(talk, model):
    out, err = talk(
        ["/method", "/set", "/set kappa=9 text='So it is'", "/set", "/method semi-ar", "/set block=8", CUPS],
        "--length",
        "48",
    )
    assert err == [
        "sacm",
        "kappa=14 beta=1.3 gamma=0.85 text='The answer is' at=-20 block=None pace=0.5",
        *["kappa=9 beta=1.3 gamma=0.85 text='So it is' at=-20 block=None pace=0.5"] * 2,
        "semi-ar",  # with its own settings
        "block=8 pace=0.5",
    ]
    assert out == [unmask.generate(model, CUPS, unmask.METHODS["semi-ar"].with_(block=8), length=48).text]


BAD = {
    "/method sacn": "there is no method 'sacn'; did you mean 'sacm'?",
    "/method mine.py:own": "mine.py cannot be read: No such file or directory",
    "/set kappa=3": "this method has no setting 'kappa'; it has block, pace",
    "/set pace=0.2 kappa=3": "this method has no setting 'kappa'; it has block, pace",  # and pace stays
    "/set pace": "a setting is NAME=VALUE, such as kappa=12; this is 'pace'",
    "/set pace=-1": "pace is a number from 0.001 to 1000, not -1",
    "/set pace='1": "a quotation mark is not closed",
    f"/set pace={'-' * 100_000}1": f"pace is a number, not '{'-' * 100_000}1'",
    "/set finish=2": "an answer is waited for behind an anchor, and there is none: use a method that has one, such as sacm",
    "/set\tkappa=3 ": "this method has no setting 'kappa'; it has block, pace",
    "/sets": "there is no /sets; there are /method, /set, /live, /clear, /help, /quit",
    "/": "there is no /; there are /method, /set, /live, /clear, /help, /quit",
    "/live on": "/live takes nothing more",
    "/clear all": "/clear takes nothing more",
    "caf\udce9": "the text holds half a character (a lone surrogate at position 3); it cannot be encoded",
    "<|mdm_mask|> " * 200: "the prompt takes",
}


def test_bad_lines_are_refused_in_one_line_and_change_nothing(talk, model):
    out, err = talk([DIAL, *BAD, "/method", "/set", CUPS], *SHORT)
    assert out == conversation(model, [DIAL, CUPS], "top-probability", 16)
    *refusals, method, settings = err
    assert (method, settings) == ("top-probability", "block=None pace=0.5")
    for line, says, said in zip(BAD, BAD.values(), refusals, strict=True):
        assert said.startswith(f"unmask: {says}"), line[:60]


def test_help_names_the_commands(talk):
    _, err = talk(["/help", "/live", "/live"], *SHORT)
    assert [line.split()[0] for line in err[:-2]] == ["/method", "/set", "/live", "/clear", "/help", "/quit"]
    assert err[-2:] == ["(answers are shown as they are filled in)", "(answers are not shown live any more)"]


def test_an_empty_answer_is_told(talk):
    said = talk([CUPS], "--method", "semi-ar", "--length", "256", "--set", "pace=0.05")
    assert said == ([""], ["(the answer is empty: `unmask doctor` says what to do)"])


def test_a_full_context_drops_the_oldest_turns(talk, model):
    """512 tokens hold two questions of 160 and their answers, one of 370 and a short one, and none of 530."""
    first, second, third, fourth = (" ".join([CUPS] * 6) + f" Try {word}." for word in ("A", "B", "C", "D"))
    long, longest = " ".join([CUPS] * 14), " ".join([CUPS] * 20)
    argv = ("--method", "top-probability", "--length", "32", "--system", "Be short.", "--set", "pace=0.2")
    out, err = talk([first, second, third, fourth, long, longest, DIAL], *argv)
    assert err[:2] == ["(the oldest turn was dropped: the context is full)"] * 2
    assert err[2] == "(the oldest 2 turns were dropped: the context is full)"
    assert re.fullmatch(r"unmask: the prompt takes \d+ tokens with its response; tiny was made for 512", err[3])
    said = dict(zip((first, second, third, fourth, long, DIAL), out, strict=True))
    assert len(err) == 4
    method = unmask.METHODS["top-probability"].with_(pace=0.2)
    for kept, question in ((first, second), (second, third), (third, fourth), (None, long), (long, DIAL)):
        messages = [{"role": "system", "content": "Be short."}]
        if kept:
            messages += [{"role": "user", "content": kept}, {"role": "assistant", "content": said[kept]}]
        messages.append({"role": "user", "content": question})
        assert said[question] == unmask.generate(model, messages, method, length=32).text


BAD_STARTS = {
    ("--method", "sacn"): "did you mean 'sacm'?",
    ("--set", "nope=1"): "this method has no setting 'nope'",
    ("--length", "0"): "length is a whole number, at least 1, not 0",
    ("--length", "600"): "tiny was made for 512",
    ("--length", "8"): "position -20 is outside a response of 8 tokens",  # the anchor's
    ("--url", ""): "--url is an address such as http://127.0.0.1:8000, not ''",
    ("--url", "127.0.0.1:8000"): "--url is an address such as http://127.0.0.1:8000, not '127.0.0.1:8000'",
    ("--url", "file:///etc/passwd"): "--url is an address",
    ("--url", "http://[::1"): "--url is an address",
    ("--url", "http://127.0.0.1:x"): "--url is an address",
    ("--url", "http://127.0.0.1:9"): "`unmask serve` does not answer at http://127.0.0.1:9 (Connection refused)",
    ("--url", "http://127.0.0.1:9", "--device", "cpu"): "the server at --url has its own model: leave out --device",
}


@pytest.mark.parametrize("argv", BAD_STARTS, ids=" ".join)
def test_a_bad_start_is_one_line(argv, talk, capsys):
    assert BAD_STARTS[argv] in refused(capsys, "chat", *argv)


def test_a_key_that_cannot_be_sent_and_a_model_that_cannot_chat(talk, capsys, monkeypatch, tmp_path):
    from support import checkpoints

    monkeypatch.setenv("UNMASK_API_KEY", "two\nlines")
    assert "UNMASK_API_KEY holds a character" in refused(capsys, "chat", "--url", "http://127.0.0.1:9")
    monkeypatch.undo()
    bare = checkpoints.llada(tmp_path / "bare", template=False)
    assert "bare has no chat template; `unmask generate --raw`" in refused(capsys, "chat", "--model", str(bare))


# ---------------------------------------------------------------- typed


class Terminal:
    """A conversation under a pseudo-terminal, whose keys do what they do in a real one."""

    def __init__(self, *argv: str, **more: str):
        self.master, slave = pty.openpty()
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
        self.screen = pyte.Screen(100, 40)
        self.stream, self.text, self.mark, self.seen = pyte.ByteStream(self.screen), "", 0, [""]
        self.process = subprocess.Popen(
            command(*argv), stdin=slave, stdout=slave, stderr=slave, env=environment(**more), start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(slave)

    def type(self, keys: str) -> None:
        self.mark = len(self.text)
        os.write(self.master, keys.encode())

    def until(self, pattern: str, seconds: float = 60) -> str:
        """What has been printed since the last keys, up to the pattern and a moment longer."""
        end = time.monotonic() + seconds
        while not re.search(pattern, self.text[self.mark :], re.S):
            assert time.monotonic() < end, f"no {pattern!r} in {self.text[self.mark :]!r}"
            self.read(0.2)
        return self.text[self.mark :]

    def read(self, seconds: float) -> None:
        if select.select([self.master], [], [], seconds)[0]:
            try:
                data = os.read(self.master, 65536)
            except OSError:  # the other side is closed
                return
            self.stream.feed(data)
            self.seen.append("\n".join(self.screen.display))
            self.text += re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", data.decode(errors="replace")).replace("\r", "")

    def end(self) -> int:
        end = time.monotonic() + 60
        while self.process.poll() is None and time.monotonic() < end:
            self.read(0.2)
        os.close(self.master)
        self.process.kill()
        return self.process.wait()


def test_typed_into_a_terminal(model):
    terminal = Terminal(*SLOW)
    terminal.until("/help lists the commands.*> $")

    terminal.type(f"{CUPS}\n")  # stopped in mid-answer: what was said stays on the screen, and the program goes on
    terminal.until(r"the ball\?\nThe answer")
    terminal.type("\x03")
    said = terminal.until(r"stopped: this turn is forgotten\)\n> $", 20)
    assert terminal.process.poll() is None and "The answer" not in said

    terminal.type("\x03")
    terminal.until(r"\(/quit or Ctrl-D ends the conversation\)\n> $")

    terminal.type("/set pace=0.25\n")
    terminal.until("pace=0.25\n> $")
    terminal.type("\x1b[A\x1b[A\n")  # the line before the last one, from the history
    said = terminal.until(r"the ball\?\n.*\n> $")
    fast = unmask.METHODS["semi-ar"].with_(pace=0.25)
    assert said.split("?\n", 1)[1].removesuffix("\n> ") == unmask.generate(model, CUPS, fast, length=192).text

    terminal.type("/clear\n/live\n")
    terminal.until(r"filled in\)\n> $")
    terminal.type("Hi\n")
    terminal.until("semi-ar  step .*\n> $")
    assert any(re.search(r"semi-ar +step \d+, .*····", screen, re.S) for screen in terminal.seen)
    terminal.type("/set pace=1\n")
    terminal.until("pace=1\n> $")
    terminal.type("Hi\n")
    terminal.until("step 9,")
    terminal.type("\x03")  # the picture stays as far as it got
    assert re.search(r"step \d+, .*····", terminal.until(r"forgotten\)\n> $", 20), re.S)

    terminal.type("\x04")
    assert terminal.end() == 0


# ---------------------------------------------------------------- with a server


@pytest.fixture(scope="module")
def server():
    pytest.importorskip("fastapi")
    with served("--method", "semi-ar", env={"UNMASK_API_KEY": KEY}) as found:
        yield found


def piped(url: str, lines: list[str], *argv: str, key: str = KEY) -> tuple[int, list[str], list[str]]:
    done = subprocess.run(
        command("--url", url, *argv), input="\n".join(lines), capture_output=True, text=True, timeout=60,
        env=environment(UNMASK_API_KEY=key),
    )  # fmt: skip
    return done.returncode, done.stdout.splitlines(), done.stderr.splitlines()


def test_a_server_answers_as_the_model_does(server, model):
    code, out, err = piped(f"{server[0]}/v1/", [DIAL, CUPS, "/clear", "/method sacm", CUPS], "--length", "40")
    assert code == 0 and err == ["(the conversation is forgotten)", "sacm"]
    assert out == [*conversation(model, [DIAL, CUPS], "semi-ar", 40), *conversation(model, [CUPS], "sacm", 40)]


def test_a_server_without_its_key(server):
    for key in ("", "another"):
        assert piped(server[0], [DIAL], key=key) == (
            2,
            [],
            ["unmask: the API key is missing or wrong; set UNMASK_API_KEY"],
        )


def test_a_server_refuses_in_one_line(server, model):
    lines = {
        "/method": "the server's own",
        "/set": "no settings of your own",
        "/set kappa=3": "unmask: this method has no setting 'kappa'; it has block, pace",
        "/set pace=1e999": "unmask: Infinity is no JSON number",
        "/set pace={(1,2)}": "unmask: pace is a number, not '{(1, 2)}'",
        "/method nope": "unmask: there is no method 'nope'; did you mean 'uncode'?",
        "/live": "unmask: answers are shown live by a model in this process: leave out --url",
        "/set pace=0.2": "pace=0.2",
    }
    code, out, err = piped(server[0], [DIAL, *lines, CUPS, " ".join([CUPS] * 30), "/set"], "--length", "48")
    *told, long, last = err
    assert code == 0 and len(out) == 2 and told == list(lines.values()) and last == "pace=0.2"
    assert re.fullmatch(r"unmask: the prompt takes \d+ tokens with its response; tiny was made for 512", long)
    assert piped(server[0], [], "--set", "kappa=3")[0] == 2


def test_a_server_s_full_context(server):
    body = {"messages": [{"role": "user", "content": " ".join([CUPS] * 30)}]}
    status, said, _ = post(f"{server[0]}/v1/chat/completions", body, {"authorization": f"Bearer {KEY}"})
    assert status == 400 and said["error"]["code"] == "context_length_exceeded"
    code, out, err = piped(server[0], [" ".join([CUPS] * 6)] * 3, "--length", "32", "--set", "pace=0.2")
    assert code == 0 and len(out) == 3 and err == ["(the oldest turn was dropped: the context is full)"]


def test_ctrl_c_and_a_server_that_dies(server):
    """Stopped in mid-answer, then killed in mid-answer, then gone: a line each, and the conversation goes on."""
    url, process = server
    chat = subprocess.Popen(
        command("--url", url, *SLOW), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=environment(UNMASK_API_KEY=KEY), bufsize=0,
    )  # fmt: skip

    def answering() -> None:
        chat.stdin.write(f"{CUPS}\n")
        assert os.read(chat.stdout.fileno(), 1)

    answering()
    chat.send_signal(signal.SIGINT)
    assert chat.stderr.readline() == "(stopped: this turn is forgotten)\n"
    until(lambda: any('"gone"' in line and '"prompt_tokens": 3' in line for line in process.log))
    answering()
    process.kill()
    assert re.fullmatch(rf"unmask: `unmask serve` does not answer at {url} \(.+\)\n", chat.stderr.readline())
    chat.stdin.write(f"{CUPS}\n/method\n")
    assert chat.stderr.readline() == f"unmask: `unmask serve` does not answer at {url} (Connection refused)\n"
    assert chat.stderr.readline() == "semi-ar\n"
    chat.stdin.close()
    assert chat.wait(20) == 0 and chat.stderr.read() == ""


class Other(BaseHTTPRequestHandler):
    """What may be at an address in place of our server."""

    keys: list[str | None] = []

    def do_POST(self):
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.keys.append(self.headers.get("authorization"))
        kind = self.path.split("/")[1]
        said = {
            "page": b"<html>\n</html>\n",
            "number": b"data: 5\n\n",
            "list": b'{"choices": 5}\n',
            "cut": b'data: {"choices": [{"delta": {"content": ""}}]}\n\n',
            "bad": json.dumps({"error": {"message": "two\nlines \x1b[31m"}}).encode(),
            "red": b'data: {"choices": [{"delta": {"content": "\\u001b[31mred\\r\\ttab"}}]}\n\ndata: [DONE]\n\n',
        }.get(kind, b"")
        self.send_response({"moved": 302, "bad": 500}.get(kind, 200))
        if kind == "moved":
            self.send_header("location", f"http://localhost:{self.server.server_port}/page")
        self.end_headers()
        self.wfile.write(said)

    do_GET = do_POST

    def log_message(self, *_):
        pass


@pytest.fixture
def other():
    with HTTPServer(("127.0.0.1", 0), Other) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_something_else_is_there(other, capsys, monkeypatch):
    monkeypatch.setenv("UNMASK_API_KEY", KEY)
    for kind, says in {
        "page": "(it hung up)", "number": "(it hung up)", "list": "what came is not its language",
        "bad": "two lines �[31m", "moved": "(",
    }.items():  # fmt: skip
        assert says in refused(capsys, "chat", "--url", f"{other}/{kind}")
    assert set(Other.keys) <= {f"Bearer {KEY}", None}
    monkeypatch.setattr("sys.stdin", io.StringIO("Hi\n/help\n"))
    cli.main(["chat", "--url", f"{other}/cut"])
    assert "/cut (it hung up)\n/method" in capsys.readouterr().err


def test_control_characters_do_not_reach_the_terminal(other):
    terminal = Terminal("--url", f"{other}/red")
    terminal.until("> $")
    terminal.type("Hi\n")
    assert "�[31mred�" in terminal.until("> $").removeprefix("Hi\n")
    terminal.type("/quit\n")
    assert terminal.end() == 0
