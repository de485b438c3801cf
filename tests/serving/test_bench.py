"""`unmask bench serve`, in small: a real server is asked, and every aim is in the table."""

from __future__ import annotations

from unmask.tools import bench_serve


def test_clients_are_timed_and_memory_is_read():
    with bench_serve.server("--batch", "4") as (where, _):
        speed, took = bench_serve.crowd(where, 3, 2, length=16, steps=2)
        assert len(took) == 6 and min(took) > 0 and speed > 0
        assert 0 < bench_serve.behind(where, 16) < 60
    grown = bench_serve.grown(2, 16, requests=4)
    assert grown is None or 0 <= grown < 2**30


def test_every_aim_is_in_the_table():
    lines = bench_serve.table(dict.fromkeys(bench_serve.AIMS, 1.5) | {"memory": None}).splitlines()
    assert len(lines) == 2 + len(bench_serve.AIMS) and lines[2].split("|")[3].strip() == "1.50"
