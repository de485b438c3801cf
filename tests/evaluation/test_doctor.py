"""The doctor: its figures on decodings written by hand, its verdict on made-up figures, and the command end to end."""

import json
import shlex
from dataclasses import replace

import pytest
from support.command import refused, run

import unmask
from unmask import cli
from unmask.cli.options import typed
from unmask.evaluation import doctor
from unmask.evaluation.doctor import Case, Figures, choose, flood_step, symptoms, verdict
from unmask.evaluation.metrics import near_anchor
from unmask.generation import Generation
from unmask.tasks import find

# ---------------------------------------------------------------- figures


@pytest.mark.parametrize(
    "order, ends, step",
    [
        # one slot a step, end-of-text last: x x ∅ ∅. After steps 1, 2, 3, 4 the shares are 0, 0, 1/3, 1/2.
        ([0, 1, 2, 3], "..ee", 4),
        # end-of-text first and nearly only: the flood is there from the first step
        ([3, 2, 1, 0], ".eee", 1),
        # the tail behind a good answer is decoded first: 1, 1/2, 1/3, 1/4, so no flood at the end
        ([1, 2, 3, 0], "...e", None),
        # ∅ x x ∅ ∅: shares 1, 1/2, 1/3, 2/4, 3/5: broken off at step 3, it floods for good from step 4
        ([0, 1, 2, 3, 4], "e..ee", 4),
        # two slots a step; the pinned ones (-1) do not count
        ([0, -1, -1, 0, 1, 1], ".e.eee", 1),
        ([-1, -1], "ee", None),
    ],
)
def test_flood_step_by_hand(order, ends, step):
    assert flood_step(order, [mark == "e" for mark in ends]) == step


def decoding(model, text: str, order: list[int], ties=0.0) -> Generation:
    """A decoding that ends as `text`, where _ is end-of-text; one token a character keeps it countable."""
    tokens = [model.vocab.eot_ids[0] if c == "_" else model.tokens(c)[0] for c in text]
    share = text.count("_") / len(text)
    return Generation(model.text(tokens), tokens, order, max(order) + 1, ties, share, share, 20, 0, 0.1)


def test_figures_of_decodings_by_hand(model):
    # "is" is pinned at 2 and 3 and the answer begins at 4, which the first decodes in step 1 of 20 (early), the second in step 20.
    case = Case(["a", "b"], "--prompts x", "2 prompts")
    made = [decoding(model, "abis7_", [18, 19, -1, -1, 0, 1], 0.5), decoding(model, "__is__", [0, 1, -1, -1, 19, 2])]
    found = doctor.figures(model, case, "is", made)
    assert found == Figures(2, 20, (1 / 6 + 4 / 6) / 2, 0.5, 0.5, 1, 0.5, 1.0, 1.0, 0.25)  # in 6 slots all are near
    whole = decoding(model, "______", [0, 1, 2, 3, 4, 5])
    assert doctor.figures(model, case, "is", [whole]) == Figures(1, 20, 1.0, 1.0, 1.0, 1, None, None, None, 0.0)


def test_early_commits_near_the_anchor_by_hand(model):
    # "is" at 38, 39 of 60 slots; 20 forwards, so the first 3 steps count. 14 slots before and 14 behind are near: 28 of 58.
    order = [19] * 60
    order[38:40] = [-1, -1]
    order[40], order[24], order[53], order[23], order[54] = 0, 1, 2, 2, 2  # three near, and one too far on either side
    order[41] = 3  # near, but in the fourth step
    made = decoding(model, "a" * 38 + "is" + "a" * 20, order)
    found = doctor.figures(model, Case(["a"], "--prompts x", "1 prompt"), "is", [made])
    assert found.near == pytest.approx(3 / 5) and found.near_all == pytest.approx(28 / 58)
    assert (near_anchor(order, 20), near_anchor([0, 1], 20), near_anchor([-1, 9], 20)) == (found.near, None, None)


def test_agreement_and_right_on_a_task(model):
    task, made = find("compass"), decoding(model, "x", [0])
    row = {"id": "1", "question": "", "answer": "yes", "asked": "north"}
    said = [
        "First turn left: east makes north. The answer is yes.",  # follows, right
        "First turn left: west makes south. The answer is no.",  # follows from reasoning that went wrong
        "First turn left: west makes south. The answer is yes.",  # right, but not by its reasoning
        "The answer is no.",  # did not reason: does not count
    ]
    case = Case(said, "--task compass", "", task=task, rows=[row] * 4, graded=True)
    found = doctor.figures(model, case, task.anchor, [replace(made, text=text) for text in said])
    assert found.agrees == pytest.approx(2 / 3) and found.right == (True, False, True, False)
    assert doctor.figures(model, replace(case, graded=False), task.anchor, [made] * 4).right is None


def test_stories_and_cups_tell_agreement_too():
    for name in ("stories", "cups"):
        task = find(name)
        row = task.tuning_rows().rows[0]
        state = {"stories": "3", "cups": "B"}[name]
        assert task.agrees(f"It all gives {state}. The answer is {state}.", row) is True
        assert task.agrees(f"It all gives {state}. The answer is nothing.", row) is False
        assert task.agrees(f"The answer is {state}.", row) is None


# ---------------------------------------------------------------- verdict


def made_up(eot=0.1, empty=0.0, flooded=0.0, early=0.0, right=None, rows=16, ties=0.0, agrees=None, near=None):
    marks = None if right is None else tuple(i < right for i in range(rows))
    return Figures(
        rows, 48, eot, empty, flooded, 2 if flooded else None, early, near, near and 0.3, ties, agrees, marks
    )


ASKED = Case([], "--prompts q.jsonl", "16 prompts")
GRADED = Case([], "--task cups", "16 tuning rows", task=find("cups"), graded=True)
SICK = dict(eot=0.9, flooded=1.0, early=None)


def four(plain, suppressed, anchored, sacm):
    return {"plain": plain, "suppressed": suppressed, "anchored": anchored, "SACM": sacm}


def test_symptoms():
    assert symptoms(made_up(flooded=0.49, empty=0.09, early=0.24)) == []
    assert len(symptoms(made_up(flooded=0.5, empty=0.1, early=0.25))) == 3
    assert symptoms(made_up(**SICK)) == [
        "100% of its responses flood with end-of-text, from step 2 of 48 on (EOT ratio 0.90)"
    ]


def test_crowding_the_anchor_is_the_same_symptom_as_answering_early():
    """Half of the first slots, and twice their share of all slots (0.3 here)."""
    assert symptoms(made_up(near=0.59)) == symptoms(replace(made_up(near=0.49), near_all=0.1)) == []
    assert len(symptoms(replace(made_up(near=0.5), near_all=0.1))) == 1
    assert symptoms(made_up(near=0.6)) == [
        "the first 15 % of the steps decode 60% of their slots within 14 of the anchor"
    ]
    both = "the first 15 % of the steps commit 80% of its answers, before the reasoning and decode 90% of their slots within 14 of the anchor"
    assert symptoms(made_up(early=0.8, near=0.9)) == [both]
    found = four(made_up(**SICK), made_up(empty=0.5), made_up(near=0.9), made_up(near=0.1))
    words, method, _ = verdict(found, ASKED)
    assert (
        method == "sacm"
        and "The anchor alone has 90% of the first slots near it; SACM brings that down to 10%." in words
    )


def test_the_papers_story():
    found = four(
        made_up(**SICK, right=2),
        made_up(eot=0.2, right=8),
        made_up(early=0.8, right=9, agrees=0.4),
        made_up(early=0.05, right=13, agrees=0.95),
    )
    words, method, command = verdict(found, GRADED, "--model tiny")
    said = " ".join(words)
    assert method == "sacm" and words[-1] == "Use sacm."
    assert command == "unmask eval --task cups --methods sacm,top-probability --model tiny"
    assert "The anchor alone has 80% of the answers early; SACM brings that down to 5%." in said
    assert "own reasoning: 40% with the anchor, 95% with SACM" in said
    assert "Right, of 16: plain 2, suppressed 8, anchored 9, SACM 13." in said


def test_nothing_is_wrong():
    found = four(*[made_up(right=12)] * 3, made_up(right=13))
    words, method, command = verdict(found, GRADED)
    assert method == "top-probability" and words[-1] == "Nothing is wrong: keep plain decoding (top-probability)."
    assert words[
        0
    ] == "Plain: no symptom (EOT ratio 0.10, 0% empty)." and "16 rows do not tell SACM from plain" in " ".join(words)
    assert command == "unmask eval --task cups --methods top-probability,sacm"
    assert verdict(four(*[made_up()] * 4), ASKED)[1:] == (
        "top-probability",
        "unmask generate --prompts q.jsonl --method top-probability",
    )


def test_no_symptom_but_another_is_surely_right_more_often():
    found = four(made_up(right=2), made_up(right=2), made_up(right=3), made_up(right=14))
    assert verdict(found, GRADED)[1] == "sacm"
    assert (
        verdict(four(made_up(right=10), *[made_up(right=12)] * 3), GRADED)[1] == "top-probability"
    )  # 2 rows more are no proof


def test_sacm_does_not_help():
    """The anchor alone is without a symptom and right more often."""
    found = four(made_up(**SICK, right=2), made_up(eot=0.3, right=4), made_up(right=12), made_up(right=9))
    words, method, command = verdict(found, GRADED)
    assert method == "suffix-anchor" and "SACM does not help" in words[-1]
    assert "Anchored is right more often than SACM, though 16 rows cannot tell." in words
    assert command == "unmask eval --task cups --methods suffix-anchor,top-probability"
    found["SACM"] = made_up(right=1)
    assert "Anchored is right more often than SACM." in verdict(found, GRADED)[0]


def test_sacm_is_still_early_so_tune():
    found = four(
        made_up(**SICK, right=2), made_up(**SICK, right=2), made_up(early=0.8, right=5), made_up(early=0.6, right=6)
    )
    words, method, command = verdict(found, GRADED, "--steps 8")
    assert (
        method == "sacm" and words[-1] == "None of the paper's four methods is without a symptom; sacm comes nearest."
    )
    assert "SACM leaves 60%." in " ".join(words)
    assert command == "unmask tune --task cups --steps 8"


def test_nothing_cures_it():
    words, method, _ = verdict(four(*[made_up(**SICK, right=0)] * 4), GRADED)
    assert (
        method == "sacm"
        and "None of the paper's four" in words[-1]
        and any("Few are right whatever the method" in word for word in words)
    )
    words, method, _ = verdict(four(made_up(**SICK, right=5), *[made_up(**SICK, right=0)] * 3), GRADED)
    assert method == "top-probability" and words[-1] == "None of the paper's four methods cures it."


def test_surely_right_in_spite_of_a_symptom():
    found = four(made_up(**SICK, right=1), made_up(right=2), made_up(early=0.9, right=15), made_up(right=3))
    words, method, _ = verdict(found, GRADED)
    assert method == "suffix-anchor" and words[-1].startswith("Use suffix-anchor all the same")


def test_support_has_to_prove_itself():
    """Six rows more and none fewer is the least that convinces (p = 0.031)."""
    found = four(made_up(**SICK, right=2), made_up(right=4), made_up(early=0.8, right=5), made_up(right=6))
    words, method, command = verdict({**found, "supported": made_up(right=12)}, GRADED)
    assert "sacm-support is right on significantly more of the same rows than SACM (+6 of 16, p = 0.031)." in words
    assert method == "sacm-support" and words[-1] == "Use sacm-support."
    assert command == "unmask eval --task cups --methods sacm-support,sacm"
    words, method, _ = verdict({**found, "supported": made_up(right=11)}, GRADED)
    assert (
        "sacm-support is right on more of the same rows than SACM (+5 of 16, p = 0.062), but 16 rows cannot tell; "
        "--count takes more." in words
    )
    assert method == "sacm" and words[-1] == "Use sacm."
    for right, said in ((6, "as often as SACM."), (4, "on fewer of the same rows than SACM (-2 of 16, p = 0.5), but")):
        words, method, _ = verdict({**found, "supported": made_up(right=right)}, GRADED)
        assert method == "sacm" and any(word.startswith(f"sacm-support is right {said}") for word in words)


def test_support_must_beat_what_would_be_advised_without_it_too():
    healthy = four(made_up(right=8), made_up(right=8), made_up(right=8), made_up(right=2))
    assert choose({**healthy, "supported": made_up(right=10)}) == "plain"  # surely better than SACM, not than plain
    assert choose({**healthy, "supported": made_up(right=16)}) == "supported"
    sick = four(*[made_up(**SICK, right=1)] * 3, made_up(early=0.9, right=2))
    words, method, _ = verdict({**sick, "supported": made_up(early=0.9, right=3)}, GRADED)
    assert method == "sacm" and words[-1].startswith("None of the paper's four methods is without a symptom")


def test_support_is_tried_only_where_answers_are_known():
    """By symptoms alone it is never advised, so its decoding is spared."""
    four_ways = ["plain", "suppressed", "anchored", "SACM"]
    assert list(doctor.ways(GRADED, {})) == [*four_ways, "supported"]
    assert list(doctor.ways(ASKED, {})) == list(doctor.ways(replace(GRADED, graded=False), {})) == four_ways


def test_prompts_without_answers():
    found = four(made_up(**SICK), made_up(), made_up(early=0.7), made_up())
    words, method, command = verdict(found, ASKED, "--length 64")
    assert method == "sacm" and command == "unmask generate --prompts q.jsonl --method sacm --length 64"
    assert "If these prompts ask for short answers, much end-of-text is as it should be." in words
    assert not any("Right" in word for word in words)
    assert choose(four(made_up(**SICK), made_up(), made_up(early=0.7), made_up(early=0.7))) == "suppressed"


def test_ties():
    found = four(*[made_up(ties=0.3)] * 4)
    assert any("30% of the choices are ties: ties go to the leftmost" in word for word in verdict(found, ASKED)[0])
    assert any("--dtype float32 tells most of them apart" in word for word in verdict(found, ASKED, float32=False)[0])


def test_the_table_fits_80_columns():
    wide = Figures(100, 128, 1.0, 1.0, 1.0, 100.5, 1.0, 1.0, 1.0, 1.0, 1.0, (True,) * 100)
    lines = doctor.table(four(wide, wide, wide, wide)).splitlines()
    assert len(lines) == 5 and max(map(len, lines)) <= 80 and max(map(len, doctor.LEGEND.splitlines())) <= 80
    assert lines[1].split() == ["plain", "1.00", "100%", "100%", "100.5/128", "100%", "100%", "100%", "100%", "100/100"]


# ---------------------------------------------------------------- the command line


def test_prompts_and_the_next_command_runs(folder, tmp_path, capsys):
    file = tmp_path / "my questions.jsonl"
    file.write_text('"Tom has"\n{"prompt": "Ada has"}\n{"messages": [{"role": "user", "content": "How many?"}]}\n')
    asked = (
        "doctor",
        "--model",
        folder,
        "--prompts",
        file,
        "--length",
        32,
        "--steps",
        8,
        "--anchor",
        "Answer: so",
        "--set",
        "at=-12",
    )
    record = json.loads(run(capsys, *asked, "--json", "--count", 2))
    assert list(record["methods"]) == ["plain", "suppressed", "anchored", "SACM"] and record["length"] == 32
    for figures in record["methods"].values():
        assert (
            figures["rows"] == 2
            and figures["steps"] == 8
            and figures["right"] is None
            and 0 <= figures["eot_ratio"] <= 1
        )
    assert record["methods"]["anchored"]["early"] is not None
    words = shlex.split(record["next"])
    assert words[:2] == ["unmask", "generate"] and str(file) in words
    assert run(capsys, *words[1:]).strip() or record["methods"]["plain"]["empty"]
    shown = run(capsys, *asked)
    assert "3 prompts of" in shown and f"next:  {record['next'].split()[0]} " in shown


def test_on_the_bundled_model_and_its_task(capsys):
    record = json.loads(run(capsys, "doctor", "--task", "cups", "--count", 2, "--steps", 8, "--json"))
    assert record["prompts"] == "2 tuning rows of cups" and record["model"] == "tiny"
    assert all(len(figures["right"]) == 2 for figures in record["methods"].values())
    assert record["methods"]["supported"]["method"] == "sacm-support"
    words = shlex.split(record["next"])
    assert words[0] == "unmask" and record["advised"] in unmask.METHODS
    cli.parser().parse_args(words[1:])
    shown = run(capsys, "doctor", "--task", "cups", "--count", 2, "--steps", 8)
    assert max(map(len, shown.split("next:")[0].splitlines())) <= 80 and f"next:  {record['next']}" in shown


def test_a_task_without_tuning_rows_is_not_graded(folder, tmp_path, capsys, monkeypatch):
    task = replace(find("cups"), tuning=None)
    monkeypatch.setattr("unmask.plugins.task", lambda name: task)
    record = json.loads(
        run(capsys, "doctor", "--task", "cups", "--model", folder, "--count", 2, "--length", 32, "--steps", 4, "--json")
    )
    assert record["prompts"] == "2 test rows of cups (no tuning rows: not graded)"
    assert all(figures["right"] is None for figures in record["methods"].values())


def test_flags_are_typed_back():
    given = {
        "model": "a b",
        "raw": True,
        "steps": None,
        "cfg": 0.0,
        "device_map": "auto",
        "batch": 8,
        "bad_rows": "stop",
    }
    assert typed(given) == "--model 'a b' --raw --device-map auto"
    assert typed({"batch": 4, "bad_rows": "skip"}) == "--batch 4 --bad-rows skip"


def test_a_task_that_runs_code_is_advised_with_allow_code():
    case = replace(GRADED, source="--task mbpp", task=find("mbpp"), graded=False)
    well, ill = made_up(), made_up(**SICK)
    assert (
        verdict(four(ill, ill, ill, well), case)[2]
        == "unmask eval --task mbpp --methods sacm,top-probability --allow-code"
    )
    assert (
        verdict(four(ill, ill, ill, ill), case, "--length 64")[2] == "unmask tune --task mbpp --length 64 --allow-code"
    )


def test_settings_go_to_the_commands_that_take_them():
    given = ("text=so it is", "kappa=3")
    well, ill = made_up(), made_up(**SICK)
    assert verdict(four(well, well, well, well), ASKED, "", given)[2].endswith("--method top-probability")
    assert verdict(four(ill, ill, well, ill), ASKED, "", given)[2].endswith(
        "--method suffix-anchor --set 'text=so it is'"
    )
    assert verdict(four(ill, ill, ill, well), GRADED, "", given)[2].endswith(
        "sacm,top-probability --set 'text=so it is' --set kappa=3"
    )
    assert verdict(four(ill, ill, ill, ill), GRADED, "", given)[2] == "unmask tune --task cups --set 'text=so it is'"


@pytest.mark.parametrize(
    "argv, said",
    [
        ((), "give --task NAME or --prompts FILE"),
        (("--task", "cups", "--prompts", "x"), "give --task NAME or --prompts FILE"),
        (("--task", "cupz"), "did you mean 'cups'?"),
        (("--prompts", "nothing.jsonl"), "nothing.jsonl cannot be read"),
        (("--task", "cups", "--count", "0"), "--count is at least 1, not 0"),
        (("--task", "cups", "--set", "nonsense=1"), "none of these methods has a setting nonsense"),
    ],
)
def test_bad_input_is_one_line_before_a_model_is_loaded(argv, said, capsys, monkeypatch):
    monkeypatch.setattr("unmask.models.loading.load", lambda *a, **k: pytest.fail("loaded"))
    assert said in refused(capsys, "doctor", *argv)
