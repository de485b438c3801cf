"""What the tests of traces, replays, figures and the live view share: a small model with a tokenizer.

The weights are random, so its text is nonsense; the loop, the shapes and the special tokens are real.
"""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from unmask.canvas import Vocab
from unmask.models import Model
from unmask.models.llada import LLaDAModelLM

WORDS = ("The", "answer", "is", "so", "we", "add", "two", "four", "apples", "boxes", "each", ".", ",", "=", "+")
MASK, EOT = 500, 481
HOSTILE = (
    "</script><script>window.pwned=1</script>", "<img src=x onerror=window.pwned=1>", "a\u2028b", "&lt;b&gt;", "<!--",
    "\x1b[31mred", "'\"><b>",
)  # fmt: skip


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
    module = LLaDAModelLM.from_pretrained(Path(__file__).parent / "golden" / "llada_tiny", dtype=torch.float32).eval()
    return Model("small", module, tokenizer(extra), Vocab(MASK, (EOT,)))
