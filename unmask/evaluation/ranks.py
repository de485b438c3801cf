"""`torchrun` and `accelerate launch`: every rank holds a replica; rank 0 deals out batches in rounds, takes part, and writes."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from unmask.errors import UserError
from unmask.evaluation.evaluate import Batch, Pool, run_batch
from unmask.evaluation.store import Example

if TYPE_CHECKING:
    from unmask.models.model import Model


def launched() -> bool:
    return {"RANK", "LOCAL_RANK", "MASTER_ADDR"} <= os.environ.keys() and int(os.environ.get("WORLD_SIZE", 1)) > 1


@contextmanager
def ranks(loading: Mapping[str, Any]) -> Iterator[tuple[Model, Pool]]:
    """On rank 0: the model and the pool of all ranks. The others work until it is done, and end."""
    import torch
    from torch import distributed

    from unmask.models.loading import load

    device = loading.get("device")
    if torch.cuda.is_available() and device in (None, "cuda"):
        device = f"cuda:{os.environ['LOCAL_RANK']}"
    model = load(**{**loading, "device": device})
    distributed.init_process_group("gloo", timeout=timedelta(days=7))  # a round takes as long as its slowest batch
    if distributed.get_rank():
        while turn(model) != "done":
            pass
        sys.exit(0)
    try:
        yield model, partial(dealt, model)
    finally:
        with suppress(RuntimeError):  # a rank may be dead
            turn(model, ["done"] * distributed.get_world_size())


def dealt(model: Model, batches: Iterable[Batch]) -> Iterator[list[Example]]:
    from torch.distributed import get_world_size

    left, world = iter(batches), get_world_size()
    while some := list(islice(left, world)):
        try:
            pickle.dumps(some[0])
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise UserError(
                f"a task for several ranks is made of functions with names, not of lambdas ({error})"
            ) from None
        try:
            results = turn(model, [*some, *[None] * (world - len(some))])
        except RuntimeError as error:  # gloo: the connection was closed
            raise UserError(
                f"a rank is gone ({str(error)[:100]}); what was finished is kept, the same command resumes"
            ) from None
        for result in results[: len(some)]:
            if isinstance(result, Exception):
                raise result
            yield result


def turn(model: Model, jobs: list[Batch | str | None] | None = None) -> Any:
    """One round: every rank gets its job from rank 0, which gets all the results."""
    from torch import distributed

    job: list[Any] = [None]
    distributed.scatter_object_list(job, jobs)
    if job[0] == "done":
        return "done"
    try:
        made: Any = run_batch(model, job[0]) if job[0] else None
    except Exception as error:  # for rank 0 to raise
        made = error
    every = [None] * distributed.get_world_size() if jobs else None
    distributed.gather_object(made, every)
    return every
