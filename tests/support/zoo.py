"""Which rules say what a recorded decoder of the zoo does: a record's parameters -> a Strategy, its steps, and the wrappers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from unmask.decoding.algorithm import Strategy
from unmask.decoding.rules import focus, lengths, published, readiness, revising, schedules, selection, tokens
from unmask.decoding.rules.confidence import NegativeEntropy, TopMargin
from unmask.models.denoisers import Plain, PublishedGuided


@dataclass
class Plan:
    strategy: Strategy
    steps: int | None = None
    wrap: Callable[[Any], Any] = Plain  # what makes logits of the module
    pinned: dict[int, int] = field(default_factory=dict)  # tokens written beforehand, by slot


def plan(record: dict) -> Plan:
    """By the rules of the zoo's rows wherever the laws allow it, else by those of rules/published.py."""
    p = record["params"]
    length = p.get("gen_length") or p.get("max_new_tokens") or p.get("generate_length") or p["initial_gen_length"]
    size = p.get("block_length") or length
    return PLANS[record["decoder"]](p, length, size, record)


def hollow(record: dict) -> bool:
    """Some forward changed nothing."""
    return any(all(set(row) == {"pos", "tok"} and not row["pos"] for row in step["rows"]) for step in record["steps"])


def blocks(length: int, size: int) -> int | None:
    return size if size < length else None


def klass(p: dict, length: int, size: int, record: dict) -> Plan:
    dream = record["decoder"] == "klass.dream_sample"
    left = {"masks_left", "quirk_masks_left"} & set(record["tags"])
    stable = readiness.Stable(
        p["conf_threshold"], p["kl_threshold"], p["kl_history_length"], p["unmask_strategy"],
        schedules.Fixed(1) if dream else published.Table() if p["steps"] < length else schedules.Even(),
    )  # fmt: skip
    return Plan(
        Strategy(select=stable, block=blocks(length, size), focus=published.Hurried() if left else None), p["steps"]
    )


def prophet(p: dict, length: int, size: int, record: dict) -> Plan:
    pins = {int(at): token for at, token in (p["constraints"] or {}).items() if int(at) < length}
    rules: tuple = ()
    if p["analyze_gap"] and p["answer_start_pos"] is not None:
        lines = (p["early_exit_thresholds"][third] for third in ("early", "mid", "late"))
        at = p["answer_start_pos"] - len(record["prompt_ids"][0])
        rules = (published.Unhurried(*lines, start=at) if hollow(record) else revising.EarlyAnswer(*lines, start=at),)
    elif hollow(record):
        rules = (published.Unhurried(math.inf, math.inf, math.inf, start=0),)
    return Plan(Strategy(block=blocks(length, size), revise=rules), p["steps"], pinned=pins)


def dinfer(p: dict, length: int, size: int, record: dict) -> Plan:
    kind = record["decoder"].split(".")[1]
    select = (
        readiness.Hierarchy(p["threshold"], p["low_threshold"])
        if kind == "hierarchy"
        else selection.Threshold(p["threshold"])
    )
    read = (
        tokens.Credit(alpha=p["credit_alpha"], gamma=p["boost_gamma"], beta=p["decay_beta"])
        if kind == "credit"
        else tokens.Argmax()
    )
    s = Strategy(read, select=select, revise=(revising.FillEOT(),), block=blocks(length, size))
    aligned, batch = p["start_block_align"], len(record["prompt_ids"]) > 1
    if aligned or not p["early_stop"]:
        shared = batch or not p["early_stop"]
        view = published.Together(size, aligned, not p["early_stop"]) if shared else focus.Frontier(size, aligned)
        s = replace(s, block=None, focus=view)
    if not p["early_stop"]:
        s = replace(s, revise=())
    elif batch and any(record["eos_id"] in row[-length:] for row in record["final_ids"]):
        s = replace(s, revise=(published.FillEOTTogether(),))
    if hollow(record):
        s = replace(s, revise=(*s.revise, published.Unrolled(p["maximum_unroll"], p["expected_tpf"])))
    return Plan(s)


def dus(p: dict, length: int, size: int, record: dict) -> Plan:
    if record["decoder"] == "dus.generate_scheduled":
        rule = readiness.Levels(
            p["scheduler"],
            p["base"],
            p["base_skip"],
            p["confidence_threshold"] if p["remasking"] == "low_confidence" else 0.0,
        )
        if not {"quirk_masks_left", "quirk_high_entropy"} & set(record["tags"]):
            return Plan(Strategy(select=rule, block=blocks(length, size)))
        if p["remasking"] == "high_entropy":
            rule = published.LostLevels(p["scheduler"], p["base"], p["base_skip"], certain=p["confidence_threshold"])
        else:
            rule = published.LostLevels(p["scheduler"], p["base"], p["base_skip"], rule.tau)
        steps = rule.bound(size, 0) * (length // size)
        return Plan(Strategy(select=rule, block=blocks(length, size), focus=published.Hurried()), steps)
    view = published.Hurried() if "quirk_masks_left" in record["tags"] else None
    then = selection.EntropyBound(p["gamma"] * math.log(2)) if "gamma" in p else selection.Threshold(p["tau"])
    s = Strategy(select=readiness.Spaced(then, p["start_stride"]), block=blocks(length, size), focus=view)
    return Plan(replace(s, confidence=NegativeEntropy()) if "gamma" in p else s, p["steps"])


def leap(p: dict, length: int, size: int, record: dict) -> Plan:
    relaxed = p["threshold"] if p["relaxed_threshold"] is None else p["relaxed_threshold"]
    return Plan(Strategy(select=readiness.Leap(p["threshold"], relaxed, p["radius"]), block=blocks(length, size)))


def wino(p: dict, length: int, size: int, record: dict) -> Plan:
    return Plan(
        Strategy(
            select=readiness.Wide(p["threshold"]),
            revise=(revising.Verify(p["threshold_back"]),),
            block=blocks(length, size),
        )
    )


def rcr(p: dict, length: int, size: int, record: dict) -> Plan:
    confidence = {"entropy": NegativeEntropy(), "topk_margin": TopMargin()}.get(p["conf_alg"])
    s = Strategy(
        select=selection.Everything(),
        revise=(revising.Refine(p["mode"]),),
        block=blocks(length, size),
        focus=focus.Behind(),
    )
    s = replace(s, confidence=confidence or s.confidence)
    n = length // size
    return Plan(
        replace(s, revise=(*s.revise, published.Hollow())) if hollow(record) else s, max(1, p["steps"] // n) * n
    )


def saber(p: dict, length: int, size: int, record: dict) -> Plan:
    if "n" in p:
        s = Strategy(
            select=readiness.AboveMean(p["n"]), revise=(revising.Backtrack(p["n"]),), block=blocks(length, size)
        )
        return Plan(replace(s, focus=focus.Behind()))
    s = Strategy(tokens.EndPenalty(weight=p["eos_penalty"], eps=p["eps"]), select=readiness.AboveMean(2, first=True))
    return Plan(replace(s, revise=(revising.Backtrack(2, "current"),)), p["steps"])


def core(p: dict, length: int, size: int, record: dict) -> Plan:
    kind = published.HollowReplace if p["steps"] // (length // size) > size else revising.Replace
    rule = kind(p["remask_k"], p["revise_every"], p["candidate_m"], p["joint_reeval"])
    read = (
        tokens.ForbidEOT(every=True)
        if p["confidence_eos_eot_inf"]
        else tokens.ForbidEOT()
        if p["logits_eos_inf"]
        else tokens.Argmax()
    )
    s = Strategy(read, revise=(rule,), block=blocks(length, size))
    return Plan(replace(s, confidence=TopMargin()) if p["base_masking"] == "margin" else s, p["steps"])


def adablock(p: dict, length: int, size: int, record: dict) -> Plan:
    line = math.inf if p["delimiter_threshold"] is None else p["delimiter_threshold"]
    view = focus.AdaBlock(p["init_block_length"], line, tuple(p["delimiter_ids"]))
    return Plan(Strategy(select=selection.Threshold(p["threshold"]), focus=view))


def dsb(p: dict, length: int, size: int, record: dict) -> Plan:
    view = focus.Sliding(p["block_length"], None if p["max_block_length"] == -1 else p["max_block_length"])
    select: Any = selection.Quota(schedules.Across())
    if p["factor"] is not None:
        select = selection.Factor(p["factor"])
    elif p["threshold"] is not None:
        select = selection.Threshold(p["threshold"])
    return Plan(Strategy(select=select, focus=view), p["steps"])


def dcd(p: dict, length: int, size: int, record: dict) -> Plan:
    fixed = p["decode_algo"].endswith("fixed")
    select = selection.Quota(schedules.Fixed(p["decode_param"])) if fixed else selection.Threshold(p["decode_param"])
    s = Strategy(select=select, revise=(revising.PadEOT(p["pad_id"]),))
    if p["decode_algo"].startswith("entropy"):
        s = replace(s, confidence=NegativeEntropy())
    if p["window_type"] == "static":
        return Plan(replace(s, revise=(published.PadBlocks(p["pad_id"]),), block=blocks(length, p["block_size"])))
    kind = published.SharedSliding if len(record["prompt_ids"]) > 1 else focus.Sliding
    return Plan(replace(s, focus=kind(p["initial_window_length"], p["max_window_length"])))


def daedal(p: dict, length: int, size: int, record: dict) -> Plan:
    kind = published.ExpandTogether if len(record["prompt_ids"]) > 1 else lengths.Expand
    rule = kind(
        p["max_gen_length"], p["expansion_factor"], p["eos_confidence_threshold"], p["expand_eos_confidence_threshold"],
        p["low_conf_threshold"], p["eos_check_tokens"],
    )  # fmt: skip
    return Plan(
        Strategy(select=selection.Threshold(p["high_conf_threshold"]), focus=focus.Frontier(size), revise=(rule,))
    )


def rho_eos(p: dict, length: int, size: int, record: dict) -> Plan:
    rule = lengths.Density(
        p["max_gen_length"], p["expansion_factor"], p["low_density_threshold"], p["high_density_threshold"],
        p["eos_check_tokens"], p["scheduler"],
    )  # fmt: skip
    s = Strategy(select=selection.Threshold(p["high_conf_threshold"]), focus=focus.Onward(size), revise=(rule,))
    return Plan(s, wrap=(lambda module: PublishedGuided(Plain(module), p["cfg_scale"])) if p["cfg_scale"] else Plain)


PLANS = {
    "adablock.generate_adablock": adablock,
    "dsb.generate_dsb": dsb,
    "dcd.window_bidirectional_decode": dcd,
    "daedal.generate": daedal,
    "rho_eos.generate": rho_eos,
    "wino.decoding_wino": wino,
    "mdpo.diffusion_generate": rcr,
    "saber.generate_with_saber": saber,
    "saber_dream.diffusion_generate": saber,
    "core.generate": core,
    "klass.stable_confident_decode": klass,
    "klass.dream_sample": klass,
    "prophet.generate": prophet,
    "dinfer.threshold": dinfer,
    "dinfer.credit": dinfer,
    "dinfer.hierarchy": dinfer,
    "dus.generate_scheduled": dus,
    "dus.generate_eb_sampler_spaced": dus,
    "dus.generate_cb_sampler_spaced": dus,
    "dawn.generate(local_leap)": leap,
}
