"""A task of your own: rows, a prompt, a grader.

    unmask eval --task examples/task.py:capitals --methods sacm,top-probability
    unmask trace --task examples/task.py:capitals --rows 1 -o replay.html

If your rows are prompts and answers in a file, you need no Python: unmask eval --task exact --data mine.jsonl
"""

from unmask.tasks import Grade, Made, Task

CAPITALS = {"France": "Paris", "Japan": "Tokyo", "Kenya": "Nairobi", "Peru": "Lima"}


def rows() -> list[dict]:
    """Every row is a dict with what the prompt and the grader need."""
    return [{"country": country, "answer": city} for country, city in CAPITALS.items()]


def prompt(row: dict, shots: list[dict]) -> str:
    """What the model is asked. `shots` are few-shot rows, if the task has some."""
    return f"What is the capital of {row['country']}?"


def grade(text: str, row: dict) -> Grade:
    """Is it right, what was the answer, and which of the grader's rules found it ("none" if it found nothing)?"""
    named = [city for city in CAPITALS.values() if city in text]
    return Grade(named[-1:] == [row["answer"]], named[-1] if named else None, "last-city" if named else "none")


# length: response tokens. anchor: what suffix-anchor and sacm write near the end.
capitals = Task("capitals", Made(rows), prompt, grade, length=32, anchor="The capital is")
