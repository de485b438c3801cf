"""`load` a published checkpoint, a directory in the published layout, or the bundled model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import torch
from torch import Tensor, nn
from transformers.utils import logging

from unmask.decoding.canvas import Vocab
from unmask.errors import UserError
from unmask.files import read_json
from unmask.models.model import Model, newlines

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase
    from transformers.utils.quantization_config import QuantizationConfigMixin

    from unmask.models.dream import DreamModel
    from unmask.models.llada import LLaDAModelLM

Ours: TypeAlias = "LLaDAModelLM | DreamModel"  # the modules of ours; LaViDa's is a LLaDA

# architecture in config.json -> where its class is
ARCHITECTURES = {
    "LLaDAModelLM": "unmask.models.llada:LLaDAModelLM",
    "DreamModel": "unmask.models.dream:DreamModel",
    "LlavaLladaForMaskedDiffusion": "unmask.models.lavida:LlavaLladaForMaskedDiffusion",
}
BUNDLED = Path(__file__).parent.parent / "checkpoints"
ENDS = ("<|eot_id|>", "<|im_end|>")  # ends of a turn, besides the tokenizer's own end of text


def load(
    name: str | Path = "tiny",
    *,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    adapter: str | Path | None = None,
    quantize: str | QuantizationConfigMixin | None = None,
    device_map: str | dict[str, str | int | torch.device] | None = None,
    revision: str | None = None,
    frequencies: str | Path | None = None,
) -> Model:
    """A published checkpoint by its hub id, a directory in the published layout, or the bundled "tiny".

    device: by default a GPU if there is one. dtype: by default that of the checkpoint, float32 on a CPU.
    adapter: a directory with a PEFT LoRA. quantize: "int8" or "int4" (torchao), or any transformers quantisation config.
    frequencies: UNCODE's token frequency table (see `unmask frequencies`); by default the checkpoint's own, if it has one.
    """
    if not sys.stderr.isatty():
        logging.disable_progress_bar()
    where = located(str(name), revision)
    config = read_config(where)
    cls = architecture(config, name)
    if device is None and device_map is None:
        device = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    check_device(device, dtype)
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
        cast(nn.Module, module).to(device)  # in place; what transformers puts around `to` has no signature
    tokenizer = tokenizer_of(where, config)
    module.eval().requires_grad_(False)
    size, mask = module.get_input_embeddings().num_embeddings, module.config.mask_token_id
    if not isinstance(mask, int) or not 0 <= mask < size:
        raise UserError(f"config.json of {name} has mask_token_id {mask!r}; it must be a token id from 0 to {size - 1}")
    table = _frequencies(where, frequencies, module)
    vocab = Vocab(mask, _ends(module.config, tokenizer), table, newlines(tokenizer))
    fitted = Path(adapter) if adapter is not None else None
    return getattr(cls, "facade", Model)(str(name), module, tokenizer, vocab, path=where, adapter=fitted)


def read_config(where: Path) -> dict[str, Any]:
    """The config.json of a checkpoint folder."""
    file = where / "config.json"
    config = read_json(file)
    if not isinstance(config, dict):
        raise UserError(f"{file} is not a JSON object; download the model's files again")
    return config


def check_device(device: str | torch.device | None, dtype: str | torch.dtype | None) -> None:
    """Refuse a device that is not there, and a dtype that does not exist."""
    try:
        kind = torch.device(device).type if device is not None else "cpu"
    except RuntimeError:
        kind = ""
    if kind not in ("cpu", "cuda", "mps"):
        raise UserError(f"there is no device {str(device)!r}; it is cpu, cuda, cuda:1 or mps")
    if kind == "cuda" and not torch.cuda.is_available():
        raise UserError("this torch finds no CUDA device; use device cpu, or install a torch built for CUDA")
    if kind == "cuda" and (torch.device(str(device)).index or 0) >= torch.cuda.device_count():
        raise UserError(
            f"there is no device {str(device)!r}; this machine has {torch.cuda.device_count()} CUDA devices, from cuda:0 on"
        )
    if kind == "mps" and not torch.backends.mps.is_available():
        raise UserError("this machine has no mps device; use device cpu")
    if isinstance(dtype, str) and dtype != "auto" and not isinstance(getattr(torch, dtype, None), torch.dtype):
        raise UserError(f"there is no dtype {dtype!r}; it is float32, bfloat16, float16 or auto")


def located(name: str, revision: str | None) -> Path:
    """The directory that holds the checkpoint, fetched from the hub if necessary."""
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


def architecture(config: dict[str, Any], name: str | Path) -> type[Ours]:
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


def _weights(cls: type[Ours], where: Path, options: dict[str, Any]) -> Ours:
    if not list(where.glob("*.safetensors")):
        raise UserError(f"{where} has no .safetensors weights; download the model's files again")
    loud = logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)  # what does not fit is said below, in one line
    try:
        loaded: Any = cls.from_pretrained(
            where, output_loading_info=True, local_files_only=True, ignore_mismatched_sizes=True, **options
        )
    except UserError:
        raise
    except torch.OutOfMemoryError as error:
        raise UserError(
            'not enough memory for the weights; try quantize="int8", dtype="bfloat16" or device_map="auto"'
        ) from error
    except ImportError as error:
        raise UserError(
            f'{str(error).strip().splitlines()[0]}; try `pip install "unmask[quantize,device-map]"`'
        ) from error
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [repr(error)]
        shapes = [line for line in lines if "shape" in line.lower() or "size mismatch" in line.lower()]
        if options.get("device_map") is not None and not shapes:
            raise UserError(f"the device map {options['device_map']!r} cannot be used: {lines[0]:.200}") from error
        raise UserError(f"the weights in {where} do not fit its config.json: {(shapes or lines)[0]:.300}") from error
    finally:
        logging.set_verbosity(loud)
    module, info = loaded
    wrong = [str(m[0] if isinstance(m, tuple) else m) for m in info.get("mismatched_keys") or []]
    kinds = {
        "mis-shaped": wrong,
        "missing": sorted(info["missing_keys"]),
        "not expected": sorted(info.get("unexpected_keys") or []),
    }
    for kind, found in kinds.items():
        if found:
            what = f"{len(found)} {kind} ({', '.join(found[:3])})"
            raise UserError(
                f"the weights in {where} do not fit its config.json: {what}; download the model's files again"
            )
    return module


def tokenizer_of(where: Path, config: dict[str, Any]) -> PreTrainedTokenizerBase:
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
        raise UserError(
            f"the tokenizer in {where} cannot be read ({why:.120}); copy the tokenizer files of the model there"
        ) from error


def _ends(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """End-of-text ids, the paper's ∅ first; then ends of a turn, and the padding cycle of a rainbow-trained model."""
    eos = config.eos_token_id
    ids = [*(eos if isinstance(eos, list) else [eos]), tokenizer.eos_token_id, config.pad_token_id]
    known = tokenizer.get_vocab()
    ids += [known[token] for token in ENDS if token in known]
    ids += getattr(config, "rainbow_ids", None) or []
    return tuple(dict.fromkeys(i for i in ids if i is not None))


def _frequencies(where: Path, given: str | Path | None, module: Ours) -> Tensor | None:
    from unmask.models.frequencies import read

    file = Path(given) if given else where / "frequencies.json"
    if not given and not file.is_file():
        return None
    return read(file, module.get_input_embeddings().num_embeddings)


def _adapt(module: Ours, adapter: str | Path) -> None:
    if not (Path(adapter) / "adapter_config.json").is_file():
        raise UserError(f"{adapter} has no adapter_config.json: it is not a PEFT adapter directory")
    try:
        module.load_adapter(str(adapter))
    except ImportError as error:
        raise UserError('an adapter needs peft: pip install "unmask[lora]"') from error


def _quantisation(quantize: str | QuantizationConfigMixin) -> QuantizationConfigMixin:
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
