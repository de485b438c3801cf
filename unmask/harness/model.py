"""The model `unmask` of lm-evaluation-harness: all our methods and settings as --model_args, over several ranks if need be."""

from __future__ import annotations

import atexit
import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import torch
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window, simple_parse_args_string
from torch import distributed
from tqdm import tqdm

from unmask import __version__
from unmask.decoding.algorithm import Strategy, decode
from unmask.decoding.canvas import Canvas
from unmask.decoding.methods import method
from unmask.decoding.running import run
from unmask.errors import UserError, whole
from unmask.evaluation.recipe import for_task, frequency_hash
from unmask.generation import Decoding, generations, partition
from unmask.harness.likelihood import Pair, log_likelihoods
from unmask.models.loading import load
from unmask.tasks import Task, find

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

Scored = TypeVar("Scored")

LOADING = ("device", "dtype", "adapter", "quantize", "device_map", "revision", "frequencies")
Encoded = tuple[tuple[str, str], list[int], list[int]]  # lm-eval's: a context and its continuation, as text and as ids
LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens")  # lm-eval's names for L


class Plan(NamedTuple):
    """How one request is to be answered."""

    strategy: Strategy
    decoding: Decoding
    task: Task | None  # one of ours


@register_model("unmask")
class Unmask(TemplateLM):
    """pretrained: what `unmask --model` takes. method, length, steps, temperature, seed, cfg, cache and every setting of the
    method (kappa, beta, gamma, text, at, block, tau, ...) as in `unmask eval`. batch: rows decoded together (or lm-eval's
    --batch_size). mc_num: samples of a likelihood. greedy: whether likelihood requests are also told if greedy decoding
    writes their target. And what loads the model: device, dtype, adapter, quantize, device_map, revision, frequencies."""

    def __init__(
        self, pretrained: str = "tiny", *, batch: int | str | None = None, batch_size: int | str = 1, max_batch_size: int | None = None,
        mc_num: int = 128, greedy: bool = True, **given: Any,
    ):  # fmt: skip
        super().__init__()
        batch = batch_size if batch is None else batch
        if isinstance(batch, str) and not batch.isdigit():
            raise UserError(f"unmask takes a batch of a fixed size, such as --batch_size 8, not {batch!r}")
        if type(greedy) is not bool:
            raise UserError(f"greedy is True or False, not {greedy!r}")
        loading = {name: given.pop(name) for name in LOADING if name in given}
        self.settings = {"method": "sacm", "seed": 0, **{name: _tidy(value) for name, value in given.items()}}
        self.batch, self.mc_num, self.greedy = whole("batch", int(batch), 1), whole("mc_num", mc_num, 1), greedy
        self.plan({})  # a setting the method lacks is refused before anything is loaded
        self._join()
        if loading.get("device") in (None, "cuda:0"):  # lm-eval says cuda:0 where the user says nothing
            several = self.world_size > 1 and torch.cuda.is_available() and "device_map" not in loading
            loading["device"] = f"cuda:{os.environ.get('LOCAL_RANK', self.rank)}" if several else None
        self.model = load(str(pretrained), **loading)
        self.tokenizer = self.model.tokenizer
        self.special = tuple(
            token for token in {*self.tokenizer.all_special_tokens, *self.tokenizer.get_added_vocab()} if token
        )
        self.identity = {
            "unmask": __version__, "pretrained": str(pretrained), "weights_sha256": self.model.weights_hash,
            "loading": {name: str(value) for name, value in loading.items() if name not in ("device", "adapter", "frequencies")},
            "frequency_sha256": frequency_hash(self.model),
            "dtype": str(next(self.model.module.parameters()).dtype), "settings": self.settings,
            "batch": self.batch, "mc_num": mc_num, "greedy": greedy,
        }  # fmt: skip

    @classmethod
    def create_from_arg_obj(cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None) -> Unmask:
        """--model_args win over what lm-eval passes of its own accord (device, batch_size)."""
        passed = {name: value for name, value in (additional_config or {}).items() if value is not None}
        return cls(**{**passed, **arg_dict})

    @classmethod
    def create_from_arg_string(cls, arg_string: str, additional_config: dict[str, Any] | None = None) -> Unmask:
        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

    # ------------------------------------------------------------ settings

    def plan(self, asked: Mapping[str, Any]) -> Plan:
        """What a request's gen_kwargs and our settings come to: the task's defaults, then --model_args, then the gen_kwargs.
        Only lm-eval's own names for the length and the temperature yield to --model_args: its task files set them."""
        own = {
            name: _tidy(value)
            for name, value in asked.items()
            if name not in ("until", "do_sample", "num_beams", *LENGTHS)
        }
        harness = {"temperature": own.pop("temperature", 1.0 if asked.get("do_sample") else None)}
        if asked.get("do_sample") is False:
            harness["temperature"] = None
        task = find(own.pop("task")) if "task" in own else None
        harness["length"] = task.length if task else next((asked[name] for name in LENGTHS if name in asked), None)
        if asked.get("num_beams", 1) != 1:
            raise UserError("a masked diffusion model is not decoded by beams: leave num_beams out of --gen_kwargs")
        wanted = {**harness, **self.settings, **own}
        name = wanted.pop("method")
        strategy = for_task(task, [name])[name] if task else method(name)
        options = {f.name: wanted.pop(f.name) for f in fields(Decoding) if f.name in wanted}
        decoding = Decoding(**options, stop=asked.get("until") or (), batch=self.batch)
        if not isinstance(decoding.seed, int):
            raise UserError("lm-eval takes one seed, a whole number")
        return Plan(strategy.with_(**wanted), decoding, task)

    def set_cache_hook(self, cache_hook: Any) -> None:
        """lm-eval caches answers (--use_cache) by the request alone. Here each model and set of settings gets a table of
        its own in that file, so that no other is given its answers."""
        if (kept := cache_hook.dbdict) is not None:
            name = (
                "unmask-" + hashlib.sha256(json.dumps(self.identity, sort_keys=True, default=str).encode()).hexdigest()
            )
            kept.conn.execute(f'CREATE TABLE IF NOT EXISTS "{name}" (key TEXT PRIMARY KEY, value BLOB)')
            kept.tablename = name
        super().set_cache_hook(cache_hook)

    def get_model_info(self) -> dict[str, Any]:
        """What lm-eval writes into its results."""
        return {"unmask": self.identity}

    # ------------------------------------------------------------ text

    @property
    def eot_token_id(self) -> int:
        return self.model.vocab.eot_ids[0]

    @property
    def prefix_token_id(self) -> int:
        """What comes before a text without a context."""
        return self.eot_token_id if self.tokenizer.bos_token_id is None else self.tokenizer.bos_token_id

    def templated(self, text: str) -> bool:
        """Has the chat template been put around it? Then bos is in it, if the template wants one."""
        return text.startswith(self.special)

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        if add_special_tokens is False or self.templated(string):
            return self.model.tokens(string)
        return self.model.encode(string, raw=True)

    def _encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """lm-eval moves white space at the end of the context to the target; that of a chat template stays in place."""
        if self.templated(context):
            return self.model.tokens(context), self.model.tokens(continuation)
        return super()._encode_pair(context, continuation)

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        if not self.model.chats:
            raise UserError(f"{self.model.name} has no chat template: leave out --apply_chat_template")
        begun, ended = add_generation_prompt, not add_generation_prompt
        return str(
            self.tokenizer.apply_chat_template(
                chat_history, tokenize=False, add_generation_prompt=begun, continue_final_message=ended
            )
        )

    @property
    def tokenizer_name(self) -> str:
        return self.model.name.replace("/", "__")

    # ------------------------------------------------------------ generation

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        """Decode the requests of each plan in the batches `unmask eval` would make of them, with its seeds."""
        made: dict[int, str] = {}
        prompts = [self.tok_encode(request.args[0]) for request in requests]
        plans = [self.plan(request.args[1]) for request in requests]
        groups: dict[str, list[int]] = {}
        for i, plan in enumerate(plans):
            length = plan.decoding.length or self.model.length
            self._fits(f"request {requests[i].doc_id} of {requests[i].task_name}", len(prompts[i]) + length)
            groups.setdefault(repr(plan[:2]), []).append(i)
        seeds = self._seeds(requests, plans)
        with tqdm(total=len(requests), disable=disable_tqdm or self.rank > 0, desc="Decoding") as bar:
            for group in groups.values():
                plan = plans[group[0]]
                for batch in partition([len(prompts[i]) for i in group], self.batch):
                    some = [group[k] for k in batch]
                    decoding = replace(plan.decoding, seed=[seeds[i] for i in some])
                    found = generations(self.model, [prompts[i] for i in some], plan.strategy, decoding)
                    for i, generation in zip(some, found, strict=True):
                        made[i] = generation.text
                        self.cache_hook.add_partial("generate_until", requests[i].args, generation.text)
                    bar.update(len(some))
        return [made[i] for i in range(len(requests))]

    def _seeds(self, requests: Sequence[Instance], plans: Sequence[Plan]) -> list[int]:
        """The seeds of `unmask eval`: those of the row's number, and of a further run for every repeat of a request."""
        repeats: dict[int, int] = {}
        seeds = []
        for request, plan in zip(requests, plans, strict=True):
            repeat = repeats[id(request)] = repeats.get(id(request), -1) + 1
            row = request.doc["index"] if plan.task else request.doc_id  # with --samples, doc_id counts those alone
            seeds.append((cast(int, plan.decoding.seed) + repeat) * 1_000_000 + (row or 0))
        return seeds

    def _fits(self, what: str, need: int) -> None:
        if self.model.context and need > self.model.context:
            raise UserError(
                f"{what} takes {need} tokens with its response; {self.model.name} was made for {self.model.context}"
            )

    # ------------------------------------------------------------ likelihood

    def _loglikelihood_tokens(
        self, requests: Sequence[Encoded], disable_tqdm: bool = False, **_: Any
    ) -> list[tuple[float, bool]]:
        """LLaDA's Monte-Carlo estimate, and whether greedy decoding of as many tokens writes the target."""
        pairs = [Pair(context, target) for _, context, target in requests]
        known: dict[tuple[tuple[int, ...], int], list[int]] = {}

        def finished(i: int, value: float) -> tuple[float, bool]:
            answer = value, self.greedy and self._greedy(pairs[i], known)
            self.cache_hook.add_partial("loglikelihood", requests[i][0], answer)
            return answer

        return self._likelihoods(pairs, disable_tqdm, finished)

    def loglikelihood_rolling(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[float]:
        """A text as windows of the model's context, each scored after what came before it: one token, or more for the last."""
        most = (self.model.context or 2048) - 1
        windows = []
        for request in requests:
            rolled = get_rolling_token_windows(self.model.tokens(request.args[0]), self.prefix_token_id, most, 1)
            windows.append([Pair(*make_disjoint_window(pair)) for pair in rolled])
        values = iter(
            self._likelihoods([pair for some in windows for pair in some], disable_tqdm, lambda _, value: value)
        )
        totals = [sum(next(values) for _ in some) for some in windows]
        for request, total in zip(requests, totals, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return totals

    def _likelihoods(
        self, pairs: Sequence[Pair], quiet: bool, finished: Callable[[int, float], Scored]
    ) -> list[Scored]:
        for pair in pairs:
            self._fits(f"a text of {len(pair.target)} tokens to score", len(pair.context) + len(pair.target))
        asked = {
            "samples": self.mc_num,
            "seed": self.settings["seed"],
            "batch": self.batch,
            "cfg": self.settings.get("cfg", 0.0),
        }
        found = log_likelihoods(self.model, pairs, **asked)
        shown = tqdm(found, total=len(pairs), disable=quiet or self.rank > 0, desc="Scoring")
        answers = {i: finished(i, value) for i, value in shown}
        return [answers[i] for i in range(len(pairs))]

    @torch.inference_mode()
    def _greedy(self, pair: Pair, known: dict[tuple[tuple[int, ...], int], list[int]]) -> bool:
        """Does top-probability decoding, one token per step, write the target? Choices of one question share the decode."""
        key = tuple(pair.context), len(pair.target)
        if pair.target and key not in known:
            canvas = Canvas.blank([pair.context], len(pair.target), self.model.vocab, self.model.device)
            session = self.model.denoiser(self.settings.get("cfg", 0.0)).begin(canvas)
            known[key] = run(decode(canvas, Strategy(), len(pair.target)), session).canvas.response[0].tolist()
        return not pair.target or known[key] == pair.target

    # ------------------------------------------------------------ ranks (torchrun, accelerate launch)

    def _join(self) -> None:
        """One process per rank: lm-eval hands each its share of the rows. Only small objects travel, so gloo serves any device."""
        self._device = torch.device("cpu")
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            if not distributed.is_initialized():
                distributed.init_process_group(
                    "gloo", timeout=timedelta(days=7)
                )  # the first rank to finish waits for the last
                atexit.register(distributed.destroy_process_group)
            self._rank, self._world_size = distributed.get_rank(), distributed.get_world_size()

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.world_size == 1:
            return tensor
        parts = [torch.zeros_like(tensor) for _ in range(self.world_size)]
        distributed.all_gather(parts, tensor)
        return torch.cat([torch.atleast_1d(part) for part in parts])

    def gather_object(self, obj: Any, dst: int = 0) -> list[Any] | None:
        if self.world_size == 1:
            return [obj]
        parts = [None] * self.world_size if self.rank == dst else None
        distributed.gather_object(obj, parts, dst=dst)
        return parts

    def barrier(self) -> None:
        if self.world_size > 1:
            distributed.barrier()


def _tidy(value: Any) -> Any:
    """lm-eval reads `at=-40` as a float."""
    return int(value) if isinstance(value, float) and value < 0 and value.is_integer() else value
