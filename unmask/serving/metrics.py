"""What the engine and the API are watched by: a Prometheus registry, filled by name."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

TIMES = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class Metrics:
    """`metrics("waited", 0.3)`: one more observation."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.known: dict[str, Gauge | Counter | Histogram] = {
            "waiting": Gauge("unmask_queue_depth", "requests that wait for their turn", registry=registry),
            "forward": Histogram("unmask_forward_rows", "rows of a forward", buckets=(1, 2, 4, 8, 12, 16, 24, 32, 64), registry=registry),
            "padding": Histogram("unmask_forward_padding", "its share of padding", buckets=(0, 0.1, 0.2, 0.3, 0.4, 0.5), registry=registry),
            "forwards": Counter("unmask_forwards", "forwards made", registry=registry),
            "tokens": Counter("unmask_tokens", "tokens returned, end-of-text not counted", registry=registry),
            "requests": Counter("unmask_requests", "requests answered", registry=registry),
            "refused": Counter("unmask_refused", "requests refused or failed", registry=registry),
            "cancelled": Counter("unmask_cancelled", "requests whose client was gone before the end", registry=registry),
            "again": Counter("unmask_asked_again", "times a replica died and its request was asked of another", registry=registry),
            "round": Histogram("unmask_round_seconds", "one step of everyone", buckets=TIMES, registry=registry),
            "waited": Histogram("unmask_waiting_seconds", "from arrival to the first forward", buckets=TIMES, registry=registry),
            "first": Histogram("unmask_first_text_seconds", "from arrival to the first settled text", buckets=TIMES, registry=registry),
            "decoded": Histogram("unmask_decoding_seconds", "from the first forward to the end", buckets=TIMES, registry=registry),
            "latency": Histogram("unmask_latency_seconds", "from arrival to the end", buckets=TIMES, registry=registry),
        }  # fmt: skip

    def __call__(self, name: str, value: float) -> None:
        metric = self.known[name]
        if isinstance(metric, Gauge):
            metric.set(value)
        elif isinstance(metric, Counter):
            metric.inc(value)
        else:
            metric.observe(value)
        if name == "forward":
            self("forwards", 1)

    def page(self) -> bytes:
        return generate_latest(self.registry)
