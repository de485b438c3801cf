"""LaViDa-LLaDA: LLaDA that sees. The published config.json and tensor names, transformers' SigLIP, no remote code.

d = d_model, v views of a picture, n x n patches per view, m = ceil(n / 2), N image tokens of a picture.
In ids, IMAGE stands where a token of a picture stands; `Seeing` puts the pictures there, so the loop and the wrappers
around denoisers (guidance, caches) know nothing of them.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.errors import UserError
from unmask.models import images as pictures
from unmask.models.denoisers import Opens, chain
from unmask.models.layers import Cost
from unmask.models.llada import LLaDAConfig, LLaDAModelLM
from unmask.models.model import Messages, Model

if TYPE_CHECKING:
    from PIL.Image import Image

IMAGE = -200  # the published placeholder
SYSTEM = (
    "You are a helpful language and vision assistant. You are able to understand the visual content that the user "
    "provides, and assist the user with a variety of tasks using natural language."
)
SO400M = {  # google/siglip-so400m-patch14-384, which the published checkpoint names but does not describe
    "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "num_attention_heads": 16,
    "image_size": 384, "patch_size": 14,
}  # fmt: skip


class LaViDaConfig(LLaDAConfig):
    """LLaDA's fields and those of the image path.

    `vision_config` describes the whole SigLIP, whose last layer LaViDa drops. It is looked for in config.json, in
    vision_config.json beside it, in the folder `mm_vision_tower` names; else it is Google's so400m.
    """

    model_type = "llava_llada"

    mm_vision_tower: str = "google/siglip-so400m-patch14-384"
    mm_hidden_size: int = 1152
    image_aspect_ratio: str = "anyres"  # or "pad"
    image_grid_pinpoints: list | str | None = None  # (width, height) each
    vision_config: dict | None = None

    ASSUMED = {
        **LLaDAConfig.ASSUMED, "mm_projector_type": "mlp2x_gelu", "mm_patch_merge_type": "spatial_unpad",
        "mm_spatial_pool_mode": "bilinear", "mm_resampler_type": None, "mm_use_im_start_end": False,
    }  # fmt: skip

    @classmethod
    def get_config_dict(cls, path: str | Path, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:  # type: ignore[override]
        config, rest = super().get_config_dict(path, **kwargs)
        beside = Path(path) / "vision_config.json"
        if not config.get("vision_config") and beside.is_file():
            config["vision_config"] = json.loads(beside.read_text())
        return config, rest

    def __post_init__(self, **kwargs: Any) -> None:
        if self.image_aspect_ratio not in ("anyres", "pad"):
            raise UserError(f"config.json has image_aspect_ratio={self.image_aspect_ratio!r}; it is anyres or pad")
        if self.vision_config is None:
            described = Path(self.mm_vision_tower).expanduser() / "config.json"
            if described.is_file():
                found = json.loads(described.read_text())
                self.vision_config = found.get("vision_config", found)
            elif self.mm_hidden_size == SO400M["hidden_size"]:
                self.vision_config = dict(SO400M)
            else:
                raise UserError(
                    f"nothing describes the vision tower {self.mm_vision_tower!r}: "
                    "put the vision_config of that SigLIP into config.json"
                )
        super().__post_init__(**kwargs)

    @property
    def grids(self) -> list[tuple[int, int]] | None:
        """The resolutions a picture may be tiled at; None in pad mode."""
        if self.image_aspect_ratio == "pad":
            return None
        points, side = self.image_grid_pinpoints, self.side
        if isinstance(points, str):
            points = ast.literal_eval(points)
        shapes = [(1, 2), (2, 1), (2, 2), (3, 1), (1, 3)]
        return [(w, h) for w, h in points] if points else [(w * side, h * side) for w, h in shapes]

    @property
    def side(self) -> int:
        return self.vision_config["image_size"]  # type: ignore[index]

    @property
    def pooled(self) -> int:
        """m: the width and height of a view in tokens, after pooling."""
        return -(-(self.side // self.vision_config["patch_size"]) // 2)  # type: ignore[index]

    def tokens(self, size: tuple[int, int]) -> int:
        """N: how many tokens a picture of this size takes."""
        if self.grids is None:
            return self.pooled**2 + 1
        rows, columns = self.shown(size)
        return self.pooled**2 + (rows.stop - rows.start) * (columns.stop - columns.start + 1)

    def shown(self, size: tuple[int, int]) -> tuple[slice, slice]:
        """The rows and columns of the tiled tokens that show the picture."""
        width, height = pictures.best_grid(size, self.grids or [])
        return pictures.kept(size, width // self.side * self.pooled, height // self.side * self.pooled)


class LlavaLladaForMaskedDiffusion(LLaDAModelLM):
    config_class = LaViDaConfig
    _no_split_modules = ["LLaDABlock", "SiglipEncoderLayer", "SiglipVisionEmbeddings"]

    def __init__(self, config: LaViDaConfig):
        from transformers import SiglipVisionConfig, SiglipVisionModel

        super().__init__(config)
        described = {**config.vision_config, "vision_use_head": False}  # type: ignore[dict-item]
        described["num_hidden_layers"] -= 1  # the last layer is not used: features are the input it would have had
        described.pop("model_type", None)
        whole = SiglipVisionModel(SiglipVisionConfig(**described))
        self.model.vision_tower = nn.Module()
        self.model.vision_tower.vision_tower = nn.Module()  # the published names are this deep
        self.model.vision_tower.vision_tower.vision_model = getattr(whole, "vision_model", whole)
        d = config.d_model
        self.model.mm_projector = nn.Sequential(nn.Linear(described["hidden_size"], d), nn.GELU(), nn.Linear(d, d))
        self.model.image_newline = nn.Parameter(torch.zeros(d))
        self.post_init()

    @classmethod
    def from_pretrained(cls, path: str | Path, *args: Any, output_loading_info: bool = False, **options: Any) -> Any:  # type: ignore[override]
        """As transformers does it; the embedding has the rows the file has (126,464, or 126,349 after the published
        loader's resize), and a tower the checkpoint does not hold is SigLIP's own."""
        config = options.pop("config", None) or cls.config_class.from_pretrained(path)
        config.embedding_size = stored_rows(path) or config.embedding_size
        loaded: Any = super().from_pretrained(path, *args, config=config, output_loading_info=True, **options)
        module, info = loaded
        absent = {key for key in info["missing_keys"] if key.startswith("model.vision_tower.")}
        if absent:
            module.borrow_tower()
            info["missing_keys"] = type(info["missing_keys"])(key for key in info["missing_keys"] if key not in absent)
        return (module, info) if output_loading_info else module

    @property
    def tower(self) -> Any:
        return self.model.vision_tower.vision_tower.vision_model  # type: ignore[union-attr]

    def borrow_tower(self) -> None:
        """SigLIP's weights from where the config says they are, its last layer and its head left out."""
        from transformers import SiglipVisionModel

        name = self.config.mm_vision_tower
        try:
            whole = SiglipVisionModel.from_pretrained(name, dtype=self.tower.post_layernorm.weight.dtype)
        except Exception as error:
            why = str(error).strip().splitlines()[0][:120] if str(error).strip() else type(error).__name__
            raise UserError(
                f"the checkpoint has no vision tower, and {name} cannot be loaded ({why}); download it and set "
                "mm_vision_tower in config.json to its folder"
            ) from error
        theirs = getattr(whole, "vision_model", whole).state_dict()
        try:
            self.tower.load_state_dict({key: theirs[key] for key in self.tower.state_dict()})
        except (KeyError, RuntimeError) as error:
            raise UserError(
                f"the vision tower {name} does not fit this checkpoint; if it is quantised, load it without quantize"
            ) from error

    def features(self, pixel_values: Tensor) -> Tensor:
        """(v, 3, S, S) -> (v, n * n, width): what leaves the last layer that is kept, not normed."""
        weight = self.tower.embeddings.patch_embedding.weight
        x = self.tower.embeddings(pixel_values.to(weight.device, weight.dtype))
        return self.tower.encoder(inputs_embeds=x).last_hidden_state

    def project(self, features: Tensor) -> Tensor:
        return self.model.mm_projector(features)  # type: ignore[operator]

    def pool(self, projected: Tensor) -> Tensor:
        """(v, n * n, d) -> (v, m * m, d), bilinear."""
        n, m = round(projected.shape[1] ** 0.5), self.config.pooled
        grid = projected.unflatten(1, (n, n)).permute(0, 3, 1, 2)
        return F.interpolate(grid, size=(m, m), mode="bilinear").flatten(2).transpose(1, 2)

    def see(self, image: Image) -> Tensor:
        """(N, d): an RGB Pillow image as tokens: the whole picture, then its rows in tiles, each ending in a newline."""
        config, m = self.config, self.config.pooled
        seen = self.pool(self.project(self.features(pictures.views(image, config.side, config.grids))))
        newline = self.model.image_newline.to(seen)[None]  # type: ignore[operator, union-attr]
        if config.grids is None:
            return torch.cat((seen[0], newline))
        rows, columns = config.shown(image.size)
        across = pictures.best_grid(image.size, config.grids)[0] // config.side
        tiles = seen[1:].unflatten(0, (-1, across)).unflatten(2, (m, m))  # (down, across, m, m, d)
        grid = tiles.transpose(1, 2).flatten(2, 3).flatten(0, 1)[rows, columns]
        lines = torch.cat((grid, newline.expand(grid.shape[0], 1, -1)), dim=1)
        return torch.cat((seen[0], lines.flatten(0, 1)))


class Seeing:
    """The module as it looks at the pictures of one batch: where ids say IMAGE their tokens stand, row after row.

    A canvas whose prompt is masked (guidance's unconditional one) has no IMAGE, so there the pictures are masked too.
    Logits end where the tokenizer does: the embedding's spare rows are never written, nor counted in the softmax.
    """

    shifted = False
    rowwise = False  # which picture belongs to which row is known by counting, so every row is run

    def __init__(self, module: LlavaLladaForMaskedDiffusion, images: Sequence[Image] = (), columns: int | None = None):
        self.module, self.images, self.columns = module, images, columns

    @cached_property
    def tokens(self) -> Tensor:  # (all N, d)
        return torch.cat([self.module.see(image) for image in self.images])

    def hidden(self, ids: Tensor, valid: Tensor | None = None, **where: Any) -> Tensor:
        embeds, shown = self.module.body.wte(ids.clamp(min=0)), ids == IMAGE
        if bool(shown.any()):
            embeds[shown] = self.tokens.to(embeds)
        return self.module.hidden(valid=valid, embeds=embeds, **where)

    def head(self, hidden: Tensor) -> Tensor:
        return self.module.head(hidden)[..., : self.columns]

    @property
    def cost(self) -> Cost:
        return self.module.cost


class VisionModel(Model):
    """A Model whose prompts may hold pictures: `<image>` in the text says where, else they come first."""

    module: LlavaLladaForMaskedDiffusion

    def encode(
        self, prompt: str | Messages, system: str | None = None, raw: bool = False, images: Sequence[Image] = ()
    ) -> list[int]:
        """Ids in which a picture takes as many IMAGE as it has tokens; LaViDa's system prompt unless one is given."""
        if system is None and self.chats and not raw and (isinstance(prompt, str) or prompt[0].get("role") != "system"):
            system = SYSTEM
        text = self.render(_placed(prompt, len(images)), system, raw)
        said = [prompt] if isinstance(prompt, str) else [message["content"] for message in prompt]
        if not raw and any(map(self.spells, said)):
            raise UserError("the prompt spells a special token, which a prompt with pictures cannot hold: leave it out")
        first, *rest = text.split("<image>")
        if len(rest) != len(images):
            raise UserError(f"the prompt has {len(rest)} <image> and {len(images)} pictures were given (--image FILE)")
        ids = list(self.tokenizer(first, add_special_tokens=False)["input_ids"])
        begun = ids[:1] == [self.tokenizer.bos_token_id]
        for image, piece in zip(images, rest, strict=True):
            more = self.tokens(piece)
            # The published tokenisation takes every later piece to begin with bos and drops its first token, which is
            # the line break after <image>. So do we, unless that would eat a word.
            if begun and more and not str(self.tokenizer.decode(more[:1])).strip():
                more = more[1:]
            ids += [IMAGE] * self.module.config.tokens(image.size) + more
        return ids

    def denoiser(self, cfg: float = 0.0, cache: str | None = None, images: Sequence[Image] = ()) -> Opens:
        """`images`: those of every row, one row after the other. If no cache is named: the published prefix mode."""
        columns = max(len(self.tokenizer), self.vocab.mask_id + 1)
        return chain(Seeing(self.module, images, columns), cfg=cfg, cache=cache or "prefix-lm")


LlavaLladaForMaskedDiffusion.facade = VisionModel  # type: ignore[attr-defined]


def _placed(prompt: str | Messages, count: int) -> str | Messages:
    """The prompt with an `<image>` before its last message for every picture, unless it says itself where they go."""
    if isinstance(prompt, str):
        return prompt if "<image>" in prompt or not count else "<image>\n" * count + prompt
    messages = [dict(m) for m in prompt]
    if messages and count and not any("<image>" in m["content"] for m in messages):
        messages[-1]["content"] = "<image>\n" * count + messages[-1]["content"]
    return messages


def stored_rows(path: str | Path) -> int | None:
    """Rows of the embedding as it lies in a checkpoint's safetensors, without reading it."""
    from safetensors import safe_open

    name = "model.transformer.wte.weight"
    for file in sorted(Path(path).glob("*.safetensors")):
        with safe_open(file, "pt") as tensors:
            if name in tensors.keys():  # noqa: SIM118
                return tensors.get_slice(name).get_shape()[0]
    return None
