"""The toy suite the bundled model is trained and tested on: three worlds whose state is moved by a chain of operations.

`stories` counts on a counter that wraps, `cups` follows a ball, `compass` asks yes or no about a robot that turns.
Each operation permutes the states and the operations do not commute, so the end can be had by following the chain and
hardly by a glance. A question is (start, operations); its hash puts it into train, validation or test, so that no
chain of a test question is ever trained on. Only chains of 4 and 5 operations are tested; shorter ones teach the tables.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

ORDINALS = ("First", "Second", "Third", "Fourth", "Fifth")
HARD = (4, 5)  # operations of a validation or test question
SHORTEST = 84  # response tokens that hold every reasoning, before an anchor 20 slots from the end


@dataclass(frozen=True)
class World:
    """States, what each operation does to them, and the words of a question."""

    name: str
    states: tuple[str, ...]
    moves: dict[str, dict[str, str]]  # operation -> state before -> state after
    opening: str
    asks: str
    yes: tuple[str, ...] = ()  # half of the states; the question is then whether the end is one of them

    @property
    def answers(self) -> tuple[str, ...]:
        return ("yes", "no") if self.yes else self.states

    @property
    def chance(self) -> float:
        """How often a blind guess is right."""
        return 1 / len(self.answers)

    def answer(self, end: str) -> str:
        return ("yes" if end in self.yes else "no") if self.yes else end

    def follow(self, start: str, operations: Sequence[str]) -> list[str]:
        """The states after each operation."""
        path = [start]
        for operation in operations:
            path.append(self.moves[operation][path[-1]])
        return path[1:]


def _table(states: Sequence[str], rules: dict[str, Callable[[int], int]]) -> dict[str, dict[str, str]]:
    n = len(states)
    return {name: {states[x]: states[f(x) % n] for x in range(n)} for name, f in rules.items()}


DIAL, CUPS, POINTS = tuple("01234"), tuple("ABCD"), ("north", "east", "south", "west")
WORLDS = {
    world.name: world
    for world in (
        World("stories", DIAL, _table(DIAL, {
            "up": lambda x: x + 1, "down": lambda x: x - 1, "skip": lambda x: x + 2,
            "double": lambda x: 2 * x, "triple": lambda x: 3 * x, "mirror": lambda x: 4 - x,
        }), "The dial from 0 to 4 shows {start}.", "What does it show?"),
        World("cups", CUPS, _table(CUPS, {
            "right": lambda x: x + 1, "left": lambda x: x - 1, "ends": lambda x: (3, 1, 2, 0)[x],
            "middles": lambda x: (0, 2, 1, 3)[x], "pairs": lambda x: x ^ 1, "reverse": lambda x: 3 - x,
        }), "Of the cups A B C D the ball is under {start}.", "Where is the ball?"),
        World("compass", POINTS, _table(POINTS, {
            "left": lambda x: x - 1, "right": lambda x: x + 1, "back": lambda x: x + 2,
            "flip": lambda x: 2 - x, "roll": lambda x: -x,
        }), "The robot faces {start}.", "Does it face north or east?", yes=("north", "east")),
    )
}  # fmt: skip


@dataclass(frozen=True)
class Question:
    world: str
    prompt: str
    answer: str
    start: str
    operations: tuple[str, ...]

    @property
    def path(self) -> list[str]:
        return WORLDS[self.world].follow(self.start, self.operations)


def split_of(world: str, start: str, operations: Sequence[str]) -> str:
    """Short chains are all for training; of the others a hash gives a tenth each to validation and test."""
    if len(operations) < min(HARD):
        return "train"
    digest = hashlib.sha256("|".join((world, start, *operations)).encode()).digest()
    return {0: "test", 1: "validation"}.get(digest[0] % 10, "train")


def ask(world: World, rng: Random, operations: int, split: str = "train") -> Question:
    """A question with so many operations from a split."""
    while True:
        start, chain = rng.choice(world.states), tuple(rng.choices(list(world.moves), k=operations))
        if split_of(world.name, start, chain) == split:
            break
    orders = [f"{ordinal} {operation}." for ordinal, operation in zip(ORDINALS, chain, strict=False)]
    prompt = [world.opening.format(start=start), *orders, world.asks]
    return Question(world.name, " ".join(prompt), world.answer(world.follow(start, chain)[-1]), start, chain)


def questions(world: str, split: str, count: int, seed: int = 0) -> list[Question]:
    """`count` different chains of a split; the first ones do not depend on how many are asked for."""
    rng = Random(f"{split} of {world}, {seed}")
    found: dict[tuple[str, tuple[str, ...]], Question] = {}
    while len(found) < count:
        question = ask(WORLDS[world], rng, rng.choice(HARD), split)
        found.setdefault((question.start, question.operations), question)
    return list(found.values())


# How a response is worded. Openings come in every length, each with a first word of its own: nobody knows at the start
# where the chain will stand, no word is as sure then as a guess of the answer, and one word settles it.
INTROS = {
    "": 3,
    "Good.": 6,
    "Now think.": 5,
    "Let us see.": 12,
    "Step by step.": 3,
    "Start at the start.": 13,
    "We go step by step.": 4,
    "I will work it out.": 4,
    "There is work to do.": 3,
    "Easy enough if done with care.": 6,
    "Here we follow each step in turn.": 13,
    "That is how we start, in order.": 7,
    "This is how it goes, one by one.": 4,
    "Done with care, it goes step by step.": 4,
    "To find out we take it slowly, in order.": 3,
    "Every step in turn, slowly, one by one.": 2,
    "Nothing else is left to do: we go step by step.": 1,
    "No step is left out if we go slowly, in order.": 1,
    "All there is to do is follow each step, one by one.": 4,
}
STEPS = {  # one layout: the ordinal before the operation, as in the question, the states at fixed places after it
    "{ordinal} {operation}: {before} makes {after}.": 5,
    "{ordinal} {operation}, {before} becomes {after}.": 3,
    "{ordinal} {operation}, {before} gives {after}.": 3,
}
FILLERS = {
    "Done.": 8,
    "Good.": 7,
    "We know.": 14,
    "Nothing more happens.": 9,
    "All is well.": 6,
    "It is settled now.": 14,
    "That is all there was.": 4,
    "Every step was used once.": 4,
    "No step is left over.": 4,
    "We are sure of it.": 3,
    "We are sure of it now.": 14,
    "There is nothing else left to do.": 14,
}
ANSWERS = {"The answer is {answer}.": 14, "Therefore, the answer is {answer}.": 2, "The answer is: {answer}.": 2, "Answer: {answer}.": 2}
DIRECT = {1: 0.6, 2: 0.5, 3: 0.2, 4: 0.12, 5: 0.12}  # operations -> share of answers given without reasoning
OPERATIONS = {1: 2, 2: 3, 3: 3, 4: 6, 5: 6}  # operations -> weight in training


def _pick(rng: Random, weights: dict) -> object:
    return rng.choices(list(weights), list(weights.values()))[0]


def words(text: str) -> list[str]:
    """Text as the tokenizer splits it."""
    return re.findall(r"<\|\w+\|>|[^\s.,:?]+|[.,:?]", text)


def steps(question: Question, rng: Random | None = None) -> list[str]:
    """A sentence an operation, each in wording of its own, or all in the first."""
    found, before = [], question.start
    for ordinal, operation, after in zip(ORDINALS, question.operations, question.path, strict=False):
        form = str(_pick(rng, STEPS)) if rng else next(iter(STEPS))
        found.append(form.format(ordinal=ordinal, operation=operation, before=before, after=after))
        before = after
    return found


def reasoning(question: Question, intro: str = "", rng: Random | None = None) -> str:
    """The chain of thought, to the sentence that says where it ends."""
    end = f"It ends at {question.path[-1]}" + (f", so {question.answer}." if WORLDS[question.world].yes else ".")
    return " ".join([*([intro] if intro else []), *steps(question, rng), end])


def _fill(gap: int, rng: Random) -> list[str]:
    """Remarks of `gap` tokens in all (of none, if it is 1), seldom one twice in a row."""
    found: list[str] = []
    while gap >= 2:
        sentence = str(_pick(rng, FILLERS))
        left = gap - len(words(sentence))
        if left == 0 or (left >= 2 and found[-1:] != [sentence]):
            found.append(sentence)
            gap = left
    return found


def respond(question: Question, rng: Random, room: int) -> str:
    """A training response of at most `room` tokens: direct and short, or reasoned, answered somewhere, and mostly long."""
    answer = str(_pick(rng, ANSWERS)).format(answer=question.answer)
    if rng.random() < DIRECT[len(question.operations)]:
        return answer
    spare = -1
    while spare < 0:
        text = reasoning(question, str(_pick(rng, INTROS)), rng)
        spare = room - len(words(text)) - len(words(answer))
    before = 0 if rng.random() < 0.5 else rng.randint(0, spare)  # the answer may stand at any place
    after = round((spare - before) * rng.uniform(0.5, 1))  # only direct answers leave most of the room empty
    return " ".join([text, *_fill(before, rng), answer, *_fill(after, rng)])


def _short(worlds: Sequence[str], rng: Random, batch: int) -> list[tuple[str, str]]:
    """Questions with one number of operations: one, told by its step or answered at once, or a chain that breaks off at its
    last result. All are of one length: end-of-text behind a chain without remarks would teach that a response cut short by
    a flood of it can still reason."""
    kind = rng.choice(("step", "step", "step", "answer", "answer", "chain", "chain", "chain", "chain"))
    count = rng.choice((2, 3, 4, 5)) if kind == "chain" else 1
    asked = [ask(WORLDS[rng.choice(worlds)], rng, count) for _ in range(4 * batch // count)]
    return [(q.prompt, f"The answer is {q.answer}." if kind == "answer" else " ".join(steps(q, rng))) for q in asked]


def examples(worlds: Sequence[str], seed: int, step: int, done: float, batch: int, length: int) -> tuple[list[tuple[str, str]], int]:
    """The (prompt, response) pairs of one training step and their response length.

    In whole responses a result is nearly always repeated further on, and a model that can copy it learns no table. So
    half of the steps are short ones, most of which end at a result that stands nowhere else. The others are responses as
    they are tested, on short chains while less than a tenth of the training is `done`.
    """
    rng = Random(f"{seed}/{step}")
    if step % 2 == 0:
        rows = _short(worlds, rng, batch)
        return rows, max(len(words(response)) for _, response in rows)
    short = done < 0.1
    room = length * 7 // 12 if short else length
    operations = {k: weight for k, weight in OPERATIONS.items() if k <= 3 or not short}
    asked = [ask(WORLDS[rng.choice(worlds)], rng, int(_pick(rng, operations))) for _ in range(batch)]  # type: ignore[call-overload]
    return [(q.prompt, respond(q, rng, room)) for q in asked], room


def answer_of(text: str) -> str | None:
    """What the response says the answer is: the last word after "answer is" or "Answer:"."""
    found = re.findall(r"(?:answer is|Answer):? ?([^\s.,:?]+)", text)
    return found[-1] if found else None


def right(question: Question, text: str) -> bool:
    return answer_of(text) == question.answer


def agrees(question: Question, text: str) -> bool | None:
    """Whether the answer follows from the last state its own reasoning reached; None if it did not reason."""
    states = "|".join(WORLDS[question.world].states)
    found = re.findall(rf"(?:makes|becomes|gives) ({states})\.", text)
    if not found:
        return None
    return answer_of(text) == WORLDS[question.world].answer(found[-1])


SPECIAL = ("<|startoftext|>", "<|endoftext|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>", "<|mdm_mask|>", "<|unk|>")
PADDING = tuple(f"<|pad_{k}|>" for k in range(7))  # the cycle of Rainbow Padding
CHAT_TEMPLATE = (
    "{% for message in messages %}{% if loop.first %}{{ bos_token }}{% endif %}"
    "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }}"
    "{% endfor %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
)


def texts() -> Iterator[str]:
    """Every word of the suite, and of the paper's anchors and template, at least once."""
    yield "user assistant system 0 1 2 3 4 5 6 7 8 9 yes no Yes No return ! ; ( ) + - * / ="
    yield " ".join((*ORDINALS, *INTROS, *FILLERS, "It ends at, so"))
    for forms in (*STEPS, *ANSWERS):
        yield re.sub(r"\{\w+\}", "", forms)
    for world in WORLDS.values():
        yield " ".join((*world.states, *world.moves, *(world.opening.replace("{start}", ""), world.asks)))


def tokenizer():  # -> transformers.PreTrainedTokenizerFast
    """One word or sign, one token."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    known = dict.fromkeys((*SPECIAL, *PADDING, *(word for text in texts() for word in words(text))))
    core = Tokenizer(models.WordLevel({word: i for i, word in enumerate(known)}, unk_token="<|unk|>"))
    core.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation()])
    core.decoder = decoders.Sequence(
        [decoders.WordPiece(prefix="##", cleanup=False), decoders.Fuse(), decoders.Replace(Regex(r" (?=[.,:;?!])"), "")]
    )
    made = PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token=SPECIAL[0], eos_token=SPECIAL[1], pad_token=SPECIAL[1], unk_token="<|unk|>",
        additional_special_tokens=[*SPECIAL[2:6], *PADDING], clean_up_tokenization_spaces=False,
    )  # fmt: skip
    made.chat_template = CHAT_TEMPLATE
    return made
