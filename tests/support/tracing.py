"""What the tests of traces, replays, figures and the live view share: a small model with a tokenizer, and a run.

The weights are random, so its text is nonsense; the loop, the shapes and the special tokens are real.
"""

from __future__ import annotations

import random
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from unmask.decoding.canvas import Vocab
from unmask.models.llada import LLaDAModelLM
from unmask.models.model import Model
from unmask.views.trace import Run

WORDS = ("The", "answer", "is", "so", "we", "add", "two", "four", "apples", "boxes", "each", ".", ",", "=", "+")
MASK, EOT = 500, 481
HOSTILE = (
    "</script><script>window.pwned=1</script>", "<img src=x onerror=window.pwned=1>", "a\u2028b", "&lt;b&gt;", "<!--",
    "\x1b[31mred", "'\"><b>",
)  # fmt: skip
SCRIPTS = {
    "1": "</script><script>window.pwned=1</script>", "2": "<img src=x onerror=window.pwned=1>", "3": "a\u2028b",
    "4": "&lt;b&gt;", "5": "<!--<script>", "6": "'\"><svg onload=window.pwned=1>", "7": "${window.pwned=1}",
}  # fmt: skip


def tokenizer(extra: tuple[str, ...] = ()) -> PreTrainedTokenizerFast:
    vocab = {f"w{i}": i for i in range(512)}
    for i, word in enumerate((*WORDS, *extra)):
        del vocab[f"w{i}"]
        vocab[word] = i
    for word, i in (("<|mask|>", MASK), ("<|endoftext|>", EOT)):
        del vocab[f"w{i}"]
        vocab[word] = i
    fast = Tokenizer(models.WordLevel(vocab, unk_token="w511"))
    fast.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=fast, eos_token="<|endoftext|>", mask_token="<|mask|>")


def small_model(extra: tuple[str, ...] = ()) -> Model:
    module = LLaDAModelLM.from_pretrained(
        Path(__file__).parent.parent / "golden" / "llada_tiny", dtype=torch.float32
    ).eval()
    return Model("small", module, tokenizer(extra), Vocab(MASK, (EOT,)))


def made(method: str = "sacm", length: int = 64, steps: int = 32, words: dict[str, str] | None = None, **about) -> Run:
    """A run as a decode leaves it: an anchor 8 before the end, modulated scores, tokens in a random order, some ∅."""
    draw = random.Random(f"{method}{length}")
    words = words or {"1": "First", "2": " we", "3": " add", "4": " 4", "5": " and", "6": "\n", "7": " 12", "8": "."}
    anchors = [length - 8, length - 7]
    open_ = [i for i in range(length) if i not in anchors]
    order = draw.sample(open_, len(open_))
    token = {i: EOT if i > length - 5 else int(draw.choice(list(words))) for i in open_}
    rows, each = [], -(-len(order) // steps)
    for t in range(0, len(order), each):
        slots = sorted(order[t:])
        base = [draw.randint(0, 10_000) for _ in slots]
        rows.append({
            "forward": t // each, "ms": 2.5, "chosen": order[t : t + each], "base": base,
            "score": [c * (length - i) // length for c, i in zip(base, slots, strict=True)],
            "guess": [n for i in slots for n in (i, token[i])] if not t else [],
        })  # fmt: skip
    return Run(
        length=length, mask_id=MASK, eot_ids=[EOT], steps=rows, method=method, text="".join(words.values()),
        tokens={**words, str(EOT): "<|endoftext|>", "90": "The answer", "91": " is"},
        given=[[anchors[0], 90], [anchors[1], 91]], anchors=anchors, weight=[i / length for i in range(length)],
        candidates={str(i): [[token[i], 0.7], [8, 0.2], [7, 0.1]] for i in open_}, **about,
    )  # fmt: skip
