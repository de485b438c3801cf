"""What is known about a method besides its recipe: its family, one plain line, where it was read, what it needs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class About:
    """What `unmask methods` says about a row."""

    family: str  # a key of FAMILIES
    words: str  # one line in plain words
    source: str = ""  # repository, file and commit it was read in; empty where only its paper's rule was used
    needs: tuple[
        str, ...
    ] = ()  # memory (V numbers per masked slot), forwards (its own), length (changes), an anchor, ...
    pinned: str = ""  # the `decoder` of the recordings in tests/golden that hold it; empty: worked by hand


FAMILIES = {
    "paper": "The paper's main table",
    "variant": "Variants of it, and SACM beyond the paper",
    "stable": "Ready when stable",
    "revoke": "Take back what was decoded",
    "window": "Windows that move",
    "length": "Responses that grow or are cut",
    "small": "Small rules",
}
LLADA, FAST, PC = "ML-GSAI/LLaDA generate.py", "NVlabs/Fast-dLLM", "NEUIR/PC-Sampler"

ABOUT = {
    "semi-ar": About("paper", "blocks from left to right, the likeliest slots of a block first", LLADA, pinned="llada.generate"),
    "fast-dllm": About("paper", "the same, and every slot above a threshold at once", FAST, pinned="fast_dllm.generate"),
    "uniform": About("paper", "a random order", LLADA, pinned="llada.generate"),
    "top-probability": About("paper", "the likeliest token's slot first: plain decoding", LLADA, pinned="llada.generate"),
    "top-margin": About("paper", "the slot whose two best tokens differ most first", PC, pinned="pc_sampler.generate_with_margin"),
    "remdm": About("paper", "decodes, then opens the least sure slots again", PC, ("forwards",), "pc_sampler.generate_with_remdm"),
    "eot-suppression": About("paper", "slots that would end the text come last", LLADA, pinned="llada.generate"),
    "template-infilling": About("paper", 'fixed pieces, "Step 1:" to "The answer is:", with room between them'),
    "uncode": About("paper", "rare tokens and early slots first", PC, ("a frequency table",), "pc_sampler.generate_with_pc_sampler"),
    "rainbow-padding": About("paper", "plain decoding with a model trained on another padding", "", ("its own checkpoint",)),
    "suffix-anchor": About("paper", 'plain decoding with "The answer is" pinned near the end', "arXiv 2605.28181"),
    "sacm": About("paper", "the anchor, and confidence damped near it, less and less as decoding goes on", "arXiv 2605.28181"),
    "left-to-right": About("variant", "one slot after the other"),
    "sacm-support": About("variant", "SACM, and a slot is trusted as far as the text beside it stands", "unmask's own"),
    "sacm-support-eb": About("variant", "the same, as many slots at once as an entropy budget allows", "unmask's own"),
    "sacm-first": About("variant", "SACM around an anchor at the front: the answer is written first and decoded last", "unmask's own"),
    "sacm-first-support": About("variant", "the same, with support", "unmask's own"),
    "sacm-first-decay": About("variant", "the same, with UNCODE's preference for early slots"),
    "sacm-conv": About("variant", "SACM, and a slot is trusted by how many settled slots are near it (Conv)"),
    "sacm-density": About("variant", "SACM, and a slot is trusted by the share of settled slots around it (d2Cache)"),
    "sacm-decay": About("variant", "SACM with UNCODE's preference for early slots"),
    "sacm-margin": About("variant", "SACM by the margin of the two best tokens"),
    "entropy": About("variant", "the slot with the lowest entropy first", PC, pinned="pc_sampler.generate_with_entropy"),
    "certainty": About("variant", "the same as a confidence from 0 to 1, which modifiers can multiply"),
    "eb-sampler": About("variant", "as many slots at once as an entropy budget allows", PC, pinned="pc_sampler.generate_with_eb_sampler"),
    "fast-dllm-factor": About("variant", "Fast-dLLM's other rule: more at once if they are surer", FAST, pinned="fast_dllm.generate"),
    "eot-forbidden": About("variant", "end-of-text is never written", LLADA, pinned="llada.generate"),
    "remdm-official": About("variant", "ReMDM as its authors publish it: samples, blocks of 32", "kuleshov-group/remdm"),
}  # fmt: skip
