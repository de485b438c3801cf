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

NAMES = ("Ann", "Bob", "Eve", "Kim", "Sam", "Tom")
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
    act: str  # one operation in the question
    asks: str
    yes_no: bool = False

    @property
    def chance(self) -> float:
        """How often a blind guess is right."""
        return 0.5 if self.yes_no else 1 / len(self.states)

    def follow(self, start: str, operations: Sequence[str]) -> list[str]:
        """The states after each operation."""
        path = [start]
        for operation in operations:
            path.append(self.moves[operation][path[-1]])
        return path[1:]


def _counter() -> dict[str, dict[str, str]]:
    arithmetic: dict[str, Callable[[int], int]] = {
        "adds 1": lambda x: x + 1, "adds 2": lambda x: x + 2, "removes 1": lambda x: x - 1,
        "doubles it": lambda x: 2 * x, "triples it": lambda x: 3 * x, "mirrors it": lambda x: 4 - x,
    }  # fmt: skip
    return {name: {str(x): str(f(x) % 5) for x in range(5)} for name, f in arithmetic.items()}


def _swaps(colours: Sequence[str]) -> dict[str, dict[str, str]]:
    return {
        f"{a} and {b}": {c: {a: b, b: a}.get(c, c) for c in colours} for a in colours for b in colours if a != b
    }


def _turns() -> dict[str, dict[str, str]]:
    points = ("north", "east", "south", "west")
    arithmetic: dict[str, Callable[[int], int]] = {
        "turns left": lambda x: x - 1, "turns right": lambda x: x + 1, "turns back": lambda x: x + 2,
        "flips over": lambda x: 2 - x, "rolls over": lambda x: -x,
    }  # fmt: skip
    return {name: {points[x]: points[f(x) % 4] for x in range(4)} for name, f in arithmetic.items()}


COLOURS = ("red", "blue", "green", "white")
WORLDS = {
    world.name: world
    for world in (
        World("stories", tuple("01234"), _counter(), "{name} has a counter from 0 to 4 that wraps around. It shows {start}.",
              "{ordinal}, {name} {operation}.", "What does it show?"),
        World("cups", COLOURS, _swaps(COLOURS), "{name} hides a ball under the {start} cup.",
              "{ordinal}, {name} swaps {operation}.", "Where is the ball?"),
        World("compass", ("north", "east", "south", "west"), _turns(), "A robot faces {start}.",
              "{ordinal}, it {operation}.", "Does it face {asked}?", yes_no=True),
    )
}  # fmt: skip


@dataclass(frozen=True)
class Question:
    world: str
    prompt: str
    answer: str
    start: str
    operations: tuple[str, ...]
    asked: str = ""  # the state a yes/no question names

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
        state = start = rng.choice(world.states)
        chain: tuple[str, ...] = ()
        for _ in range(operations):
            operation = rng.choice(list(world.moves))
            # half of all swaps leave the ball where it is; trained on so many, the model learns to copy and never to swap
            if split == "train" and world.moves[operation][state] == state and rng.random() < 0.7:
                operation = rng.choice([name for name, move in world.moves.items() if move[state] != state])
            chain, state = (*chain, operation), world.moves[operation][state]
        if split_of(world.name, start, chain) == split:
            break
    end, asked, answer = world.follow(start, chain)[-1], "", ""
    if world.yes_no:
        answer = rng.choice(("yes", "no"))
        asked = end if answer == "yes" else rng.choice([s for s in world.states if s != end])
    prompt = [world.opening.format(name=rng.choice(NAMES), start=start)]
    for ordinal, operation in zip(ORDINALS, chain, strict=False):
        prompt.append(world.act.format(ordinal=ordinal, name=rng.choice(NAMES), operation=operation))
    prompt.append(world.asks.format(asked=asked))
    return Question(world.name, " ".join(prompt), answer or end, start, chain, asked)


def questions(world: str, split: str, count: int, seed: int = 0) -> list[Question]:
    """`count` different chains of a split; the first ones do not depend on how many are asked for."""
    rng = Random(f"{world}/{split}/{seed}")
    found: dict[tuple[str, tuple[str, ...]], Question] = {}
    while len(found) < count:
        question = ask(WORLDS[world], rng, rng.choice(HARD), split)
        found.setdefault((question.start, question.operations), question)
    return list(found.values())


# How a response is worded. Weights are uneven so that what is likeliest at one place agrees with what is likeliest at
# the next, and flat enough that at the start no wording is as sure as a guess of the answer.
INTROS = {
    "": 5,
    "Let us see.": 15,
    "We go step by step.": 11,
    "Sure.": 8,
    "This is how it goes, one by one.": 9,
    "Start at the start.": 9,
    "Here we follow each step in turn.": 9,
    "To find out we take every step slowly, in order.": 9,
    "Now think.": 8,
    "I will work it out.": 9,
    "Easy enough if done with care.": 8,
}
STEPS = {
    "{ordinal} {before}, {operation}: {after}.": 5,
    "{ordinal}, from {before}, {operation} makes {after}.": 3,
    "Step {k}: {before}, {operation} gives {after}.": 3,
}
FILLERS = {
    "Nothing more happens.": 16,
    "That is all there was.": 12,
    "Every step was used once.": 10,
    "No step is left over.": 10,
    "Done.": 6,
    "All is well.": 8,
    "We are sure of it.": 9,
    "Good.": 5,
    "It is settled now.": 8,
    "There is nothing else left to do.": 9,
    "We know.": 8,
}
ANSWERS = {"The answer is {answer}.": 14, "Therefore, the answer is {answer}.": 2, "The answer is: {answer}.": 2, "Answer: {answer}.": 2}
DIRECT = {1: 0.6, 2: 0.5, 3: 0.2, 4: 0.12, 5: 0.12}  # operations -> share of answers given without reasoning
OPERATIONS = {1: 2, 2: 3, 3: 3, 4: 6, 5: 6}  # operations -> weight in training


def _pick(rng: Random, weights: dict) -> object:
    return rng.choices(list(weights), list(weights.values()))[0]


def words(text: str) -> list[str]:
    """Text as the tokenizer splits it."""
    return re.findall(r"<\|\w+\|>|[^\s.,:?]+|[.,:?]", text)


def reasoning(question: Question, intro: str = "", step: str = next(iter(STEPS))) -> str:
    """The chain of thought, to the sentence that says where it ends."""
    parts, before = [intro] if intro else [], question.start
    for k, (operation, after) in enumerate(zip(question.operations, question.path, strict=True)):
        if step:
            parts.append(step.format(ordinal=ORDINALS[k], k=k + 1, before=before, operation=operation, after=after))
        before = after
    parts.append(f"It ends at {before}, so {question.answer}." if question.asked else f"It ends at {before}.")
    return " ".join(parts)


def respond(question: Question, rng: Random, room: int) -> str:
    """A training response of at most `room` tokens: direct and short, or reasoned, padded out and then answered."""
    answer = str(_pick(rng, ANSWERS)).format(answer=question.answer)
    if rng.random() < DIRECT[len(question.operations)]:
        return answer
    spare = -1
    while spare < 0:
        text = reasoning(question, str(_pick(rng, INTROS)), str(_pick(rng, STEPS)))
        spare = room - len(words(text)) - len(words(answer))
    gap = 0 if rng.random() < 0.4 else rng.randint(0, spare)  # answers may stand at any place before the end
    while gap >= 2:
        filler = str(_pick(rng, FILLERS))
        if (left := gap - len(words(filler))) == 0 or left >= 2:
            text, gap = f"{text} {filler}", left
    return f"{text} {answer}"


def _entry(question: Question, rng: Random) -> str:
    """Table entries: the steps alone, or for one operation the answer alone (of yes and no, with the state it is about)."""
    if len(question.operations) > 1 or rng.random() < 0.5:
        return reasoning(question, "", str(_pick(rng, STEPS))).rsplit(" It ends", 1)[0]
    end = reasoning(question, step="") + " " if question.asked else ""
    return f"{end}The answer is {question.answer}."


def examples(worlds: Sequence[str], seed: int, step: int, done: float, batch: int, length: int) -> tuple[list[tuple[str, str]], int]:
    """The (prompt, response) pairs of one training step and their response length.

    Some batches are short chains that break off at a result, or answer one operation at once: they alone show a table
    entry with no copy of the result to read off. They are every second one in the first 30 % of the training (`done`)
    and every fourth after. The others are mostly chains as they are tested, with a stretch of short chains on a
    shorter canvas between 30 and 47 %.
    """
    rng = Random(f"{seed}/{step}")
    if step % (2 if done < 0.3 else 4) == 0:
        most = rng.choice((1, max(HARD)))
        asked = [ask(WORLDS[rng.choice(worlds)], rng, rng.randint(1, most)) for _ in range(2 * batch)]
        return [(q.prompt, _entry(q, rng)) for q in asked], 16 if most == 1 else length * 7 // 12
    short = 0.3 <= done < 0.47 or rng.random() < 0.3
    operations = {k: weight for k, weight in OPERATIONS.items() if (k <= 3) == short or rng.random() < 0.1}
    room = length * 7 // 12 if max(operations) <= 3 else length
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
    found = re.findall(rf"(?:: |makes |gives )({states})\.", re.sub(r"(?:answer is|Answer): ?\S+", "", text))
    if not found:
        return None
    return answer_of(text) == (("yes" if found[-1] == question.asked else "no") if question.asked else found[-1])


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
    yield " ".join((*NAMES, *ORDINALS, *INTROS, *FILLERS, "It ends at, so"))
    for forms in (*STEPS, *ANSWERS):
        yield re.sub(r"\{\w+\}", "", forms)
    for world in WORLDS.values():
        yield " ".join((*world.states, *world.moves, *(re.sub(r"\{\w+\}", "", t) for t in (world.opening, world.act, world.asks))))


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
