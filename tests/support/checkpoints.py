"""Small checkpoints written in the published layout: real tokenizers, real safetensors shards."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
from transformers.utils import logging

from unmask.models.dream import DreamConfig, DreamModel
from unmask.models.llada import LLaDAConfig, LLaDAModelLM

logging.disable_progress_bar()  # what a command says on standard error is the tests' business
TEXT = [
    "What is 12 * 7? Tom has 3 apples and buys 4 more. How many apples does he have?",
    "The answer is 84. Therefore, the answer is 7. Answer: Step 1: Step 2: Step 3: is, . return x + 1",
    "You are a helpful assistant. Dear Ada, thank you for the letter.\n\nYours, Tom",
]
LLADA_TEMPLATE = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + "
    "message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}"
    "{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
)
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def bpe(special: list[str]) -> Tokenizer:
    """A byte-level BPE trained on a few sentences."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    return tokenizer


def llada(where: Path, *, shard: str = "60KB", template: bool = True, seed: int = 0, **config) -> Path:
    """LLaDA's layout: config.json, sharded safetensors, tokenizer.json with the published chat template."""
    special = [
        "<|startoftext|>",
        "<|endoftext|>",
        "<|mdm_mask|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eot_id|>",
    ]
    fast = PreTrainedTokenizerFast(
        tokenizer_object=bpe(special), bos_token=special[0], eos_token=special[1], pad_token=special[1]
    )
    fast.chat_template = LLADA_TEMPLATE if template else None
    fast.save_pretrained(where)
    torch.manual_seed(seed)
    sizes = dict(
        d_model=32,
        n_heads=4,
        n_kv_heads=2,
        n_layers=2,
        mlp_hidden_size=64,
        vocab_size=len(fast),
        embedding_size=len(fast) + 9,
    )
    ids = dict(mask_token_id=2, eos_token_id=1, pad_token_id=1, max_sequence_length=512)
    model = LLaDAModelLM(LLaDAConfig(**{**sizes, **ids, **config}))
    for p in model.parameters():  # wide enough that tokens differ from slot to slot
        torch.nn.init.normal_(p, std=0.3) if p.dim() > 1 else None
    model.save_pretrained(where, max_shard_size=shard)
    return where


def dream(where: Path) -> Path:
    """Dream's layout: vocab.json + merges.txt under a tokenizer class that is remote code upstream."""
    special = ["<|endoftext|>", "<|mask|>", "<|im_start|>", "<|im_end|>", "<|beginoftext|>"]
    tokenizer = bpe([])
    where.mkdir(parents=True, exist_ok=True)
    tokenizer.model.save(str(where))
    first = tokenizer.get_vocab_size()
    added = {str(first + i): {"content": s, "special": True, "lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
             for i, s in enumerate(special)}  # fmt: skip
    settings = {
        "tokenizer_class": "DreamTokenizer", "auto_map": {"AutoTokenizer": ["tokenization_dream.DreamTokenizer", None]},
        "added_tokens_decoder": added, "eos_token": special[0], "pad_token": special[0], "mask_token": special[1],
        "bos_token": special[4], "chat_template": CHATML, "add_bos_token": False,
    }  # fmt: skip
    (where / "tokenizer_config.json").write_text(json.dumps(settings))
    torch.manual_seed(1)
    config = DreamConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=first + 16, mask_token_id=first + 1, eos_token_id=first, pad_token_id=first, bos_token_id=first,
    )  # fmt: skip
    model = DreamModel(config)
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.3) if p.dim() > 1 else None
    model.save_pretrained(where)
    return where
