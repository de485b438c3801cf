"""A vision-language model small enough for a test, in LaViDa's published layout: config.json, tensor names, tokenizer.

Its tokenizer spells bytes, but for its system prompt and the colours. `taught` teaches it in seconds to name the colour
of a picture, so tests see what it sees.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from unmask.decoding.canvas import Canvas, Vocab
from unmask.models.lavida import SYSTEM, LaViDaConfig, LlavaLladaForMaskedDiffusion, Seeing, VisionModel

SPECIAL = ["<|startoftext|>", "<|endoftext|>", "<|mdm_mask|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
TEMPLATE = (  # LLaDA's
    "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + "
    "message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}"
    "{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
)
COLOURS = {"red": (220, 30, 30), "green": (20, 200, 40), "blue": (30, 30, 220)}
SPARE = 5  # embedding rows behind the tokenizer's last id
VISION = {
    "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "image_size": 8,
    "patch_size": 2, "model_type": "siglip_vision_model",
}  # fmt: skip


def picture(colour: str, size: tuple[int, int] = (13, 9)) -> Image.Image:
    return Image.new("RGB", size, COLOURS[colour])


def tokenizer_files(folder: Path) -> dict[str, int]:
    """Writes them; returns the ids of the special tokens."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([SYSTEM, *COLOURS])  # one token each, for speed
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": SPECIAL[0], "eos_token": SPECIAL[1],
        "pad_token": SPECIAL[1], "chat_template": TEMPLATE,
    }  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return {token: tokenizer.token_to_id(token) for token in SPECIAL}


def untaught(ids: dict[str, int], seed: int = 0, **changes: object) -> LlavaLladaForMaskedDiffusion:
    torch.manual_seed(seed)
    rows = 256 + 1 + len(COLOURS) + len(ids) + SPARE
    config = LaViDaConfig(
        d_model=32, n_heads=2, n_layers=2, mlp_hidden_size=64, vocab_size=rows, embedding_size=rows,
        max_sequence_length=2048, mask_token_id=ids["<|mdm_mask|>"], eos_token_id=ids["<|endoftext|>"],
        pad_token_id=ids["<|endoftext|>"], mm_hidden_size=VISION["hidden_size"], vision_config=VISION, **changes,
    )  # fmt: skip
    return LlavaLladaForMaskedDiffusion(config)


def taught(folder: Path, steps: int = 40) -> VisionModel:
    """A model that fills a response with the colour of the picture it is shown; its tokenizer is put into `folder`."""
    module = untaught(tokenizer_files(folder))
    model = seeing(module, folder)
    optimizer = torch.optim.AdamW(module.parameters(), lr=5e-3)
    draw = torch.Generator().manual_seed(0)
    names = [*COLOURS] * 2
    for _ in range(steps):
        sizes = torch.randint(5, 20, (len(names), 2), generator=draw).tolist()
        images = [picture(name, tuple(size)) for name, size in zip(names, sizes, strict=True)]
        canvas = Canvas.blank([model.encode("What colour is it?", images=[i]) for i in images], 4, model.vocab)
        answers = torch.tensor([model.tokens(name) * canvas.length for name in names])
        masked = torch.rand(answers.shape, generator=draw) < 0.8
        canvas = canvas.with_response(torch.where(masked, model.vocab.mask_id, answers))
        logits = module.head(Seeing(module, images).hidden(canvas.ids, canvas.valid)[:, canvas.start :])
        loss = torch.nn.functional.cross_entropy(logits[masked], answers[masked])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    module.eval().requires_grad_(False)
    return model


def seeing(module: LlavaLladaForMaskedDiffusion, folder: Path) -> VisionModel:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    return VisionModel("tiny", module, tokenizer, Vocab(module.config.mask_token_id, (tokenizer.eos_token_id,)))


def published(model: VisionModel, folder: Path) -> None:
    """Writes config.json and the weights as the published repository has them: nothing describes the tower there but,
    for a tower that is not Google's, vision_config.json beside."""
    model.module.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "vision_config.json").write_text(json.dumps(config.pop("vision_config")))
    (folder / "config.json").write_text(json.dumps(config))
