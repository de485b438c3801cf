"""The toy suite that the bundled model is trained and tested on: three worlds, each asked in two formats.

In `stories` a dial wraps around, in `cups` a ball is moved about, and `compass` asks a yes-or-no question about a robot
that turns. A chain of operations changes the state of the world. Every operation permutes the states, and the operations
do not commute, so the end state can be found by following the chain but hardly at a glance.

In the plain format the answer follows the reasoning. `stories-first`, `cups-first` and `compass-first` ask the same
questions and want the answer first: there the reasoning that it depends on stands behind it.

A hash of the start and the operations puts each chain into train, validation or test, whatever the format, so no chain
of a test question is ever trained on. Only chains of 4 and 5 operations are tested; shorter ones teach the tables.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random

ORDINALS = ("First", "Second", "Third", "Fourth", "Fifth")
HARD = (4, 5)  # the number of operations in a validation or test question
SHORTEST = 84  # response tokens enough for the reasoning in front of an anchor 20 slots from the end
SUFFIX = "-first"  # of the name of a world that is asked for the answer first


@dataclass(frozen=True)
class World:
    """The states, what each operation does to them, and the wording and format of a question."""

    name: str
    states: tuple[str, ...]
    moves: dict[str, dict[str, str]]  # operation -> state before -> state after
    opening: str
    asks: str
    yes: tuple[str, ...] = ()  # half of the states; the question is then whether the end state is one of them
    first: bool = False  # the answer stands at the front, and the reasoning behind it

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
        """The state after each operation."""
        path = [start]
        for operation in operations:
            path.append(self.moves[operation][path[-1]])
        return path[1:]


def _table(states: Sequence[str], rules: dict[str, Callable[[int], int]]) -> dict[str, dict[str, str]]:
    n = len(states)
    return {name: {states[x]: states[f(x) % n] for x in range(n)} for name, f in rules.items()}


DIAL, CUPS, POINTS = tuple("01234"), tuple("ABCD"), ("north", "east", "south", "west")
_WORLDS = (
    World("stories", DIAL, _table(DIAL, {
        "up": lambda x: x + 1, "down": lambda x: x - 1, "skip": lambda x: x + 2,
        "double": lambda x: 2 * x, "triple": lambda x: 3 * x, "mirror": lambda x: 4 - x,
    }), "The dial from 0 to 4 shows {start}.", "What does it show?"),
    World("cups", CUPS, _table(CUPS, {
        "right": lambda x: x + 1, "left": lambda x: x - 1, "ends": lambda x: (3, 1, 2, 0)[x],
        "middles": lambda x: (0, 2, 1, 3)[x], "pairs": lambda x: x ^ 1, "reverse": lambda x: 3 - x,
    }), "The cups are A B C D. The ball is under {start}.", "Where is the ball?"),
    World("compass", POINTS, _table(POINTS, {
        "left": lambda x: x - 1, "right": lambda x: x + 1, "back": lambda x: x + 2,
        "flip": lambda x: 2 - x, "roll": lambda x: -x,
    }), "The robot faces {start}.", "Does it face north or east?", yes=("north", "east")),
)  # fmt: skip
_FIRST = tuple(replace(w, name=w.name + SUFFIX, asks=f"{w.asks} Answer first.", first=True) for w in _WORLDS)
WORLDS = {world.name: world for world in (*_WORLDS, *_FIRST)}
PLAIN, FIRST = tuple(w.name for w in _WORLDS), tuple(w.name for w in _FIRST)


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


def _byte(text: str) -> int:
    return hashlib.sha256(text.encode()).digest()[0]


def split_of(world: str, start: str, operations: Sequence[str]) -> str:
    """Short chains are all for training; a hash assigns about a tenth of the others to validation and a tenth to test.

    This is the second edition of the splits. Chains of the first edition's test and validation rows have been looked at,
    so they are all for training now. The format does not count: a chain is in the same split in both.
    """
    chain = "|".join((world.removesuffix(SUFFIX), start, *operations))
    if len(operations) < min(HARD) or _byte(chain) % 10 < 2:
        return "train"
    return {0: "test", 1: "validation"}.get(_byte(f"second edition|{chain}") % 8, "train")


def ask(world: World, rng: Random, operations: int, split: str = "train") -> Question:
    """A random question from a split, with the given number of operations."""
    while True:
        start, chain = rng.choice(world.states), tuple(rng.choices(list(world.moves), k=operations))
        if split_of(world.name, start, chain) == split:
            break
    orders = [f"{ordinal} {operation}." for ordinal, operation in zip(ORDINALS, chain, strict=False)]
    prompt = [world.opening.format(start=start), *orders, world.asks]
    return Question(world.name, " ".join(prompt), world.answer(world.follow(start, chain)[-1]), start, chain)


def questions(world: str, split: str, count: int, seed: int = 0) -> list[Question]:
    """`count` questions with different chains; the first ones are the same however many are asked for, in either format."""
    rng = Random(f"{split} of {world.removesuffix(SUFFIX)}, {seed}")
    found: dict[tuple[str, tuple[str, ...]], Question] = {}
    while len(found) < count:
        question = ask(WORLDS[world], rng, rng.choice(HARD), split)
        found.setdefault((question.start, question.operations), question)
    return list(found.values())


# How responses are worded. Openings come in every length, and each has a first word of its own. So at the start nothing
# tells where the chain will stand, and no word of it is as certain as a guess at the answer, until one word settles it.
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
STEPS = {  # always in one layout: ordinal and operation as in the question, then the two states at fixed places
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
DIRECT = {1: 0.6, 2: 0.5, 3: 0.2, 4: 0.12, 5: 0.12}  # operations -> share of responses that do not reason
OPERATIONS = {1: 2, 2: 3, 3: 3, 4: 6, 5: 6}  # operations -> weight in training


def _pick(rng: Random, weights: dict) -> object:
    return rng.choices(list(weights), list(weights.values()))[0]


def words(text: str) -> list[str]:
    """The words and signs of a text, as the tokenizer splits it."""
    return re.findall(r"<\|\w+\|>|[^\s.,:?]+|[.,:?]", text)


def steps(question: Question, rng: Random | None = None) -> list[str]:
    """One sentence per operation, each in a wording drawn at random, or all in the first one."""
    found, before = [], question.start
    for ordinal, operation, after in zip(ORDINALS, question.operations, question.path, strict=False):
        form = str(_pick(rng, STEPS)) if rng else next(iter(STEPS))
        found.append(form.format(ordinal=ordinal, operation=operation, before=before, after=after))
        before = after
    return found


def reasoning(question: Question, intro: str = "", rng: Random | None = None) -> str:
    """The chain of thought, up to the sentence that says where it ends."""
    end = f"It ends at {question.path[-1]}" + (f", so {question.answer}." if WORLDS[question.world].yes else ".")
    return " ".join([*([intro] if intro else []), *steps(question, rng), end])


def _fill(gap: int, rng: Random) -> list[str]:
    """Remarks of `gap` tokens in all (none if it is 1), hardly ever the same one twice in a row."""
    found: list[str] = []
    while gap >= 2:
        sentence = str(_pick(rng, FILLERS))
        left = gap - len(words(sentence))
        if left == 0 or (left >= 2 and found[-1:] != [sentence]):
            found.append(sentence)
            gap = left
    return found


def respond(question: Question, rng: Random, room: int) -> str:
    """A training response of at most `room` tokens: a bare answer, or reasoning, remarks and an answer, which is mostly long."""
    first = WORLDS[question.world].first
    answer = (next(iter(ANSWERS)) if first else str(_pick(rng, ANSWERS))).format(answer=question.answer)
    if rng.random() < DIRECT[len(question.operations)]:
        return answer
    spare = -1
    while spare < 0:
        text = reasoning(question, str(_pick(rng, INTROS)), rng)
        spare = room - len(words(text)) - len(words(answer))
    before = 0 if first or rng.random() < 0.5 else rng.randint(0, spare)  # in the plain format the answer may stand anywhere
    after = round((spare - before) * rng.uniform(0.5, 1))  # only bare answers leave most of the room empty
    told = [answer, text] if first else [text, *_fill(before, rng), answer]
    return " ".join([*told, *_fill(after, rng)])


def _short(worlds: Sequence[str], rng: Random, batch: int) -> list[tuple[str, str]]:
    """Plain questions, all with the same number of operations: either a single one, told as a step or answered at once, or
    a chain that breaks off at its last result. All responses have one length: end-of-text behind a chain without remarks
    would teach the model that a response cut short by a flood of end-of-text can still reason."""
    kind = rng.choice(("step", "step", "step", "answer", "answer", "chain", "chain", "chain", "chain"))
    count = rng.choice((2, 3, 4, 5)) if kind == "chain" else 1
    plain = [world.removesuffix(SUFFIX) for world in worlds]
    asked = [ask(WORLDS[rng.choice(plain)], rng, count) for _ in range(4 * batch // count)]
    return [(q.prompt, f"The answer is {q.answer}." if kind == "answer" else " ".join(steps(q, rng))) for q in asked]


def examples(worlds: Sequence[str], seed: int, step: int, done: float, batch: int, length: int) -> tuple[list[tuple[str, str]], int]:
    """The (prompt, response) pairs of one training step, and their response length.

    In a whole response nearly every result is repeated further on, and a model that can copy it does not learn the tables.
    So every other step is a short one, and most of those end at a result that stands nowhere else. The others hold
    responses like those that are tested, with short chains only while less than a tenth of the training is `done`.
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


def answer_of(text: str, first: bool = False) -> str | None:
    """What the response says the answer is: the word after its last (or its first) "answer is" or "Answer:"."""
    found = re.findall(r"(?:answer is|Answer):? ?([^\s.,:?]+)", text)
    return found[0 if first else -1] if found else None


def right(question: Question, text: str) -> bool:
    """Whether the stated answer is the right one: the last that is stated, or the first where that was asked for."""
    return answer_of(text, WORLDS[question.world].first) == question.answer


def agrees(question: Question, text: str) -> bool | None:
    """Whether the answer follows from the last state that the response itself reached; None if it does not reason."""
    world = WORLDS[question.world]
    found = re.findall(rf"(?:makes|becomes|gives) ({'|'.join(world.states)})\.", text)
    return answer_of(text, world.first) == world.answer(found[-1]) if found else None


SPECIAL = ("<|startoftext|>", "<|endoftext|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>", "<|mdm_mask|>", "<|unk|>")
PADDING = tuple(f"<|pad_{k}|>" for k in range(7))  # the cycle of Rainbow Padding
CHAT_TEMPLATE = (
    "{% for message in messages %}{% if loop.first %}{{ bos_token }}{% endif %}"
    "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }}"
    "{% endfor %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
)


def texts() -> Iterator[str]:
    """Every word of the suite and of the paper's anchors and template, at least once."""
    yield "user assistant system 0 1 2 3 4 5 6 7 8 9 yes no Yes No return ! ; ( ) + - * / ="
    yield " ".join((*ORDINALS, *INTROS, *FILLERS, "It ends at, so"))
    for forms in (*STEPS, *ANSWERS):
        yield re.sub(r"\{\w+\}", "", forms)
    for world in WORLDS.values():
        yield " ".join((*world.states, *world.moves, world.opening.replace("{start}", ""), world.asks))


def tokenizer():  # -> transformers.PreTrainedTokenizerFast
    """Each word or sign is one token."""
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
