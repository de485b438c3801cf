"""Dream-v0-Base/Instruct-7B: Qwen2.5 run bidirectionally, the published config.json and tensor names, no remote code.

B rows, T tokens run now. Logits are next-token aligned: what stands at i is predicted by position i - 1 (`shifted`).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import MaskedLMOutput

from unmask.errors import UserError
from unmask.models.layers import KV, Cost, RMSNorm, attend, heads, rotate, rotation


class DreamConfig(PreTrainedConfig):
    model_type = "Dream"

    hidden_size: int = 3584
    intermediate_size: int = 18944
    num_hidden_layers: int = 28
    num_attention_heads: int = 28
    num_key_value_heads: int = 4
    vocab_size: int = 152064
    max_position_embeddings: int = 131072
    rope_theta: float = 1000000.0
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = False
    mask_token_id: int = 151666
    bos_token_id: int | None = 151643
    pad_token_id: int | None = 151643
    eos_token_id: int | list[int] | None = 151643

    ASSUMED = {"hidden_act": "silu", "rope_scaling": None, "use_sliding_window": False, "use_mrope": False}

    def __post_init__(self, **kwargs: Any) -> None:
        for name, value in self.ASSUMED.items():
            if (found := kwargs.get(name, value)) not in (value, None):
                raise UserError(f"config.json has {name}={found!r}; unmask's Dream implements {name}={value!r} only")
        super().__post_init__(**kwargs)


class DreamAttention(nn.Module):
    def __init__(self, config: DreamConfig, layer: int):
        super().__init__()
        d, self.width, self.layer = config.hidden_size, config.hidden_size // config.num_attention_heads, layer
        self.q_proj = nn.Linear(d, d)
        self.k_proj = nn.Linear(d, config.num_key_value_heads * self.width)
        self.v_proj = nn.Linear(d, config.num_key_value_heads * self.width)
        self.o_proj = nn.Linear(d, d, bias=False)

    def forward(
        self, h: Tensor, cos: Tensor, sin: Tensor, valid: Tensor | None, at: int | Tensor, kv: KV | None
    ) -> Tensor:
        q = rotate(heads(self.q_proj(h), self.width), cos, sin)
        k = rotate(heads(self.k_proj(h), self.width), cos, sin)
        v = heads(self.v_proj(h), self.width)
        if kv is not None:
            k, v = kv.write(self.layer, at, k, v)
        return self.o_proj(attend(q, k, v, valid))


class DreamMLP(nn.Module):
    def __init__(self, config: DreamConfig):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, h: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(h)) * self.up_proj(h))


class DreamLayer(nn.Module):
    def __init__(self, config: DreamConfig, layer: int):
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = DreamAttention(config, layer)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = DreamMLP(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, valid: Tensor | None, start: int, kv: KV | None) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, valid, start, kv)
        return x + self.mlp(self.post_attention_layernorm(x))


class DreamBody(nn.Module):
    def __init__(self, config: DreamConfig):
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(DreamLayer(config, i) for i in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)


class DreamModel(PreTrainedModel):
    config_class = DreamConfig
    base_model_prefix = "model"
    _no_split_modules = ["DreamLayer"]
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}
    _supports_sdpa = True
    shifted = True

    def __init__(self, config: DreamConfig):
        super().__init__(config)
        self.model = DreamBody(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.model.embed_tokens

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def hidden(
        self, ids: Tensor, valid: Tensor | None = None, *, start: int = 0, kv: KV | None = None,
        positions: Tensor | None = None, sees: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Normed hidden states (B, T, d) of ids (B, T) standing at slots start.. or at `positions` (B, T); `valid` (B, N) is
        False on padding, `sees` (B, T, N) where a query is kept from a key.

        Dream's padding rule: a row counts its positions from its first real token.
        """
        x = self.model.embed_tokens(ids)
        here = torch.arange(start, start + ids.shape[1], device=ids.device) if positions is None else positions
        if valid is not None and not bool(valid.all()):
            here = (valid.long().cumsum(-1) - 1).masked_fill(~valid, 1).gather(1, here.expand(len(ids), -1))
        else:
            valid = None
        if sees is not None:
            valid = sees if valid is None else sees & valid[:, None]
        width = self.model.layers[0].self_attn.width
        cos, sin = (part.to(x.dtype) for part in rotation(here, width, self.config.rope_theta))
        for layer in self.model.layers:
            x = layer(x, cos, sin, valid, start if positions is None else positions, kv)
        return self.model.norm(x)

    @property
    def cost(self) -> Cost:
        return Cost.of(self.model.layers, self.config.hidden_size, self.config.vocab_size)

    def head(self, hidden: Tensor) -> Tensor:
        """(..., d) -> raw logits (..., V); the shift is the denoiser's."""
        return self.lm_head(hidden)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **_: Any) -> MaskedLMOutput:
        valid = None if attention_mask is None else attention_mask.bool()
        return MaskedLMOutput(logits=self.head(self.hidden(input_ids, valid)))  # type: ignore[arg-type]
