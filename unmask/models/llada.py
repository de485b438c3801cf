"""LLaDA-8B-Base/Instruct and LLaDA-1.5 (and the bundled model): the published config.json and tensor names, no remote code.

B rows, T tokens run now, d = d_model. Logits are not shifted: position i predicts token i.
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


class LLaDAConfig(PreTrainedConfig):
    """The published fields that change the forward; the others are read, kept and written back untouched."""

    model_type = "llada"
    attribute_map = {
        "hidden_size": "d_model",
        "num_attention_heads": "n_heads",
        "num_hidden_layers": "n_layers",
        "max_position_embeddings": "max_sequence_length",
    }

    d_model: int = 4096
    n_heads: int = 32
    n_kv_heads: int | None = None
    n_layers: int = 32
    mlp_ratio: int = 4
    mlp_hidden_size: int | None = None
    vocab_size: int = 126464
    embedding_size: int | None = None
    max_sequence_length: int = 4096
    rope_theta: float = 500000.0
    rms_norm_eps: float = 1e-5
    weight_tying: bool = False
    multi_query_attention: bool | None = None
    mask_token_id: int = 126336
    pad_token_id: int | None = 126081
    eos_token_id: int | list[int] | None = 126081

    # What this implementation assumes of the remaining published switches.
    ASSUMED = {
        "block_type": "llama", "layer_norm_type": "rms", "activation_type": "silu", "rope": True, "alibi": False,
        "attention_layer_norm": False, "include_bias": False, "include_qkv_bias": False, "bias_for_layer_norm": False,
        "input_emb_norm": False, "scale_logits": False, "block_group_size": 1,
    }  # fmt: skip

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        for name, value in self.ASSUMED.items():
            if (found := getattr(self, name, value)) not in (value, None):
                raise UserError(f"config.json has {name}={found!r}; unmask's LLaDA implements {name}={value!r} only")

    @property
    def rows(self) -> int:
        """Embedding rows and logit columns; may exceed vocab_size."""
        return self.embedding_size or self.vocab_size

    @property
    def kv_heads(self) -> int:
        return self.n_kv_heads or (1 if self.multi_query_attention else self.n_heads)


class LLaDABlock(nn.Module):
    def __init__(self, config: LLaDAConfig, layer: int):
        super().__init__()
        d, width = config.d_model, config.d_model // config.n_heads
        inner = config.mlp_hidden_size or config.mlp_ratio * d
        self.layer, self.width = layer, width
        self.attn_norm = RMSNorm(d, config.rms_norm_eps)
        self.q_proj = nn.Linear(d, d, bias=False)
        self.k_proj = nn.Linear(d, config.kv_heads * width, bias=False)
        self.v_proj = nn.Linear(d, config.kv_heads * width, bias=False)
        self.attn_out = nn.Linear(d, d, bias=False)
        self.ff_norm = RMSNorm(d, config.rms_norm_eps)
        self.ff_proj = nn.Linear(d, inner, bias=False)  # the gate: SiLU is applied to this one
        self.up_proj = nn.Linear(d, inner, bias=False)
        self.ff_out = nn.Linear(inner, d, bias=False)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, valid: Tensor | None, at: int | Tensor, kv: KV | None
    ) -> Tensor:
        h = self.attn_norm(x)
        q = rotate(heads(self.q_proj(h), self.width), cos, sin)
        k = rotate(heads(self.k_proj(h), self.width), cos, sin)
        v = heads(self.v_proj(h), self.width)
        if kv is not None:
            k, v = kv.write(self.layer, at, k, v)
        x = x + self.attn_out(attend(q, k, v, valid))
        h = self.ff_norm(x)
        return x + self.ff_out(F.silu(self.ff_proj(h)) * self.up_proj(h))


class LLaDATransformer(nn.Module):
    def __init__(self, config: LLaDAConfig):
        super().__init__()
        self.wte = nn.Embedding(config.rows, config.d_model)
        self.blocks = nn.ModuleList(LLaDABlock(config, i) for i in range(config.n_layers))
        self.ln_f = RMSNorm(config.d_model, config.rms_norm_eps)
        if not config.weight_tying:
            self.ff_out = nn.Linear(config.d_model, config.rows, bias=False)


class LLaDAModelLM(PreTrainedModel):
    config_class = LLaDAConfig
    base_model_prefix = "model"
    _no_split_modules = ["LLaDABlock"]
    _supports_sdpa = True
    supports_gradient_checkpointing = False
    shifted = False

    def __init__(self, config: LLaDAConfig):
        super().__init__(config)
        self.model = nn.Module()
        self.model.transformer = LLaDATransformer(config)
        self.post_init()

    @property
    def body(self) -> LLaDATransformer:
        return self.model.transformer  # type: ignore[return-value]

    def get_input_embeddings(self) -> nn.Embedding:
        return self.body.wte

    def get_output_embeddings(self) -> nn.Module | None:
        return getattr(self.body, "ff_out", None)

    def hidden(
        self, ids: Tensor | None = None, valid: Tensor | None = None, *, embeds: Tensor | None = None,
        start: int = 0, kv: KV | None = None, keep: list[Tensor] | None = None,
        positions: Tensor | None = None, sees: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Normed hidden states (B, T, d) of ids (B, T) or embeds (B, T, d) standing at slots start.. or at `positions` (B, T).

        `valid` (B, N) is False on padding keys, N counting every slot attended to; `sees` (B, T, N) is False where a
        query is kept from a key. With `kv` the forward is partial: see KV. `keep` collects the input of every block,
        then the result.
        """
        x = self.body.wte(ids) if embeds is None else embeds
        width = self.config.d_model // self.config.n_heads
        here = torch.arange(start, start + x.shape[1], device=x.device) if positions is None else positions
        cos, sin = rotation(here, width, self.config.rope_theta)
        if valid is not None and bool(valid.all()):
            valid = None
        if sees is not None:
            valid = sees if valid is None else sees & valid[:, None]
        for block in self.body.blocks:
            if keep is not None:
                keep.append(x)
            x = block(x, cos, sin, valid, start if positions is None else positions, kv)
        x = self.body.ln_f(x)
        if keep is not None:
            keep.append(x)
        return x

    @property
    def cost(self) -> Cost:
        return Cost.of(self.body.blocks, self.config.d_model, self.config.rows)

    def head(self, hidden: Tensor) -> Tensor:
        """(..., d) -> logits (..., embedding_size)."""
        return F.linear(hidden, self.body.wte.weight) if self.config.weight_tying else self.body.ff_out(hidden)

    def forward(
        self, input_ids: Tensor | None = None, attention_mask: Tensor | None = None, inputs_embeds: Tensor | None = None,
        output_hidden_states: bool = False, **_: Any,
    ) -> MaskedLMOutput:  # fmt: skip
        keep: list[Tensor] | None = [] if output_hidden_states else None
        valid = None if attention_mask is None else attention_mask.bool()
        x = self.hidden(input_ids, valid, embeds=inputs_embeds, keep=keep)
        return MaskedLMOutput(logits=self.head(x), hidden_states=None if keep is None else tuple(keep))  # type: ignore[arg-type]
