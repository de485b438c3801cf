"""N replicas of a model as Ray actors, on this machine or on a cluster, that complete the batches of an evaluation.

    with Workers({"name": "tiny"}, 2) as workers:
        evaluate(workers.model, task, methods, rows, pool=workers)

The driver alone reads and writes the run's folder. It has the model's outline, not its weights."""

from __future__ import annotations

import math
import os
import socket
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from unmask import __version__
from unmask.errors import UserError
from unmask.evaluation.evaluate import Batch, evaluate, run_batch
from unmask.evaluation.recipe import Options
from unmask.evaluation.store import Example
from unmask.models.loading import BUNDLED, load
from unmask.models.model import Model
from unmask.plugins import FILES

if TYPE_CHECKING:
    from typing_extensions import Self

LOST = 3  # how many workers one batch, or loading, may kill before the run stops
PATIENCE = 60  # seconds without a worker before the user is told what we are waiting for


def ray() -> Any:
    """Ray, which must be told to be quiet before it is imported."""
    for name in ("RAY_USAGE_STATS_ENABLED", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"):
        os.environ.setdefault(name, "0")
    os.environ.setdefault(
        "RAY_NUM_REDIS_GET_RETRIES", "1"
    )  # one try is enough to find out that there is no Ray cluster, not twenty
    try:
        import ray
    except ImportError:
        raise UserError('--workers needs Ray: pip install "unmask[ray]"') from None
    return ray


def connect(address: str | None, cpus: int) -> None:
    """Join the cluster at `address` ("auto": the one on this machine), or start one here that ends with this process."""
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "critical"}
    if address is None:
        options |= {"address": "local", "num_cpus": cpus, "include_dashboard": False, "object_store_memory": 2**28}
    else:
        options["address"] = address
        host, _, port = address.rpartition("://")[2].rpartition(":")
        if not port.isdigit() and address != "auto":
            raise UserError(f"--ray-address is HOST:PORT, as in 10.0.0.1:6379, or auto; not {address!r}")
        if port.isdigit():  # Ray itself would try for minutes
            try:
                socket.create_connection((host, int(port)), timeout=5).close()
            except OSError:
                raise UserError(f"there is no Ray cluster at {address}; `ray start --head` starts one") from None
    library = ray()
    library._private.worker._worker_logs_enabled = (
        False  # it would report deaths on standard output, which is the user's
    )
    try:
        try:
            library.init(**options)
        except Exception:  # it gives up after 15 s, and a busy machine may need 20: try once more
            if address is not None:
                raise
            library.shutdown()
            library.init(**options)
    except Exception as error:  # Ray has many ways to say no
        why = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        if address is None:
            raise UserError(f"Ray does not start on this machine; is it very busy? ({why})") from None
        raise UserError(
            f"no Ray cluster could be joined at {address}; if it has a token, set RAY_AUTH_TOKEN ({why})"
        ) from None


class Worker:
    """A replica in its own process."""

    def load(self, loading: Mapping[str, Any], threads: int, known: Mapping[str, str]) -> None:
        import torch

        torch.set_num_threads(threads)
        self.model = load(**loading)
        for what, here in fingerprint(self.model).items():
            if here != known[what]:
                raise UserError(
                    f"the {what} of {loading['name']} on {socket.gethostname()} is {here:.12}, and {known[what]:.12} here"
                )

    def run_batch(self, batch: Batch) -> list[Example]:
        return run_batch(self.model, batch)


def fingerprint(model: Model) -> dict[str, str]:
    """What must be the same on every machine."""
    return {"weights hash": model.weights_hash, "unmask version": __version__}


class Cluster:
    """Places for `count` replicas of a model on Ray, here or at `address`; `loading` are the arguments of `unmask.load`, `model` is
    its outline. On CPUs a replica has `threads`, else OMP_NUM_THREADS, else 1, so that results do not depend on how many there
    are; if there are GPUs, each has one of its own. `flag` is how the user asked for them."""

    def __init__(
        self, loading: Mapping[str, Any], count: int, address: str | None = None, threads: int | None = None, flag: str = "--workers"
    ):  # fmt: skip
        one = flag.strip("-").removesuffix("s")
        if count < 1:
            raise UserError(f"{flag} is at least 1, not {count}")
        if loading.get("device_map"):
            raise UserError(
                f"--device-map spreads one model over devices and {flag} puts one on each: give one of them"
            )
        if ":" in str(loading.get("device") or ""):
            raise UserError(f"each {one} has a device of its own: --device cuda with {flag}, not {loading['device']}")
        self.count, self.address, self.flag = count, address, flag
        self.loading = {**loading, **{key: _anywhere(loading.get(key)) for key in ("name", "adapter", "frequencies")}}
        self.threads = threads or int((os.environ.get("OMP_NUM_THREADS") or "1").split(",")[0])
        self.name = str(loading["name"])  # as it was typed: it is part of a run's recipe

    def __enter__(self) -> Self:
        self.ray = ray()
        self.owner = not self.ray.is_initialized()
        if self.owner or self.address:
            connect(self.address, self.count * self.threads)
        try:
            self._place()
            self.model = replace(outline(self.loading), name=self.name)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self.owner:
            self.ray.shutdown()

    def _place(self) -> None:
        """One GPU each where the cluster has some and no other device was asked for."""
        held = self.ray.cluster_resources()
        device = self.loading.get("device") or _device(bool(held.get("GPU")))
        self.loading["device"] = device
        self.needs = {"num_cpus": self.threads, "num_gpus": int(str(device) == "cuda")}
        for name, need in (("CPU", self.threads), ("GPU", self.needs["num_gpus"])):
            if (have := int(held.get(name, 0))) < need * self.count:
                raise UserError(
                    f"the cluster has {have} {name}s: enough for {self.flag} {have // need}, not {self.count}"
                )

    def carry(self) -> None:
        """What came from FILE.py travels by value from here on: another machine may not have the file."""
        for name in FILES:
            self.ray.cloudpickle.register_pickle_by_value(sys.modules[name])


class Workers(Cluster):
    """A pool of `count` workers, for `evaluate`."""

    def __init__(self, loading: Mapping[str, Any], count: int, address: str | None = None, threads: int | None = None):
        super().__init__(loading, count, address, threads)
        self.idle: list[Any] = []
        self.busy: dict[Any, tuple[Any, Batch | str]] = {}  # a promise -> who gave it, and for what

    def __enter__(self) -> Self:
        super().__enter__()
        for _ in range(self.count):
            self._start()
        return self

    def __exit__(self, *_: object) -> None:
        for worker in [*self.idle, *(worker for worker, _ in self.busy.values())]:
            self.ray.kill(worker)
        self.idle, self.busy = [], {}
        super().__exit__()

    def _start(self) -> None:
        worker = self.ray.remote(**self.needs)(Worker).remote()
        self.busy[worker.load.remote(self.loading, self.threads, fingerprint(self.model))] = worker, "loading"

    @property
    def about(self) -> dict[str, Any]:
        """For the record of a run."""
        return {
            "device": str(self.loading["device"]),
            "workers": self.count,
            "threads": self.threads,
            "ray": self.ray.__version__,
        }

    def __call__(self, batches: Iterable[Batch]) -> Iterator[list[Example]]:
        """The examples of each batch, as they are done. Whoever is idle takes the next; what a dead worker had is done again."""
        from ray.exceptions import RayError, RayTaskError

        self.carry()
        again: list[Batch] = []
        done: list[list[Example]] = []
        left = iter(batches)
        lost: Counter[int | str] = Counter()
        try:
            while True:
                while self.idle and (batch := again.pop() if again else next(left, None)):
                    worker = self.idle.pop()
                    self.busy[worker.run_batch.remote(_portable(batch))] = worker, batch
                yield from done  # while the workers work
                done.clear()
                if self.idle and not any(isinstance(job, Batch) for _, job in self.busy.values()):
                    return
                if not self.busy:
                    raise UserError(f"no worker could load {self.model.name}")
                ready, _ = self.ray.wait(list(self.busy), timeout=PATIENCE)
                if not ready:
                    if all(job == "loading" for _, job in self.busy.values()):
                        warnings.warn(
                            "no worker is ready yet: the cluster is full, or the model takes long to load", stacklevel=2
                        )
                    continue
                worker, job = self.busy.pop(ready[0])
                try:
                    result = self.ray.get(ready[0])
                except RayTaskError as error:  # the worker lives, its work failed
                    if job != "loading":
                        self.idle.append(worker)
                    if job != "abandoned":
                        raise error.cause if isinstance(error.cause, UserError) else error from None
                except RayError:  # the worker is gone
                    warnings.warn(
                        "a worker died; another takes its place" + " and its batch" * isinstance(job, Batch),
                        stacklevel=2,
                    )
                    self._start()
                    if isinstance(job, Batch):
                        again.append(job)
                    lost[job.number if isinstance(job, Batch) else job] += 1
                    if max(lost.values()) == LOST:
                        raise UserError(_obituary(job)) from None
                else:
                    self.idle.append(worker)
                    if isinstance(job, Batch):
                        done.append(result)
        finally:  # whatever ended this run, its unfinished batches are not the next one's
            for promise, (worker, job) in self.busy.items():
                if isinstance(job, Batch):
                    self.busy[promise] = worker, "abandoned"


def _device(gpus: bool) -> str:
    import torch

    return "cuda" if gpus else "mps" if torch.backends.mps.is_available() else "cpu"


def default_device(address: str | None) -> str:
    """The device that workers get where none is asked for: a GPU if the cluster has some; without a cluster, if this machine does."""
    if address is None:
        import torch

        return _device(torch.cuda.is_available())
    connect(address, 0)
    try:
        return _device(bool(ray().cluster_resources().get("GPU")))
    finally:
        ray().shutdown()


def outline(loading: Mapping[str, Any]) -> Model:
    """The model without its weights: what the driver counts tokens, hashes files and names the run with."""
    dtype = loading.get("dtype") or ("float32" if loading["device"] == "cpu" else "auto")
    same = {key: loading.get(key) for key in ("revision", "frequencies")}
    model = load(loading["name"], **same, dtype=dtype, device_map={"": "meta"})
    return replace(
        model, adapter=Path(loading["adapter"]) if loading.get("adapter") else None
    )  # its files are hashed too


def _anywhere(path: str | Path | None) -> str | Path | None:
    """A path that means the same in another process's folder; a name, of a bundled model too, stays a name."""
    if path is None or (BUNDLED / str(path)).is_dir() or not Path(path).expanduser().exists():
        return path
    return str(Path(path).expanduser().absolute())


def _portable(batch: Batch) -> Batch:
    """With its pictures themselves: another machine may not have the files."""
    if batch.images is None:
        return batch
    return replace(batch, images=[image.read_bytes() if isinstance(image, Path) else image for image in batch.images])


def _obituary(job: Batch | str) -> str:
    if not isinstance(job, Batch):
        return f"{LOST} workers died while {job} (not enough memory?); try fewer --workers"
    rows = ", ".join(job.task.identify(row, i) for i, row in zip(job.indices, job.rows, strict=True))
    return f"{LOST} workers died over rows {rows} (not enough memory?); what was finished is kept, the same command resumes"


def speedup(rows: int = 32, repeats: int = 2) -> float | None:
    """How many times as fast 2 workers are as 1, each with 1 thread: `evaluate` on the bundled model, workers loaded, the
    best times of rounds that take turns. None without Ray or a second core."""
    from unmask.decoding.methods import method
    from unmask.tasks import find

    if (os.cpu_count() or 1) < 2:
        return None
    task = find("cups")
    data, few = task.load("tuning", limit=rows), task.load("tuning", limit=16)
    best: dict[int, float] = {}
    try:
        connect(None, cpus=3)
    except UserError:
        return None
    try:
        with ExitStack() as stack, TemporaryDirectory() as folder:
            tiny = {"name": "tiny", "device": "cpu"}
            pools = [stack.enter_context(Workers(tiny, count, threads=1)) for count in (1, 2)]
            for turn in range(-1, repeats):  # the first is for loading: one batch per worker
                for pool in pools:
                    begun = time.perf_counter()
                    out = f"{folder}/{turn}-{pool.count}"
                    evaluate(
                        pool.model, task, {"sacm": method("sacm")}, few if turn < 0 else data, Options(), out, pool=pool
                    )
                    if turn >= 0:
                        best[pool.count] = min(best.get(pool.count, math.inf), time.perf_counter() - begun)
    finally:
        ray().shutdown()
    return best[1] / best[2]
