"""The toy suite: true chains, disjoint splits, a tokenizer that loses nothing, and the two checks of a response."""

from __future__ import annotations

from hashlib import sha256
from itertools import product
from random import Random

import pytest

from unmask.tasks import toy
from unmask.tasks.toy import (
    FIRST,
    HARD,
    PLAIN,
    WORLDS,
    agrees,
    answer_of,
    ask,
    examples,
    questions,
    reasoning,
    respond,
    right,
    split_of,
    tokenizer,
    words,
)

NAMES = sorted(WORLDS)


def test_tables_worked_by_hand() -> None:
    moves = WORLDS["stories"].moves
    assert moves["double"] == {"0": "0", "1": "2", "2": "4", "3": "1", "4": "3"}
    assert moves["mirror"]["1"] == "3" and moves["down"]["0"] == "4" and moves["skip"]["4"] == "1"
    assert moves["triple"]["4"] == "2" and moves["up"]["4"] == "0"
    cups = WORLDS["cups"]
    assert cups.follow("A", ["ends", "right", "middles", "pairs", "reverse", "left"]) == ["D", "A", "A", "B", "C", "B"]
    assert cups.moves["middles"] == {"A": "A", "B": "C", "C": "B", "D": "D"}
    compass = WORLDS["compass"]
    assert compass.follow("north", ["left", "flip", "back", "roll"]) == ["west", "west", "east", "west"]
    assert compass.follow("north", ["flip", "right"]) == ["south", "west"] and compass.follow("east", ["flip"]) == [
        "east"
    ]


@pytest.mark.parametrize("name", NAMES)
def test_every_operation_permutes_and_some_do_not_commute(name: str) -> None:
    world = WORLDS[name]
    assert all(sorted(move.values()) == sorted(world.states) for move in world.moves.values())
    pairs = [(a, b) for a in world.moves for b in world.moves]
    differ = sum(
        any(world.follow(s, [a, b])[-1] != world.follow(s, [b, a])[-1] for s in world.states) for a, b in pairs
    )
    assert differ > len(pairs) / 4


@pytest.mark.parametrize("name", NAMES)
def test_splits_are_disjoint_and_stable(name: str) -> None:
    found = {split: questions(name, split, 300) for split in ("validation", "test")}
    keys = {split: {(q.start, q.operations) for q in asked} for split, asked in found.items()}
    assert all(len(chains) == 300 for chains in keys.values()) and not keys["validation"] & keys["test"]
    assert all(len(q.operations) in HARD for asked in found.values() for q in asked)
    trained = {(q.start, q.operations) for q in (ask(WORLDS[name], Random(i), 4) for i in range(3000))}
    assert not trained & (keys["validation"] | keys["test"])
    assert questions(name, "test", 20) == found["test"][:20]
    assert split_of("cups", "A", ("ends",) * 3) == "train"


@pytest.mark.parametrize(("plain", "first"), zip(PLAIN, FIRST, strict=True))
def test_a_chain_is_in_the_same_split_in_both_formats(plain: str, first: str) -> None:
    for a, b in zip(questions(plain, "test", 50), questions(first, "test", 50), strict=True):
        assert (a.start, a.operations, a.answer) == (b.start, b.operations, b.answer)
        assert b.prompt == f"{a.prompt} Answer first." and a.world == plain and b.world == first
    for seed in range(500):
        question = ask(WORLDS[first], Random(seed), 5)
        assert split_of(plain, question.start, question.operations) == "train"


@pytest.mark.parametrize("name", PLAIN)
def test_what_was_tested_before_is_for_training_now(name: str) -> None:
    world, counts = WORLDS[name], {"train": 0, "validation": 0, "test": 0}
    for start in world.states:
        for chain in product(world.moves, repeat=4):
            digest = sha256("|".join((name, start, *chain)).encode()).digest()  # the splits of the first edition
            split = split_of(name, start, chain)
            assert split == "train" or digest[0] % 10 > 1
            counts[split] += 1
    for split in ("validation", "test"):
        assert 0.08 < counts[split] / sum(counts.values()) < 0.12


@pytest.mark.parametrize("name", NAMES)
def test_answers_are_spread_evenly(name: str) -> None:
    """A constant guess is worth about chance."""
    answers = [q.answer for q in questions(name, "test", 600)]
    assert max(answers.count(a) for a in set(answers)) / 600 < WORLDS[name].chance + 0.07


@pytest.mark.parametrize("name", NAMES)
def test_training_responses_are_right_and_agree_with_themselves(name: str) -> None:
    tok, reasoned = tokenizer(), 0
    for i, question in enumerate(questions(name, "train", 200)):
        text = respond(question, Random(i), 96)
        ids = tok(text, add_special_tokens=False)["input_ids"]
        assert len(ids) == len(words(text)) <= 96 and tok.unk_token_id not in ids
        assert tok.decode(ids) == text
        assert right(question, text) and agrees(question, text) in (True, None)
        reasoned += agrees(question, text) is not None
    assert 150 < reasoned < 199  # most reason, some blurt


def test_wrong_and_inconsistent_responses_are_seen() -> None:
    question = questions("cups", "test", 1)[0]
    wrong = next(c for c in WORLDS["cups"].states if c != question.answer)
    chain = reasoning(question)
    assert (
        not right(question, f"{chain} The answer is {wrong}.")
        and agrees(question, f"{chain} The answer is {wrong}.") is False
    )
    assert agrees(question, f"The answer is: {question.answer}.") is None
    assert right(question, f"{chain} Answer: {question.answer}.")
    assert answer_of("Nothing more happens.") is None and answer_of("Therefore, the answer is 4. Done.") == "4"
    asked = questions("compass", "test", 1)[0]
    other = {"yes": "no", "no": "yes"}[asked.answer]
    assert agrees(asked, f"{reasoning(asked)} The answer is {asked.answer}.") is True
    assert agrees(asked, f"{reasoning(asked)} The answer is {other}.") is False


def test_where_the_answer_is_asked_for_first_the_first_one_counts() -> None:
    question = questions("compass-first", "train", 1)[0]
    chain, other = reasoning(question), {"yes": "no", "no": "yes"}[question.answer]
    told, late = (
        f"The answer is {question.answer}. {chain}",
        f"The answer is {other}. {chain} The answer is {question.answer}.",
    )
    assert right(question, told) and agrees(question, told) is True
    assert not right(question, late) and agrees(question, late) is False
    assert right(questions("compass", "train", 1)[0], late)  # the last one counts in the plain format
    assert agrees(question, f"The answer is {question.answer}.") is None and not right(question, chain)


@pytest.mark.parametrize("name", FIRST)
def test_an_answer_at_the_front_is_the_only_one(name: str) -> None:
    for i, question in enumerate(questions(name, "train", 50)):
        text = respond(question, Random(i), 96)
        assert text.startswith(f"The answer is {question.answer}.") and text.count("nswer") == 1


def test_batches_depend_on_seed_and_step_alone() -> None:
    first = examples(NAMES, 0, 7, 0.5, 16, 96)
    assert first == examples(NAMES, 0, 7, 0.5, 16, 96) != examples(NAMES, 0, 8, 0.5, 16, 96)
    for done in (0.0, 0.2, 0.9):
        for step in range(12):
            rows, length = examples(NAMES, 1, step, done, 8, 96)
            sizes = {len(words(response)) for _, response in rows}
            assert max(sizes) <= length <= 96
            if step % 2 == 0:  # a short batch: plain, all of one length, so that end-of-text stands behind none of them
                assert sizes == {length} and not any(prompt.endswith("Answer first.") for prompt, _ in rows)


def test_nobody_knows_at_the_start_where_the_chain_will_stand() -> None:
    rng, chains = Random(0), questions("cups", "train", 800)
    told = [words(text) for q in chains if agrees(q, text := respond(q, rng, 96)) is not None]
    for at in (lambda text: text.index("First"), lambda text: text[0]):
        found = [at(text) for text in told]
        assert len(set(found)) > 10 and max(found.count(x) for x in set(found)) < 0.2 * len(found)
    assert (
        len({words(intro)[0] for intro in toy.INTROS if intro}) == len(toy.INTROS) - 1
    )  # the first word tells the rest


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("The answer is", ["The", "answer", "is"]),
        ("Therefore, the answer is", ["Therefore", ",", "the", "answer", "is"]),
        ("Answer:", ["Answer", ":"]),
        ("Step 1:", ["Step", "1", ":"]),
        (",", [","]),
        (".", ["."]),
        ("is", ["is"]),
    ],
)
def test_the_papers_anchors_are_words_of_the_vocabulary(text: str, tokens: list[str]) -> None:
    assert tokenizer().tokenize(text) == tokens


def test_the_tokenizer_survives_saving(tmp_path) -> None:  # type: ignore[no-untyped-def]
    from transformers import AutoTokenizer

    made = tokenizer()
    made.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    prompt = loaded.apply_chat_template([{"role": "user", "content": "Where is the ball?"}], tokenize=False)
    assert (
        prompt
        == "<|startoftext|><|start_header_id|>user<|end_header_id|>\n\nWhere is the ball?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
    )
    ids = loaded(prompt, add_special_tokens=False)["input_ids"]
    assert loaded.convert_ids_to_tokens(ids)[:5] == [
        "<|startoftext|>",
        "<|start_header_id|>",
        "user",
        "<|end_header_id|>",
        "Where",
    ]
    assert loaded.decode(ids, skip_special_tokens=True) == "user Where is the ball? assistant"
    assert len(loaded) == len(made) < 250
    assert loaded.tokenize("xylophone") == ["<|unk|>"]
    assert tuple(loaded.convert_ids_to_tokens(loaded.convert_tokens_to_ids(list(toy.PADDING)))) == toy.PADDING
