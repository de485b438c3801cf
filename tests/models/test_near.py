"""The near cache: what it runs, where it gives plain decoding's tokens, and what its work is."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import checkpoints
from support.scripted import V, canvas, decoded, encode, fitted
from torch.utils.flop_counter import FlopCounterMode

import unmask
from unmask import METHODS, Canvas, Strategy, UserError
from unmask.decoding.reading import Ask
from unmask.decoding.rules.focus import Frontier
from unmask.decoding.rules.lengths import Density
from unmask.decoding.rules.remasking import Remask
from unmask.decoding.rules.revising import Replace
from unmask.decoding.rules.schedules import Fixed
from unmask.decoding.rules.selection import Factor, Quota, Threshold
from unmask.decoding.rules.tokens import Gumbel
from unmask.decoding.running import answer, run
from unmask.generation import plain_work
from unmask.models import layers
from unmask.models.denoisers import Cached, Guided, Plain, chain
from unmask.models.lavida import Seeing
from unmask.models.near import Near, _Nearing

PROMPTS = ["Tom has", "What is 12 * 7? Tom has 3 apples and", "Dear Ada,"]


@pytest.fixture(scope="module", params=["llada", "dream"])
def model(request, tmp_path_factory) -> unmask.Model:
    made = unmask.load(getattr(checkpoints, request.param)(tmp_path_factory.mktemp("near") / request.param))
    size = made.module.head(torch.zeros(1, made.module.config.hidden_size)).shape[-1]
    return replace(made, vocab=replace(made.vocab, frequency=torch.full((size,), 1 / size)))


class Blind:
    """A module whose slots do not see each other: logits depend on a slot's own token and place. Keeps what it was run on.

    Rows are told apart by how much padding is before them."""

    def __init__(self, shifted: bool = False):
        self.shifted, self.ran = shifted, []
        self.table = torch.randn(V, 64, V, generator=torch.Generator().manual_seed(0)) * 3

    def hidden(self, ids, valid, *, start=0, kv=None, positions=None):
        here = torch.arange(start, start + ids.shape[1]).expand(len(ids), -1) if positions is None else positions
        padding = valid.long().argmax(1)  # on the left
        self.ran.append({int(p): sorted(set(row.tolist())) for p, row in zip(padding, here, strict=True)})
        return torch.stack((ids, here - padding[:, None]), -1).float()

    def head(self, hidden):
        token, place = hidden.long().unbind(-1)
        return self.table[token, place.clamp(min=0)].clone()


def start(strategy: Strategy, prompts, length: int) -> tuple[Strategy, Canvas]:
    strategy = fitted(strategy, -4)
    return strategy, strategy.prepare(canvas(length, prompts), encode)


# ---------------------------------------------------------------- what is run


@settings(max_examples=150, deadline=None)
@given(
    st.integers(1, 9), st.integers(1, 3), st.integers(0, 4), st.integers(0, 3), st.integers(0, 3), st.integers(0, 4),
    st.booleans(), st.integers(0, 10**6),
)  # fmt: skip
def test_exactly_these_slots_are_run(length, rows, best, near, again, refresh, shifted, seed):
    """Any canvas, any commits and reopened slots, rows that ask and rows that do not, against the definition in words."""
    best = best or 1 - min(near, 1)
    draw = torch.Generator().manual_seed(seed)

    def chance(p: float) -> torch.Tensor:
        return torch.rand(rows, length, generator=draw) < p

    page = canvas(length, [[5] * (rows - r) for r in range(rows)])
    some = chance(0.2) & (torch.arange(length) > 0)  # not all of a row: it would be done, and leave
    page = replace(page, fixed=some).with_response(torch.where(chance(0.6), 0, 7))
    page = page.with_response(torch.where(page.fixed, 6, page.response))
    session = _Nearing(Near(module := Blind(shifted), best, near, again, refresh), page)
    turn, known, last, since = [0] * rows, [set() for _ in range(rows)], [None] * rows, [{} for _ in range(rows)]
    for _ in range(6):
        score, asked = torch.rand(rows, length, generator=draw), torch.rand(rows, generator=draw) < 0.8
        page = page.with_response(torch.where(chance(0.2) & ~page.fixed, torch.where(page.masked, 8, 0), page.response))
        page = page.with_response(torch.where(~page.fixed & ~page.masked.any(1, keepdim=True), 0, page.response))
        where = torch.where(chance(0.3), page.real, page.masked) & asked[:, None] & chance(0.9)
        wanted: dict[int, list[int]] = {}
        for row in where.any(1).nonzero().squeeze(1).tolist():
            now, open_ = page.response[row].tolist(), (page.masked & ~page.fixed)[row].tolist()
            changed = {i for i in range(length) if last[row] is not None and now[i] != last[row][i]}
            since[row].update(dict.fromkeys(changed, turn[row]))
            ask = {i for i in range(length) if where[row, i]}
            ranked = sorted((i for i in ask if open_[i]), key=lambda i: (-float(score[row, i]), i))
            slots = {i for i, when in since[row].items() if turn[row] - when < again}
            slots |= {i for i in range(length) if open_[i] and any(abs(i - j) <= near for j in changed)}
            slots |= set(ranked[:best]) | {i for i in ask if i in changed or i not in known[row]}
            if turn[row] == 0 or (refresh and turn[row] % refresh == 0):
                ran = set(range(-page.start, length))
                slots = set(range(length))
            else:
                ran = slots | ({i - 1 for i in slots & ask} if shifted else set())
            if ran:
                wanted[row] = sorted(page.start + i for i in ran)
            known[row] = (known[row] - changed) | (slots & ask)
            last[row], turn[row] = now, turn[row] + 1
        module.ran.clear()
        ask = Ask(page, slice(0, length), where, None, 0, score)  # type: ignore[arg-type]
        read = session.reads(ask)
        if where.any():
            session.logits(ask, *read.nonzero(as_tuple=True))
        assert {row: slots for call in module.ran for row, slots in call.items()} == wanted


def test_what_is_not_run_keeps_its_prediction():
    page = canvas(8)
    session = Near(Blind(), best=1, near=1, again=1, refresh=0).begin(page)
    strategy, seen = Strategy(), []
    decoding = unmask.decode(page, strategy, 8)
    ask = next(decoding)
    for _ in range(2):
        seen.append(answer(session, ask))
        ask = decoding.send(seen[-1])
    first, second = seen
    assert first.read.all() and 1 <= int(second.read.sum()) <= 3
    rest = ask.canvas.masked & ~second.read
    assert torch.equal(first.p[rest], second.p[rest]) and torch.equal(first.token[rest], second.token[rest])
    assert (second.p[second.p == 0].numel() + int((second.p > 0).sum())) == 8 and int((second.p > 0).sum()) == 7


# ---------------------------------------------------------------- where it is exact


@pytest.mark.parametrize("name", [name for name in METHODS if name != "wino"])
@pytest.mark.parametrize("short", [True, False], ids=["as it is", "the long way"])
def test_refreshing_always_gives_plain_tokens(model, name, short, monkeypatch):
    if not short:  # keep and plan as if not every forward were full
        monkeypatch.setattr(Near, "begin", lambda self, page: _Nearing(self, page))
    strategy = METHODS[name] if not METHODS[name].anchors else METHODS[name].with_(at=-10)
    if name == "template-infilling":
        strategy = replace(strategy, anchors=(replace(strategy.anchors[0], pieces=("Step 1:", "is"), at=-8),))
    how = {"length": 24 if strategy.anchors else 12, "steps": 6}
    plain = unmask.generate(model, PROMPTS[:2], strategy, **how)
    found = unmask.generate(model, PROMPTS[:2], strategy, cache="near:refresh=1", **how)
    assert [g.tokens for g in found] == [g.tokens for g in plain]
    assert [g.work for g in found] == pytest.approx([g.work for g in plain])


INDEPENDENT = {
    "quota": Strategy(),
    "sacm": METHODS["sacm"],
    "support": METHODS["sacm-support"],
    "margin in blocks": METHODS["top-margin"].with_(block=5),
    "entropy": METHODS["entropy"],
    "a frontier": Strategy(focus=Frontier(3)),
    "threshold": Strategy(select=Threshold(0.6)),
    "factor": Strategy(select=Factor(1.0), block=4),
    "entropy bound": METHODS["eb-sampler"].with_(gamma=0.5),
    "reopened": replace(METHODS["sacm"], remask=Remask(k=2), select=Quota(Fixed(2))),
    "replaced": Strategy(revise=(Replace(2, 1, 4, spare=1),)),
    "longer": Strategy(revise=(Density(30, 2, 0.2, 0.4, 4),)),
}  # fmt: skip


@pytest.mark.parametrize("name", INDEPENDENT)
@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.lists(st.integers(3, 11), min_size=1, max_size=5), min_size=1, max_size=3), st.integers(6, 14),
    st.integers(1, 14), st.integers(0, 5), st.integers(0, 3), st.integers(0, 2), st.integers(0, 5),
)  # fmt: skip
def test_slots_that_do_not_see_each_other_need_no_refreshing(name, prompts, length, steps, best, near, again, refresh):
    strategy, before = start(INDEPENDENT[name], prompts, length)
    cached = _Nearing(Near(Blind(), best or 1 - min(near, 1), near, again, refresh), before)
    both = [decoded(session, before, strategy, steps).canvas for session in (Plain(Blind()), cached)]
    assert torch.equal(both[0].ids, both[1].ids)


@pytest.mark.parametrize(
    "strategy",
    [
        METHODS["sacm"].with_(at=-8),
        METHODS["sacm-support"].with_(at=-8, finish=2),
        METHODS["fast-dllm"].with_(block=8),
        METHODS["remdm"].with_(rounds=4),
        METHODS["core"],
        METHODS["rho-eos"],
        Strategy(Gumbel(temperature=0.7), block=6),
    ],
    ids=["sacm", "finish", "fast-dllm", "remdm", "core", "rho-eos", "temperature in blocks"],
)
@pytest.mark.parametrize("cache", ["near", "near:best=2,near=1,again=1,refresh=5"])
@pytest.mark.filterwarnings("ignore:a response has reached")
def test_a_row_in_a_batch_gets_what_it_gets_alone(model, strategy, cache):
    how = {"length": 16, "cache": cache}
    batch = unmask.generate(model, PROMPTS, strategy, **how)
    alone = [unmask.generate(model, prompt, strategy, seed=i, **how) for i, prompt in enumerate(PROMPTS)]
    assert [g.tokens for g in batch] == [g.tokens for g in alone]
    assert [g.work for g in batch] == pytest.approx([g.work for g in alone]), "and it costs what it costs alone"
    assert all(
        g.work < h.work for g, h in zip(batch, unmask.generate(model, PROMPTS, strategy, length=16), strict=True)
    )


def test_the_first_commits_are_plain(model):
    plain, near = (unmask.generate(model, PROMPTS[1], "top-probability", length=16, cache=c) for c in (None, "near"))
    first = [i for i, when in enumerate(plain.order) if when == 0]
    assert first == [i for i, when in enumerate(near.order) if when == 0]
    assert [plain.tokens[i] for i in first] == [near.tokens[i] for i in first]


def test_guided_sessions_choose_alike():
    strategy, before = start(METHODS["sacm"], [[5], [6, 7]], 12)
    alone, both = Blind(), Blind()
    decoded(Near(alone, 2, 1).begin(before), before, strategy)
    decoded(Guided(Near(both, 2, 1), 0.0).begin(before), before, strategy)
    assert both.ran[::2] == both.ran[1::2] == alone.ran
    half = Strategy()  # "everywhere" asks about the anchor's slots, too, which the unconditional canvas masks
    decoded(Guided(Near(both, 2, 1), 0.5).begin(before), before, replace(half, revise=(Replace(2, 1, 4, spare=1),)))
    assert both.ran[::2] == both.ran[1::2]


def test_guidance_composes(model):
    plain = unmask.generate(model, PROMPTS, "top-probability", length=12, cfg=1.5)
    found = unmask.generate(model, PROMPTS, "top-probability", length=12, cfg=1.5, cache="near:refresh=1")
    assert [g.tokens for g in found] == [g.tokens for g in plain]
    assert [g.work for g in plain] == pytest.approx([1.0] * 3), "a plain decode with guidance is its own yardstick"


# ---------------------------------------------------------------- edges


@pytest.mark.parametrize("cache", ["near:refresh=999", "near:best=999", "near:best=0", "near:near=0,again=0,refresh=0"])
@pytest.mark.parametrize("length", [1, 9])
def test_unusual_settings_work(model, cache, length):
    (one, two) = unmask.generate(model, PROMPTS[:2], "top-probability", length=length, cache=cache)
    assert model.vocab.mask_id not in one.tokens + two.tokens and len(two.tokens) == length


def test_a_row_with_nothing_masked_and_rows_that_are_done(model):
    page = Canvas.blank([[7, 8], [9], [10, 11, 12]], 6, model.vocab)
    full = page.response.clone()
    full[1], full[2, :4] = 9, 9
    page = page.with_response(full)
    session = Near(model.module, 2, 1).begin(page)
    with torch.inference_mode():
        done = run(unmask.decode(page, Strategy(), 6), session)
    assert not done.canvas.masked.any() and done.forwards.tolist() == [6, 0, 2]
    assert session.kept.tolist() == [0] and session.kv.rows == 1
    assert session.tally.tokens.tolist()[1] == 0
    with torch.inference_mode():
        nothing = run(unmask.decode(done.canvas, Strategy(), 6), Near(model.module).begin(done.canvas))
    assert torch.equal(nothing.canvas.ids, done.canvas.ids)


@pytest.mark.parametrize("dual", [False, True])
def test_done_rows_leave_the_other_caches_too(model, dual):
    """Rows with less to decode end earlier: their K and V are dropped, and no row's tokens change for it."""
    page = Canvas.blank([model.encode(prompt) for prompt in PROMPTS], 12, model.vocab)
    for row, given_ in ((1, 9), (2, 5)):
        page = replace(page, ids=page.ids.clone())
        page.response[row, :given_] = 9
    strategy = Strategy(select=Quota(Fixed(1)))
    session = Cached(model.module, dual).begin(page)
    with torch.inference_mode():
        done = run(unmask.decode(page, strategy), session)
        assert session.kept.tolist() == [True, False, False] and len(session.kv.layers[0][0]) == 1
        for row in range(3):
            alone = replace(
                page,
                **{
                    name: getattr(page, name)[row : row + 1]
                    for name in ("ids", "valid", "fixed", "distance", "settled", "when")
                },
            )
            alone = replace(alone, memory={})
            single = Cached(model.module, dual).begin(alone)
            found = run(unmask.decode(alone, strategy), single)
            assert torch.equal(found.canvas.response[0], done.canvas.response[row])
            assert int(single.tally.tokens) == int(session.tally.tokens[row])


BAD = [
    ({"best": -1}, "best is a whole number, at least 0, not -1"),
    ({"near": 1.5}, "near is a whole number, at least 0, not 1.5"),
    ({"again": True}, "again is a whole number, at least 0, not True"),
    ({"refresh": None}, "refresh is a whole number, at least 0, not None"),
    ({"best": 0, "near": 0}, "best and near are both 0"),
]


@pytest.mark.parametrize(("wrong", "says"), BAD)
def test_bad_settings(wrong, says):
    with pytest.raises(UserError, match=says):
        Near(Blind(), **wrong)  # type: ignore[arg-type]


def test_what_it_does_not_take(model):
    with pytest.raises(UserError, match="the near cache is for text"):
        chain(Seeing(SimpleNamespace()), cache="near")  # type: ignore[arg-type]
    stranger = unmask.wrap(torch.nn.Linear(1, 1), model.tokenizer, mask_id=2)
    with pytest.raises(UserError, match="a K/V cache needs a model that unmask loads itself"):
        unmask.generate(stranger, "Tom has", "top-probability", length=8, cache="near")
    with pytest.raises(UserError, match="which the near cache cannot do"):
        unmask.generate(model, "Tom has", "wino", length=8, cache="near")


# ---------------------------------------------------------------- work


def by_matmuls(q, k, v, valid):
    """Attention that the FLOP counter can see."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    score = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    if valid is not None:
        score = score.masked_fill(~(valid[:, None, None, :] if valid.dim() == 2 else valid[:, None]), -torch.inf)
    return (score.softmax(-1) @ v).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("cache", [None, "prefix", "dual", "near", "near:best=2,near=1,again=1,refresh=0"])
def test_work_is_what_torch_counts(model, monkeypatch, cache):
    """One formula for all: 2 FLOPs for each multiplication, of the linear layers, of attention and of the head."""
    monkeypatch.setattr("unmask.models.llada.attend", by_matmuls)
    monkeypatch.setattr("unmask.models.dream.attend", by_matmuls)
    page = Canvas.blank([model.encode("Tom has")], 16, model.vocab)
    session = chain(model.module, cache=cache).begin(page)
    with torch.inference_mode(), FlopCounterMode(display=False) as counted:
        run(unmask.decode(page, Strategy(block=None if cache in (None, "near") else 8)), session)
    tally, cost = session.tally, model.module.cost
    assert counted.get_total_flops() == 2 * int(cost(tally.tokens, tally.pairs, tally.slots))
    if cache is None:
        assert int(cost(tally.tokens, tally.pairs, tally.slots)) == plain_work(cost, page.start, 16, 16, 8)


def test_work_of_a_forward_by_hand():
    cost = layers.Cost.of([torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 8))] * 3, 4, 100)
    assert (cost.token, cost.key, cost.slot) == (3 * (16 + 32), 3 * 8, 400)
    assert plain_work(cost, 2, 6, 5, 3) == 3 * 8 * (144 + 24 * 8) + 400 * (5 + 3 + 1)
    assert plain_work(cost, 2, 6, 2, 3) == 2 * 8 * (144 + 24 * 8) + 400 * (2 + 1)


def test_fused_attention_is_plain_attention(model):
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 4, 3, 8), torch.randn(2, 2, 5, 8), torch.randn(2, 2, 5, 8)
    valid = torch.tensor([[False, True, True, True, True], [True] * 5])
    assert torch.allclose(layers.attend(q, k, v, valid), by_matmuls(q, k, v, valid), atol=1e-6)


def test_work_is_in_records_and_traces(model):
    from unmask.views.trace import packed, record

    (seen,) = record(model, ["Tom has"], {"plain": Strategy()}, unmask.Decoding(length=8, cache="near"))
    made = unmask.generate(model, "Tom has", Strategy(), length=8, cache="near")
    assert seen.work == made.work and 0 < seen.work < 1
    assert packed([seen])["runs"][0]["work"] == seen.work
    assert f"<td>{made.work:.2f}</td>" in made._repr_html_()


def test_the_bench_as_a_table():
    from unmask.tools.bench_cache import VARIANTS, table

    ones = dict.fromkeys(VARIANTS, 0.5)
    made = table({
        "rows": 50, "work": ones, "forwards": ones, "time": {1: ones, 50: ones}, "refresh_equal": True,
        "most_rows_done": {"prefix": 0.2, "near": 0.6}, "batches_by_length": 0.7,
    })  # fmt: skip
    assert "0.500 (aim 0.167, 1/6)" in made and "0.50 (aim <= 1.05)" in made and "prefix 0.20, near 0.60" in made


# ---------------------------------------------------------------- batches by length


def test_prompts_of_a_list_are_sorted_into_batches_by_length(model, monkeypatch):
    from unmask import generation

    prompts = ["Tom has " * n for n in (5, 1, 4, 1, 3, 2, 9)]
    shapes: list[list[int]] = []
    opened = generation.open_canvas

    def seen(model_, ids, *rest):
        shapes.append([len(row) for row in ids])
        return opened(model_, ids, *rest)

    monkeypatch.setattr(generation, "open_canvas", seen)
    strategy = Strategy(Gumbel(temperature=1.0))
    sorted_ = unmask.generate(model, prompts, strategy, length=6, batch=2, raw=True)
    assert [max(s) - min(s) for s in shapes] == [max(s) - min(s) for s in sorted(shapes)] and shapes == sorted(shapes)
    shapes.clear()
    in_order = list(unmask.generations(model, iter(prompts), strategy, unmask.Decoding(length=6, batch=2, raw=True)))  # type: ignore[arg-type]
    assert shapes != sorted(shapes)
    assert [g.tokens for g in sorted_] == [g.tokens for g in in_order]
    assert [g.seed for g in sorted_] == list(range(7))
    shapes.clear()
    unmask.generate(model, prompts, strategy, length=6, batch=2, raw=True, watch=[lambda *_: None])
    assert shapes != sorted(shapes), "a watcher sees them in their order"


def test_they_are_sorted_among_sixteen_batches():
    from unmask.generation import batches

    sizes = [*range(40, 0, -1)]
    found = list(batches(sizes, 2, True))
    assert found[0] == [31, 30] and found[15] == [1, 0] and found[16] == [39, 38]
    assert sorted(i for some in found for i in some) == list(range(40))
    assert list(batches([3, 1], 2, True)) == [[0, 1]], "one batch stays as it is"


def test_a_rule_that_trusts_how_large_a_confidence_is_is_warned_about_once(model, recwarn):
    for _ in range(2):
        unmask.generate(model, PROMPTS[0], "eb-sampler", length=8, cache="near")
    assert [str(w.message) for w in recwarn] == [
        "the near cache is made for methods that decode a set number of slots per step; with EntropyBound it may cost right answers"
    ]
    unmask.generate(model, PROMPTS[0], "sacm", length=32, cache="near")
    unmask.generate(model, PROMPTS[0], "eb-sampler", length=8, cache="prefix")
    assert len(recwarn) == 1
