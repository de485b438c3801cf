"""A model of your own: any PyTorch module that turns token ids into logits.

    python examples/wrapped_model.py

Its forward takes ids (B, N) and returns logits (B, N, V), as a tensor, as the first of a tuple, or as `.logits`. If it takes an
attention_mask, it is given one; if not, prompts of unequal length are run one by one.
"""

import torch

import unmask


class Denoiser(torch.nn.Module):
    """Far too small to be of use: every token is guessed from the mean of all of them."""

    def __init__(self, vocabulary: int, width: int = 32):
        super().__init__()
        self.embed = torch.nn.Embedding(vocabulary, width)
        self.head = torch.nn.Linear(width, vocabulary)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(ids)  # (B, N, width)
        return self.head(hidden + hidden.mean(1, keepdim=True))


def model() -> unmask.Model:
    torch.manual_seed(0)
    tokenizer = unmask.load("tiny").tokenizer  # any tokenizer of transformers
    module = Denoiser(len(tokenizer))
    mask, end = tokenizer.convert_tokens_to_ids(["<|mdm_mask|>", "<|endoftext|>"])
    return unmask.wrap(
        module, tokenizer, mask_id=mask, eot_ids=[end]
    )  # shift=True if the logits are next-token aligned


if __name__ == "__main__":
    mine = model()
    print(unmask.generate(mine, "Where is the key?", "sacm", length=32).text)
