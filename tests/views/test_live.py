"""The live view as a person sees it: `unmask` under a real pseudo-terminal, its output through a terminal emulator."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time

import pytest
from rich.console import Console
from support.tracing import HOSTILE, small_model

from unmask.generation import generate
from unmask.views.live import Column, Screen, View

pyte = pytest.importorskip("pyte", reason="tests of the live view need a terminal emulator: pip install pyte")


@pytest.fixture(scope="module")
def model():
    return small_model(HOSTILE)


class Terminal:
    """A command under a pseudo-terminal; `screens` are what stood on it at every pause."""

    def __init__(self, command: list[str], columns: int, lines: int, **environment: str):
        self.screen = pyte.Screen(columns, lines)
        self.stream, self.raw, self.seen = pyte.ByteStream(self.screen), b"", [""]
        self.master, slave = pty.openpty()
        self.resize(columns, lines)
        names = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "COLORTERM")
        clean = {name: value for name, value in os.environ.items() if name not in names}
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=subprocess.PIPE,
            env={**clean, "TERM": "xterm-256color", **environment},
        )  # fmt: skip
        os.close(slave)

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.screen.resize(lines, columns)

    def run(self, at_step: dict[int, tuple[int, int]] | None = None) -> str:
        """To the end; `at_step` resizes the terminal after so many screens. Returns the last screen."""
        sizes, end = dict(at_step or {}), time.monotonic() + 180
        while time.monotonic() < end:
            ready, _, _ = select.select([self.master], [], [], 0.2)
            if not ready and self.process.poll() is not None:
                break
            try:
                data = os.read(self.master, 65536) if ready else b""
            except OSError:  # the other side is closed
                break
            if data:
                self.raw += data
                self.stream.feed(data)
                self.seen.append("\n".join(self.screen.display))
                if (size := sizes.pop(len(self.seen), None)) is not None:
                    self.resize(*size)
        self.process.wait(60)
        return "\n".join(self.screen.display)


def flat(screen: str) -> str:
    """Its words in one line: a line may end within the anchor."""
    return " ".join(re.sub(r"\x1b\[[\d;]*m", "", screen).split())


def unmask(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "unmask", *arguments]


def test_compare_side_by_side_then_narrow(checkpoint):
    """120 columns: three methods beside each other; the window shrinks to 70: below each other, and nothing overlaps."""
    terminal = Terminal(
        unmask("compare", "so we add", "--live", "--raw", "--length", "40", "--steps", "20", "--model", str(checkpoint)),
        120, 30,
    )  # fmt: skip
    terminal.run(at_step={8: (70, 30)})
    assert terminal.process.returncode == 0, terminal.process.stderr.read()
    wide = [s for s in terminal.seen if re.search("top-probability .* suffix-anchor .* sacm ", s.split("\n")[0])]
    narrow = [s for s in terminal.seen if any(line.startswith("suffix-anchor") for line in s.split("\n"))]
    assert wide and narrow
    assert any("[The answer is]" in flat(s) and "····" in s for s in terminal.seen)  # the anchor, and masks around it
    assert b"\x1b[?1049h" in terminal.raw and b"\x1b[?1049l" in terminal.raw  # came and went by the alternate screen
    after = terminal.raw.split(b"\x1b[?1049l")[-1].decode()
    assert "20 forwards, EOT" in after and "[The answer is]" in flat(after)
    assert all(len(line) <= 70 for line in re.sub(r"\x1b\[[\d;?]*\w", "", after).split("\r\n")[:12])


def test_generate_at_80_columns_without_colour(checkpoint):
    terminal = Terminal(
        unmask("generate", "so we add", "--live", "--raw", "--length", "48", "--steps", "12", "--model", str(checkpoint)),
        80, 24, NO_COLOR="1",
    )  # fmt: skip
    terminal.run()
    assert terminal.process.returncode == 0, terminal.process.stderr.read()
    assert any("step 3, " in s for s in terminal.seen)
    assert not re.search(rb"\x1b\[[\d;]*(3[0-7]|4[0-7]|38|48)[;m]", terminal.raw)  # no colour
    assert b"\x1b[1;4m" in terminal.raw  # what is new is bold and underlined instead
    assert any("[The answer is]" in flat(s) for s in terminal.seen)


def test_not_a_terminal(checkpoint):
    """Into a pipe --live is the plain output, byte for byte."""
    command = unmask("generate", "so we add", "--raw", "--length", "24", "--steps", "4", "--model", str(checkpoint))
    plain, live = (subprocess.run([*command, *more], capture_output=True, text=True) for more in ([], ["--live"]))
    assert plain.stdout == live.stdout and plain.stdout.strip() and "\x1b" not in live.stdout
    assert live.returncode == 0


def test_live_of_many_is_refused(checkpoint):
    for more in (["--samples", "2"], ["--json"], ["--stream"]):
        done = subprocess.run(
            unmask("generate", "so we", "--live", *more, "--model", str(checkpoint)), capture_output=True, text=True
        )
        assert done.returncode == 2 and done.stderr.count("\n") == 1 and "--live shows one prompt" in done.stderr


def drawn(model, width: int, height: int = 24, whole: bool = False, **options) -> str:
    """A finished view as text with colour codes."""
    column = Column("sacm", model)
    generate(model, "so we add", "sacm", length=48, steps=12, raw=True, watch=[column])
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=width, height=height, color_system="truecolor", **options)
    console.print(View([column], whole))
    return out.getvalue()


def test_later_is_darker(model):
    """Boxes state both colours, so no theme of the terminal can hide them; a later step is a darker blue."""
    text = drawn(model, 80, whole=True)
    styles = set(re.findall(r"\x1b\[([\d;]+)m", text))
    backs = [s for s in styles if "48;2" in s]
    assert len({re.search(r"48;2;[\d;]+", s)[0] for s in backs}) >= 6 and all("38;2" in s for s in backs)


def test_hostile_tokens_send_nothing_to_the_terminal(model):
    column = Column("sacm", model)
    generate(model, "so we add", "sacm", length=48, steps=12, raw=True, watch=[column])
    column.ids = [model.tokenizer.convert_tokens_to_ids(text) for text in HOSTILE] * 6
    column.when, column.anchors, column.fixed = [0] * 42, [False] * 42, [False] * 42
    assert column.text().plain.count("�[31mred") == 6 and "\x1b" not in column.text().plain
    assert "\u2028" not in column.text().plain


def test_what_does_not_fit_is_counted(model):
    lines = re.sub(r"\x1b\[[\d;]*m", "", drawn(model, 40, height=5)).rstrip().split("\n")
    assert len(lines) <= 5 and re.match(r"… \d+ more lines", lines[-1])
    assert all(len(line) <= 40 for line in lines)


def test_an_error_leaves_the_terminal_as_it_was(model):
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=80, height=24)
    with pytest.raises(KeyboardInterrupt), Screen(["sacm"], model, console):
        raise KeyboardInterrupt
    assert out.getvalue().count("\x1b[?1049h") == out.getvalue().count("\x1b[?1049l") == 1
    assert "\x1b[?25h" in out.getvalue().split("\x1b[?1049h")[1]  # the cursor is back
