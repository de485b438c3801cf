"""Tasks: the paper's prompts character by character, rows in every layout, splits that never overlap, bad input."""

import gzip
import json

import pytest

from unmask.errors import UserError
from unmask.tasks import find, tasks
from unmask.tasks.data import Made

SHOT = {"question": "Of 2?", "options": ["one", "two", "N/A"], "answer": "B", "category": "art",
        "cot_content": "A: Let's think step by step. It is two. The answer is (B)."}  # fmt: skip


def render(task, row, shots=()):
    return find(task).render(row, shots)


def test_prompts_are_the_papers_character_by_character():
    assert render("gsm8k", {"question": "How many?"}) == "Q: How many?\nA: Let's think step by step."
    assert render("strategyqa", {"question": "Can it?"}) == "Q: Can it?\nA: Let's think step by step."
    assert render("math500", {"problem": "Solve."}) == (
        "Q: Solve.\nA: Let's think step by step. End your solution with a final line in the exact format "
        '"The answer is <final answer>" and do not write anything after that final answer line.'
    )
    assert render("chartqa", {"query": "How much?"}) == (
        "<image>\nHow much?\nLet's think step by step. Then conclude on the last line with: The answer is <final answer>."
    )
    assert render("humaneval", {"prompt": "def f():\n"}) == "def f():\n"


def test_mmlu_pro_prompt_and_its_shots():
    row = {"question": "Which?", "options": ["red", "green"], "category": "art"}
    other = {**SHOT, "category": "law"}
    assert render("mmlu_pro", row, [other, SHOT]) == (
        "The following are multiple choice questions (with answers) about art.\n"
        'Think step by step and then finish your answer with "the answer is (X)," where X is the correct letter choice.\n'
        "Question:\nOf 2?\nOptions:\nA. one\nB. two\nAnswer: Let's think step by step. It is two. The answer is (B).\n\n"
        "Question:\nWhich?\nOptions:\nA. red\nB. green\nAnswer: Let's think step by step."
    )
    many = [dict(SHOT, question=str(i)) for i in range(9)]
    assert render("mmlu_pro", row, many).count("Question:\n") == 6  # five shots


def test_mathvista_prompts():
    choice = {"question": "Which?", "question_type": "multi_choice", "choices": ["cat", "dog"], "answer_type": "text"}
    assert render("mathvista", choice) == (
        "<image>\nWhich?\n\nChoices:\n(A) cat\n(B) dog\n\nHint: First perform reasoning, then provide the correct option letter, "
        "e.g., A, B, C, or D, at the end in the format: The answer is <final answer>."
    )
    free = {
        "question": "How many?",
        "question_type": "free_form",
        "choices": None,
        "answer_type": "integer",
        "precision": None,
    }
    assert render("mathvista", free) == (
        "<image>\nHow many?\n\nHint: First perform reasoning, then provide the final integer value, e.g., 1, 2, 3, "
        "at the end in the format: The answer is <final answer>."
    )
    assert "with two decimal places" in render("mathvista", {**free, "answer_type": "float", "precision": 2.0})


def test_mbpp_prompt_and_its_shots():
    row = {"text": "Add.", "test_list": ["assert a", "assert b", "assert c"]}
    shot = {"text": "Sub.", "test_list": ["assert x", "assert y", "assert z"], "code": "def sub(): pass"}
    question = "You are an expert Python programmer, and here is your task: {} Your code should pass these tests:\n\n{}\n[BEGIN]"
    assert render("mbpp", row, [shot]) == (
        question.format("Sub.", "assert x\nassert y\nassert z") + "\ndef sub(): pass\n[DONE]\n\n"
        + question.format("Add.", "assert a\nassert b\nassert c")
    )  # fmt: skip


def test_hub_sources_are_pinned_to_a_commit():
    ids = {
        "gsm8k": "openai/gsm8k", "math500": "HuggingFaceH4/MATH-500", "strategyqa": "ChilleD/StrategyQA", "mmlu_pro": "TIGER-Lab/MMLU-Pro",
        "mathvista": "AI4Math/MathVista", "chartqa": "HuggingFaceM4/ChartQA", "humaneval": "openai/openai_humaneval",
        "mbpp": "google-research-datasets/mbpp",
    }  # fmt: skip
    for name, repo in ids.items():
        source = find(name).rows
        assert source.repo == repo and len(source.revision) == 40 and int(source.revision, 16)


GSM = [{"question": f"Q{i}?", "answer": f"so #### {i}"} for i in range(4)]


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_rows_come_in_every_layout(tmp_path):
    (tmp_path / "test.jsonl").write_text(lines(GSM))
    (tmp_path / "rows.jsonl.gz").write_bytes(gzip.compress(lines(GSM).encode()))
    (tmp_path / "rows.json").write_text(json.dumps(GSM))
    task = find("gsm8k")
    for place in ("", "test.jsonl", "rows.jsonl.gz", "rows.json"):
        loaded = task.rows.load("gsm8k", tmp_path / place)
        assert loaded.rows == GSM and len(loaded.sha256) == 64 and loaded.revision == "local"
    nested = tmp_path / "all" / "gsm8k"
    nested.mkdir(parents=True)
    (nested / "test.jsonl").write_text(lines(GSM[:1]))
    assert task.rows.load("gsm8k", tmp_path / "all").rows == GSM[:1]


def test_parquet_and_the_hub_layout(tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    import pyarrow
    import pyarrow.parquet

    (tmp_path / "main").mkdir()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(GSM), tmp_path / "main" / "test-00000-of-00001.parquet")
    asked = {}

    def snapshot_download(repo, **options):
        asked.update(options, repo=repo)
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    monkeypatch.setattr("unmask.tasks.data.reachable", lambda: None)
    task = find("gsm8k")
    loaded = task.rows.load("gsm8k")
    assert loaded.rows == GSM and loaded.revision == task.rows.revision == asked["revision"]
    assert asked["repo"] == "openai/gsm8k" and asked["repo_type"] == "dataset"
    (tmp_path / "bad.parquet").write_bytes(b"nothing")
    with pytest.raises(UserError, match="not a parquet file"):
        task.rows.load("gsm8k", tmp_path / "bad.parquet")


def test_other_layouts_become_the_tasks_rows(tmp_path):
    chart = tmp_path / "chartqa"
    chart.mkdir()
    (chart / "test_human.json").write_text(json.dumps([{"imgname": "a.png", "query": "Q?", "label": "1"}]))
    (chart / "test_augmented.json").write_text(json.dumps([{"imgname": "b.png", "query": "R?", "label": "2"}]))
    rows = find("chartqa").rows.load("chartqa", tmp_path).rows
    assert [(row["part"], row["image"]) for row in rows] == [("human", "png/a.png"), ("augmented", "png/b.png")]
    (tmp_path / "testmini.json").write_text(json.dumps({"7": {"pid": "7", "question": "Q?", "question_type": "free_form",
                                                              "answer_type": "integer", "answer": 3, "image": "images/7.jpg"}}))  # fmt: skip
    (row,) = find("mathvista").rows.load("mathvista", tmp_path / "testmini.json").rows
    assert row["answer"] == "3" and find("mathvista").identify(row, 0) == "7"
    (tmp_path / "MATH_test_5000.jsonl").write_text(
        lines([{"problem": "P", "solution": r"so \boxed{5}", "type": "Algebra"}])
    )
    (tmp_path / "test.jsonl").write_text(lines([{"problem": "Other", "answer": "1"}]))
    (row,) = find("math500").tuning_rows(tmp_path).rows
    assert row["answer"] == "5"


def test_splits_of_one_file_by_id(tmp_path):
    rows = [{"task_id": i, "text": f"T{i}", "code": "x", "test_list": ["assert 1"]} for i in range(1, 975)]
    (tmp_path / "mbpp.jsonl").write_text(lines(rows))
    task = find("mbpp")
    test = {row["task_id"] for row in task.rows.load("mbpp", tmp_path).rows}
    tuning = {row["task_id"] for row in task.tuning_rows(tmp_path).rows}
    shots = [row["task_id"] for row in task.shots.load("mbpp", tmp_path, beside=True).rows]
    assert (len(test), min(test), max(test)) == (500, 11, 510)
    assert (len(tuning), min(tuning)) == (374, 601) and shots == [2, 3, 4] and not test & (tuning | set(shots))


def test_tuning_rows_never_overlap_the_test_rows(tmp_path):
    (tmp_path / "test.jsonl").write_text(lines(GSM[:2]))
    (tmp_path / "train.jsonl").write_text(lines([GSM[0], {**GSM[1], "question": " Q1?  "}, *GSM[2:]]))  # two slipped in
    assert find("gsm8k").tuning_rows(tmp_path).rows == GSM[2:]
    for name in ("stories", "cups", "compass"):
        task = find(name)
        test = {row["question"] for row in task.rows.load(name).rows}
        assert len(test) > 100 and not test & {row["question"] for row in task.tuning_rows().rows}
    with pytest.raises(UserError, match="humaneval has no train or validation split"):
        find("humaneval").tuning_rows(tmp_path)


def test_load_gives_rows_and_shots(tmp_path):
    rows = [{"task_id": i, "text": f"T{i}", "code": "x", "test_list": ["assert 1"]} for i in range(1, 975)]
    (tmp_path / "mbpp.jsonl").write_text(lines(rows))
    task = find("mbpp")
    loaded = task.load(data=tmp_path, limit=2)
    assert [row["task_id"] for row in loaded.rows] == [11, 12] and [row["task_id"] for row in loaded.few_shot] == [
        2,
        3,
        4,
    ]
    assert loaded.data.sha256 == task.rows.load("mbpp", tmp_path).sha256  # of the whole file: a limit is not other data
    assert [row["task_id"] for row in task.load("tuning", tmp_path, 1).rows] == [601]
    assert len(task.load("test", tmp_path).rows) == 500 and loaded.skipped == ()
    cups = find("cups").load("tuning", limit=3)
    assert cups.rows == find("cups").tuning_rows().rows[:3] and cups.shots is None and cups.few_shot == ()


def test_load_says_no_in_one_line(tmp_path):
    (tmp_path / "mbpp.jsonl").write_text(
        lines([{"task_id": i, "text": "T", "code": "x", "test_list": []} for i in (2, 11)]) + "{oops\n"
    )
    (skipped,) = (
        find("mbpp").load("test", tmp_path, skip_bad=True).skipped
    )  # named once, though shots are in this file too
    assert "mbpp.jsonl:3: not JSON" in skipped
    with pytest.raises(UserError, match=r"mbpp.jsonl:3: not JSON"):
        find("mbpp").load("test", tmp_path)
    with pytest.raises(UserError, match="the split is test or tuning, not 'train'"):
        find("cups").load("train")
    with pytest.raises(UserError, match="--limit is at least 1, not 0"):
        find("cups").load(limit=0)


def test_bad_rows_name_their_file_and_line(tmp_path):
    file = tmp_path / "test.jsonl"
    file.write_text(
        json.dumps(GSM[0])
        + "\n{oops\n"
        + json.dumps({"question": "no answer"})
        + "\n[1]\n\n"
        + json.dumps(GSM[1])
        + "\n"
    )
    task = find("gsm8k")
    with pytest.raises(UserError, match=r"test.jsonl:2: not JSON .*--bad-rows skip"):
        task.rows.load("gsm8k", file)
    loaded = task.rows.load("gsm8k", file, skip_bad=True)
    assert loaded.rows == GSM[:2]
    assert [problem.split(": ", 1)[0].rpartition(":")[2] for problem in loaded.skipped] == ["2", "3", "4"]
    assert "no field 'answer'" in loaded.skipped[1]


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "no usable row"), (b"\xff\xfe\x00", "not UTF-8"), (b'[{"question": 1}', "not JSON")],
)
def test_bad_files(tmp_path, content, message):
    (tmp_path / "rows.json").write_bytes(content)
    with pytest.raises(UserError, match=message):
        find("gsm8k").rows.load("gsm8k", tmp_path / "rows.json")


def test_missing_data_says_which_file_and_where(tmp_path, monkeypatch):
    with pytest.raises(
        UserError, match=r"has none of .*test.jsonl.*get .* from https://github.com/openai/grade.*--data FILE_OR_FOLDER"
    ):
        find("gsm8k").rows.load("gsm8k", tmp_path)
    with pytest.raises(UserError, match="no file or folder"):
        find("gsm8k").rows.load("gsm8k", tmp_path / "nowhere")

    def offline(*_, **__):
        raise OSError("the hub cannot be reached\nat all")

    monkeypatch.setattr("huggingface_hub.snapshot_download", offline)
    with pytest.raises(UserError) as caught:
        find("gsm8k").rows.load("gsm8k")
    assert (
        "\n" not in str(caught.value)
        and "--data FILE_OR_FOLDER" in str(caught.value)
        and "test.jsonl" in str(caught.value)
    )
    with pytest.raises(UserError, match="makes its own rows"):
        find("cups").rows.load("cups", tmp_path)


def test_names():
    assert find("MMLU-Pro") is not None and find("math-500").name == "math500" and find("HumanEval").name == "humaneval"
    with pytest.raises(UserError, match=r"no task 'gsm9k'; did you mean 'gsm8k'\?"):
        find("gsm9k")
    assert list(tasks())[:8] == [
        "gsm8k",
        "math500",
        "strategyqa",
        "mmlu_pro",
        "mathvista",
        "chartqa",
        "humaneval",
        "mbpp",
    ]


def test_made_rows_are_the_same_every_time():
    made = Made(lambda: [{"a": 1}])
    assert made.load("x") == made.load("x")


def test_few_shots_as_turns():
    from dataclasses import replace

    row = {"question": "Which?", "options": ["red", "green"], "category": "art"}
    task = find("mmlu_pro")
    assert task.ask(row, [SHOT]) == task.render(row, [SHOT])
    system, asked, answered, last = replace(task, layout="turns").ask(row, [SHOT])
    assert system["role"] == "system" and system["content"].endswith("where X is the correct letter choice.")
    assert asked["content"] == "Question:\nOf 2?\nOptions:\nA. one\nB. two\nAnswer: Let's think step by step."
    assert answered == {"role": "assistant", "content": "Let's think step by step. It is two. The answer is (B)."}
    assert last["content"] == "Question:\nWhich?\nOptions:\nA. red\nB. green\nAnswer: Let's think step by step."
    shot = {"text": "Sub.", "test_list": ["assert x"], "code": "def sub(): pass"}
    turns = replace(find("mbpp"), layout="turns").ask({"text": "Add.", "test_list": ["assert a"]}, [shot])
    assert [m["role"] for m in turns] == ["user", "assistant", "user"] and turns[1][
        "content"
    ] == "def sub(): pass\n[DONE]"
    assert replace(find("gsm8k"), layout="turns").ask({"question": "Q?"}) == "Q: Q?\nA: Let's think step by step."
    with pytest.raises(UserError, match="flat or turns, not 'rows'"):
        replace(task, layout="rows").ask(row)
