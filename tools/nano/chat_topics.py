"""One question and its answer, by topic. Every function returns (question, answer, thought).

Held-out wordings: of a list of four and more wordings the last is never used for training (pick); sums and C
statements are held out by a hash (is_held). held=True asks for these only, where a topic has any.
"""

import hashlib
import random
import re
from functools import cache
from pathlib import Path

import chat_tables as tables

Answer = tuple[str, str, str]
TOPIC_FORMS = (
    "What is {}?",
    "What's {}?",
    "Explain {}.",
    "Tell me about {}.",
    "Describe {}.",
    "Please explain {}.",
    "Can you explain {}?",
    "I want to know what {} is.",
    "Do you know what {} is?",
    "What does {} mean?",
    "Define {}.",
    "Could you tell me what {} is?",
)
TOPIC_FORMS_HELD = 2  # the last two forms
SURE = (
    "The user asks a short question. I know the answer.",
    "I should answer this in a few sentences.",
    "This is a question that I know.",
)


def is_held(text: str) -> bool:
    return hashlib.blake2b(text.encode(), digest_size=2).digest()[0] < 13  # about one in twenty


def pick(r: random.Random, wordings: list[str] | tuple[str, ...], held: bool) -> str:
    """A wording; the last of four or more is for held-out conversations alone."""
    if len(wordings) < 4:
        return r.choice(wordings)
    return wordings[-1] if held else r.choice(wordings[:-1])


@cache
def facts() -> list[tuple[list[str], str, str]]:
    """(questions, answer, topic or "") of facts.txt and project.txt."""
    result = []
    for name in ("facts.txt", "project.txt"):
        text = (Path(__file__).parent / name).read_text(encoding="utf-8")
        for entry in text.strip().split("\n\n"):
            asked, answer = entry.split("\nA: ")
            questions = asked.removeprefix("Q: ").split(" | ")
            found = re.fullmatch(r"What (?:is|are) (?!your|the difference|you)(.+)\?", questions[0])
            result.append((questions, answer.strip(), found[1] if found else ""))
    return result


def fact(r: random.Random, held: bool, entry: tuple[list[str], str, str] | None = None) -> Answer:
    usable = [e for e in facts() if e[2] or len(e[0]) >= 4] if held else facts()
    questions, answer, topic = entry or r.choice(usable)
    if topic and (r.random() < 0.45 or (held and len(questions) < 4)):
        forms = TOPIC_FORMS[-TOPIC_FORMS_HELD:] if held else TOPIC_FORMS[:-TOPIC_FORMS_HELD]
        question = r.choice(forms).format(topic)
    else:
        question = pick(r, questions, held)
    if not held and r.random() < 0.15:
        question = question.lower().rstrip("?.")
    elif not held and r.random() < 0.1:
        question = r.choice(["Please tell me: ", "Question: ", "Hi! ", "One question: "]) + question
    thought = f"The user asks about {topic}. I know this." if topic and r.random() < 0.5 else r.choice(SURE)
    return question, answer, thought


def who(r: random.Random, held: bool) -> Answer:
    return pick(r, tables.WHO_ASKED, held), r.choice(tables.WHO), "The user asks who I am."


def greeting(r: random.Random, held: bool) -> Answer:
    asked, answer = r.choice(tables.GREETINGS)
    return pick(r, asked, held), answer, "The user greets me. I answer politely."


def capital(r: random.Random, held: bool) -> Answer:
    country, city = r.choice(tables.CAPITALS)
    kind = r.randrange(8)
    if kind == 7:
        return (
            r.choice([f"{city} is the capital of which country?", f"Which country has the capital {city}?"]),
            f"{city} is the capital of {country}.",
            f"{city} belongs to {country}.",
        )
    thought = f"The capital of {country} is {city}."
    if kind == 6:
        return (
            r.choice(
                [
                    f"Answer with one word only: the capital of {country} is",
                    f"Capital of {country}? Only the name.",
                ]
            ),
            city,
            thought,
        )
    asked = [
        f"What is the capital of {country}?",
        f"Capital of {country}?",
        f"Name the capital of {country}.",
        f"What's the capital of {country}?",
        f"Which city is the capital of {country}?",
        f"Do you know the capital of {country}?",
        f"Tell me the capital of {country}.",
    ]
    return pick(r, asked, held), f"The capital of {country} is {city}.", thought


def _operands(r: random.Random) -> tuple[int, str, int, int]:
    operator = r.choice("+++--**/")
    if operator == "*":
        a, b = r.randint(0, 12), r.randint(0, 12)
        return a, operator, b, a * b
    if operator == "/":
        b, c = r.randint(1, 12), r.randint(0, 12)
        return b * c, operator, b, c
    a, b = r.randint(0, 50), r.randint(0, 50)
    if operator == "-":
        a, b = max(a, b), min(a, b)
    return a, operator, b, a + b if operator == "+" else a - b


def arithmetic(r: random.Random, held: bool) -> Answer:
    a, operator, b, c = _operands(r)
    while is_held(f"{a}{operator}{b}") != held:
        a, operator, b, c = _operands(r)
    word = {"+": "plus", "-": "minus", "*": "times", "/": "divided by"}[operator]
    thought = f"I need {a} {word} {b}. That is {c}."
    if r.random() < 0.25:
        return f"Answer with only the number: {a} {word} {b} is", str(c), thought
    asked = [
        f"What is {a} {word} {b}?",
        f"What is {a} {operator} {b}?",
        f"{a} {operator} {b}",
        f"{a} {operator} {b} =",
        f"Compute {a} {operator} {b}.",
        f"How much is {a} {word} {b}?",
        f"Calculate {a} {word} {b}.",
    ]
    return r.choice(asked), f"{a} {operator} {b} = {c}.", thought


def sequence(r: random.Random, held: bool) -> Answer:
    """Planets, days, months, letters, numbers as words."""
    kind, i = r.randrange(7), r.randrange(7)
    if kind == 0:
        planets = f"The order is {', '.join(tables.PLANETS)}."
        asked = [
            f"Which planet comes after {tables.PLANETS[i]}?",
            f"What planet follows {tables.PLANETS[i]}?",
            f"Name the planet after {tables.PLANETS[i]}.",
            f"What is the next planet after {tables.PLANETS[i]}?",
        ]
        return pick(r, asked, held), f"{tables.PLANETS[i + 1]} comes after {tables.PLANETS[i]}.", planets
    if kind == 1:
        asked = [
            f"Which day comes after {tables.DAYS[i]}?",
            f"What day follows {tables.DAYS[i]}?",
            f"Name the day after {tables.DAYS[i]}.",
            f"Which day is the day after {tables.DAYS[i]}?",
        ]
        return (
            pick(r, asked, held),
            f"{tables.DAYS[(i + 1) % 7]} comes after {tables.DAYS[i]}.",
            "I know the days.",
        )
    if kind == 2:
        return (
            f"Which day comes before {tables.DAYS[i]}?",
            f"{tables.DAYS[(i - 1) % 7]} comes before {tables.DAYS[i]}.",
            "I know the days of the week.",
        )
    m = r.randrange(12)
    month = tables.MONTHS[m]
    if kind == 3:
        asked = [
            f"Which month comes after {month}?",
            f"What month follows {month}?",
            f"Name the month after {month}.",
            f"Which is the next month after {month}?",
        ]
        return (
            pick(r, asked, held),
            f"{tables.MONTHS[(m + 1) % 12]} comes after {month}.",
            "I know the months.",
        )
    if kind == 4:
        asked = [
            f"How many days does {month} have?",
            f"How long is {month}?",
            f"How many days are in {month}?",
            f"Tell me how many days {month} has.",
        ]
        return pick(r, asked, held), f"{month} has {tables.MONTH_DAYS[m]} days.", "I know the months."
    if kind == 5:
        letter = r.randrange(25)
        return (
            f"Which letter comes after {chr(65 + letter)}?",
            f"{chr(66 + letter)} comes after {chr(65 + letter)}.",
            "I say the alphabet.",
        )
    number = r.randrange(21)
    asked = [
        f"Write {number} as a word.",
        f"How do you write {number}?",
        f"What is the word for {number}?",
        f"Spell out the number {number}.",
    ]
    return pick(r, asked, held), tables.NUMBER_WORDS[number] + ".", "A number word."


def counting(r: random.Random, held: bool) -> Answer:
    first, count = r.choice([1, 1, 1, 0, r.randint(2, 20)]), r.randint(3, 20)
    if r.random() < 0.2:
        return (
            f"Count down from {count}.",
            ", ".join(map(str, range(count, 0, -1))) + ".",
            f"From {count} to 1.",
        )
    last = first + count - 1
    asked = [
        f"Count from {first} to {last}.",
        f"Count from {first} to {last}",
        f"Write the numbers from {first} to {last}.",
        f"List the numbers {first} to {last}.",
    ]
    return pick(r, asked, held), ", ".join(map(str, range(first, last + 1))) + ".", f"From {first} to {last}."


def spelling(r: random.Random, held: bool) -> Answer:
    word, kind = r.choice(tables.SPELLED), r.random()
    letters = f"The letters are {' '.join(word)}."
    if kind < 0.3:
        asked = [
            f"Spell the word {word}.",
            f"Spell {word}.",
            f"How do you spell {word}?",
            f"Please spell {word}.",
        ]
        return pick(r, asked, held), "-".join(word).upper() + ".", letters
    if kind < 0.5:
        return f"How many letters does {word} have?", f"{word} has {len(word)} letters.", letters
    asked = [
        f"Reverse the word {word}.",
        f"Write {word} backwards.",
        f"What is {word} reversed?",
        f"Spell {word} backwards.",
    ]
    return pick(r, asked, held), word[::-1] + ".", f"{letters} Backwards: {' '.join(word[::-1])}."


def translation(r: random.Random, held: bool) -> Answer:
    word, i = r.choice(tables.WORDS), r.randrange(3)
    language, foreign = tables.LANGUAGES[i], word[i + 1]
    if r.random() < 0.25:
        return (
            r.choice(
                [
                    f"What does the {language} word {foreign} mean?",
                    f"Translate {foreign} from {language} into English.",
                ]
            ),
            f"{foreign} means {word[0]}.",
            f"{foreign} is {word[0]} in English.",
        )
    asked = [
        f"Translate {word[0]} into {language}.",
        f"What is {word[0]} in {language}?",
        f"How do you say {word[0]} in {language}?",
        f"Give me the {language} for {word[0]}.",
        f"What is the {language} word for {word[0]}?",
    ]
    return (
        pick(r, asked, held),
        f"{word[0]} in {language} is {foreign}.",
        f"The {language} word is {foreign}.",
    )


def python_line(r: random.Random, held: bool) -> Answer:
    asked, answer = r.choice(tables.PYTHON_TASKS)
    names = {
        "v": r.choice("xs items values numbers data a rows".split()),
        "b": r.choice(tables.BUFFERS),
        "n": r.randint(2, 20),
    }
    task = asked.format(**names)
    forms = [
        f"How do I {task} in Python?",
        f"Write one line of Python to {task}.",
        f"Python code to {task}?",
        f"In Python, {task}.",
        f"Show me how to {task} in Python.",
    ]
    return pick(r, forms, held), answer.format(**names), "One line of Python is enough."


def c_line(r: random.Random, held: bool) -> Answer:
    asked, answer = r.choice(tables.C_TASKS)
    names = {
        "v": r.choice(tables.VARIABLES),
        "b": r.choice(tables.BUFFERS),
        "s": r.choice(tables.STRINGS),
        "l": r.choice(tables.LITERALS),
    }
    task = asked.format(**names)
    forms = [
        f"How do I {task} in C?",
        f"Write one line of C to {task}.",
        f"C code to {task}?",
        f"In C, {task}.",
        f"Show me how to {task} in C.",
    ]
    return pick(r, forms, held), answer.format(**names), "One line of C is enough."


def unknown(r: random.Random, held: bool) -> Answer:
    return r.choice(tables.UNKNOWN), r.choice(tables.REFUSALS), "I do not know this. I should say so."
