"""Models: `load` a published checkpoint (or the bundled one), or `wrap` any module of your own.

A Model is what the rest of the package sees: text to ids and back, the special ids, and a denoiser opened on a canvas.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unmask.decoding.canvas import Canvas, Vocab
from unmask.decoding.reading import Denoiser
from unmask.errors import UserError
from unmask.models.denoisers import chain

Messages = Sequence[dict[str, str]]

# architecture in config.json -> where its class is
ARCHITECTURES = {
    "LLaDAModelLM": "unmask.models.llada:LLaDAModelLM",
    "DreamModel": "unmask.models.dream:DreamModel",
    "LlavaLladaForMaskedDiffusion": "unmask.models.lavida:LlavaLladaForMaskedDiffusion",
}
BUNDLED = Path(__file__).parent.parent / "checkpoints"
ENDS = ("<|eot_id|>", "<|im_end|>")  # ends of a turn, besides the tokenizer's own end of text


@dataclass(frozen=True)
class Model:
    name: str
    module: Any = field(repr=False)
    tokenizer: Any = field(repr=False)
    vocab: Vocab
    shift: bool = False  # of a wrapped module; ours know their own
    path: Path | None = field(default=None, repr=False)  # the checkpoint's directory, where it has one
    adapter: Path | None = field(default=None, repr=False)  # the directory of the LoRA on it

    @property
    def device(self) -> torch.device:
        return next(self.module.parameters()).device

    @property
    def context(self) -> int | None:
        """The longest prompt plus response it was made for."""
        config = getattr(self.module, "config", None)
        return getattr(config, "max_position_embeddings", None)

    @property
    def length(self) -> int:
        """The response length to use when none is given."""
        return getattr(getattr(self.module, "config", None), "response_length", 256)

    def encode(
        self, prompt: str | Messages, system: str | None = None, raw: bool = False, images: Sequence[Any] = ()
    ) -> list[int]:
        """A prompt, or the messages of a conversation, as ids that end where the response begins; bos comes once."""
        if images:
            raise UserError(f"{self.name} cannot see pictures; LaViDa can: --model jacklishufan/lavida-llada-v1.0-instruct")
        text = self.render(prompt, system, raw)
        return self.tokens(text) if self.chats and not raw else list(self.tokenizer(text)["input_ids"])

    @property
    def chats(self) -> bool:
        return bool(getattr(self.tokenizer, "chat_template", None))

    def render(self, prompt: str | Messages, system: str | None = None, raw: bool = False) -> str:
        """The text the model is given: the conversation in its chat template, or the prompt itself."""
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
        for message in messages:
            if not isinstance(message, dict) or not all(isinstance(message.get(key), str) for key in ("role", "content")):
                raise UserError(f'a message is {{"role": "user", "content": "text"}}; this is {message!r:.80}')
        if not messages or not messages[-1]["content"].strip():
            raise UserError("the prompt is empty")
        if raw or not self.chats:
            if not isinstance(prompt, str) or system:
                why = "raw text has" if raw else f"{self.name} has"
                raise UserError(f"{why} no chat template: give plain text, without messages or a system prompt")
            return prompt
        if system:
            messages = [{"role": "system", "content": system}, *messages]
        return self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)

    def tokens(self, text: str) -> list[int]:
        """The ids of a piece of text alone: nothing added before or behind it."""
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def text(self, ids: Sequence[int] | Tensor) -> str:
        """Text without end-of-text and mask tokens; what stands behind an end-of-text token is kept."""
        drop = {self.vocab.mask_id, *self.vocab.eot_ids}
        kept = [i for i in (ids.tolist() if isinstance(ids, Tensor) else ids) if i not in drop]
        return self.tokenizer.decode(kept, skip_special_tokens=True)

    def denoiser(self, cfg: float = 0.0, cache: str | None = None, images: Sequence[Any] = ()) -> Any:
        """What predicts. `images`: the pictures of every row that has some, one row after the other, as Pillow images."""
        return chain(self.module, cfg=cfg, cache=cache, shift=self.shift)

    def begin(self, canvas: Canvas, images: Sequence[Any] = ()) -> Denoiser:
        return self.denoiser(images=images).begin(canvas)

    @cached_property
    def weights_hash(self) -> str:
        """sha256 of the weight files, an adapter's and its scale among them, wherever they are; of a sample of every file beyond
        256 MB, which is quick and still tells files apart."""
        digest = hashlib.sha256()
        files = sorted(self.path.glob("*.safetensors")) if self.path else []
        files += sorted(self.adapter.glob("adapter_*")) if self.adapter else []  # weights and adapter_config.json
        for file in files:
            size = file.stat().st_size
            digest.update(f"{file.name}:{size};".encode())
            with file.open("rb") as f:
                for start in [0] if size <= 2**28 else range(0, size, size // 64):
                    f.seek(start)
                    digest.update(f.read(size if size <= 2**28 else 2**20))
        if not files:
            for name, value in self.module.state_dict().items():
                digest.update(name.encode() + value.detach().cpu().contiguous().flatten()[:4096].float().numpy().tobytes())
        return digest.hexdigest()


def wrap(
    module: Any, tokenizer: Any, *, mask_id: int, eot_ids: Sequence[int] = (), shift: bool = False, frequency: Tensor | None = None
) -> Model:
    """Any module whose forward(input_ids, attention_mask) gives `.logits`; `shift` when they are next-token aligned.
    `frequency` (V,) is what UNCODE needs."""
    vocab = Vocab(mask_id, tuple(eot_ids), frequency, _newlines(tokenizer))
    return Model(type(module).__name__, module.eval(), tokenizer, vocab, shift)


def load(
    name: str | Path = "tiny",
    *,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    adapter: str | Path | None = None,
    quantize: str | Any = None,
    device_map: Any = None,
    revision: str | None = None,
    frequencies: str | Path | None = None,
) -> Model:
    """A published checkpoint by its hub id, a directory in the published layout, or the bundled "tiny".

    device: by default a GPU where there is one. dtype: by default that of the checkpoint, float32 on a CPU.
    adapter: a directory with a PEFT LoRA. quantize: "int8" or "int4" (torchao), or any transformers quantisation config.
    frequencies: UNCODE's token frequency table (see `unmask frequencies`); by default the checkpoint's own, if it has one.
    """
    from transformers.utils import logging

    if not sys.stderr.isatty():
        logging.disable_progress_bar()
    where = _located(str(name), revision)
    try:
        config = json.loads((where / "config.json").read_text())
    except json.JSONDecodeError as error:
        raise UserError(f"{where / 'config.json'} is not JSON ({error}); download the model's files again") from error
    cls = _architecture(config, name)
    if device is None and device_map is None:
        device = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    _checked(device, dtype)
    if dtype is None:
        dtype = torch.float32 if str(device) == "cpu" else "auto"
    options: dict[str, Any] = {"dtype": getattr(torch, dtype, dtype) if isinstance(dtype, str) else dtype}
    if device_map is not None:
        options["device_map"] = device_map
    if quantize is not None:
        options["quantization_config"] = _quantisation(quantize)
        device_map = options["device_map"] = device_map or {"": device}  # quantised where it will run
    module = _weights(cls, where, options)
    if adapter is not None:
        _adapt(module, adapter)
    if device_map is None:
        module = module.to(device)
    tokenizer = _tokenizer(where, config)
    module.eval().requires_grad_(False)
    table = _frequencies(where, frequencies, module)
    vocab = Vocab(module.config.mask_token_id, _ends(module.config, tokenizer), table, _newlines(tokenizer))
    fitted = Path(adapter) if adapter is not None else None
    return getattr(cls, "facade", Model)(str(name), module, tokenizer, vocab, path=where, adapter=fitted)


def _checked(device: Any, dtype: Any) -> None:
    try:
        kind = torch.device(device).type if device is not None else "cpu"
    except RuntimeError as error:
        raise UserError(f"there is no device {device!r}; it is cpu, cuda, cuda:1 or mps") from error
    if kind == "cuda" and not torch.cuda.is_available():
        raise UserError("this torch finds no CUDA device; use device cpu, or install a torch built for CUDA")
    if isinstance(dtype, str) and dtype != "auto" and not isinstance(getattr(torch, dtype, None), torch.dtype):
        raise UserError(f"there is no dtype {dtype!r}; it is float32, bfloat16, float16 or auto")


def _located(name: str, revision: str | None) -> Path:
    """The directory that holds the checkpoint, fetched from the hub where it must be."""
    if (BUNDLED / name / "config.json").is_file():
        return BUNDLED / name
    path = Path(name).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise UserError(f"{path} has no config.json: it is not a checkpoint directory")
        return path
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise UserError(f"there is no directory {name!r}, and it is not a hub id such as GSAI-ML/LLaDA-8B-Instruct")
    from huggingface_hub import snapshot_download

    patterns = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=patterns))
    except Exception as error:  # the hub has many ways to say no; each means: it could not be fetched
        why = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
        raise UserError(
            f"{name} could not be fetched from the hub ({type(error).__name__}: {why}); check the name and the network, "
            "or download it elsewhere and pass its directory"
        ) from error


def _architecture(config: dict[str, Any], name: str | Path) -> Any:
    from importlib import import_module

    for architecture in config.get("architectures") or []:
        if architecture in ARCHITECTURES:
            where, _, cls = ARCHITECTURES[architecture].partition(":")
            return getattr(import_module(where), cls)
    found = ", ".join(config.get("architectures") or ["none named"])
    raise UserError(
        f"{name} is of an architecture unmask does not know ({found}); it knows {', '.join(ARCHITECTURES)}. "
        "Load it yourself and hand it over by unmask.wrap(module, tokenizer, mask_id=...)"
    )


def _weights(cls: Any, where: Path, options: dict[str, Any]) -> Any:
    if not list(where.glob("*.safetensors")):
        raise UserError(f"{where} has no .safetensors weights; download the model's files again")
    try:
        module, info = cls.from_pretrained(where, output_loading_info=True, local_files_only=True, **options)
    except UserError:
        raise
    except torch.OutOfMemoryError as error:
        raise UserError('not enough memory for the weights; try quantize="int8", dtype="bfloat16" or device_map="auto"') from error
    except ImportError as error:
        raise UserError(f"{str(error).strip().splitlines()[0]}; try `pip install \"unmask[quantize,device-map]\"`") from error
    except Exception as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        shapes = [line.strip() for line in lines if "shape" in line.lower() or "size mismatch" in line.lower()]
        raise UserError(f"the weights in {where} do not fit its config.json: {(shapes or lines or [repr(error)])[0][:300]}") from error
    wrong = [str(m[0] if isinstance(m, tuple) else m) for m in info.get("mismatched_keys") or []]
    missing = sorted(info["missing_keys"])
    if wrong or missing:
        what = f"{len(wrong)} mis-shaped ({', '.join(wrong[:3])})" if wrong else f"{len(missing)} missing ({', '.join(missing[:3])})"
        raise UserError(f"the weights in {where} do not fit its config.json: {what}; download the model's files again")
    return module


def _tokenizer(where: Path, config: dict[str, Any]) -> Any:
    import transformers

    # Dream's tokenizer class is remote code around Qwen2's.
    cls = transformers.Qwen2Tokenizer if config.get("model_type") == "Dream" else transformers.PreTrainedTokenizerFast
    files = ("tokenizer.json", "vocab.json", "tokenizer.model")
    if not any((where / file).is_file() for file in files):
        raise UserError(f"{where} has no tokenizer ({', '.join(files)}); copy the tokenizer files of the model there")
    try:
        return cls.from_pretrained(where, local_files_only=True)
    except Exception as error:
        why = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(f"the tokenizer in {where} cannot be read ({why:.120}); copy the tokenizer files of the model there") from error


def _ends(config: Any, tokenizer: Any) -> tuple[int, ...]:
    """End-of-text ids, the paper's ∅ first; then ends of a turn, and the padding cycle of a rainbow-trained model."""
    eos = config.eos_token_id
    ids = [*(eos if isinstance(eos, list) else [eos]), tokenizer.eos_token_id, config.pad_token_id]
    known = tokenizer.get_vocab()
    ids += [known[token] for token in ENDS if token in known]
    ids += getattr(config, "rainbow_ids", None) or []
    return tuple(dict.fromkeys(i for i in ids if i is not None))


def _newlines(tokenizer: Any) -> tuple[int, ...]:
    """The token that ends a line, where the tokenizer has one."""
    ids = tokenizer("\n", add_special_tokens=False)["input_ids"] if callable(tokenizer) else []
    return tuple(ids) if len(ids) == 1 and ids[0] != getattr(tokenizer, "unk_token_id", None) else ()


def _frequencies(where: Path, given: str | Path | None, module: Any) -> Tensor | None:
    from unmask.models.frequencies import read

    file = Path(given) if given else where / "frequencies.json"
    if not given and not file.is_file():
        return None
    return read(file, module.get_input_embeddings().num_embeddings)


def _adapt(module: Any, adapter: str | Path) -> None:
    if not (Path(adapter) / "adapter_config.json").is_file():
        raise UserError(f"{adapter} has no adapter_config.json: it is not a PEFT adapter directory")
    try:
        module.load_adapter(str(adapter))
    except ImportError as error:
        raise UserError('an adapter needs peft: pip install "unmask[lora]"') from error


def _quantisation(quantize: Any) -> Any:
    if not isinstance(quantize, str):
        return quantize
    if quantize not in ("int8", "int4"):
        raise UserError(f'quantize is "int8", "int4" or a transformers quantisation config, not {quantize!r}')
    try:
        from torchao.quantization import Int4WeightOnlyConfig, Int8WeightOnlyConfig
        from transformers import TorchAoConfig
    except ImportError as error:
        raise UserError('quantisation needs torchao: pip install "unmask[quantize]"') from error
    return TorchAoConfig(Int8WeightOnlyConfig() if quantize == "int8" else Int4WeightOnlyConfig())
