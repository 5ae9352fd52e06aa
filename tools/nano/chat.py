"""Synthetic conversations in GLM-5.2's prompt format.

    python tools/nano/chat.py WORK [CONVERSATIONS [PROCESSES]]

writes WORK/chat.bin (training), WORK/chat_held.bin (held-out wordings, sums and statements; see chat_topics)
and WORK/chat_sample.txt. uint16 ids; the high bit marks a token that bears no loss (what the user says).

A conversation is a list of (role, text); roles: tools, system, user, assistant, past (an assistant turn that
bears no loss), observation. Thinking conversations follow the template: an effort line, reasoning in the last
answer only, as histories keep none.
"""

import json
import random
import sys
from multiprocessing import Pool
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

import chat_commands as commands
import chat_tables as tables
import chat_topics as topics

Talk = list[tuple[str, str]]
NO_LOSS = 0x8000
PER_JOB = 10_000
HELD_CONVERSATIONS = 4000
ROLE = {
    "system": "<|system|>",
    "tools": "<|system|>",
    "user": "<|user|>",
    "assistant": "<|assistant|>",
    "past": "<|assistant|>",
    "observation": "<|observation|>",
}
TOPICS = (
    (topics.fact, 30),
    (topics.greeting, 4),
    (topics.who, 2),
    (topics.capital, 8),
    (topics.arithmetic, 12),
    (topics.sequence, 6),
    (topics.counting, 4),
    (topics.spelling, 5),
    (topics.translation, 7),
    (commands.completion, 12),
    (topics.c_line, 4),
    (topics.python_line, 4),
    (commands.command, 8),
    (commands.error_line, 4),
    (topics.unknown, 2),
)


def question(r: random.Random, held: bool) -> topics.Answer:
    return r.choices([topic for topic, _ in TOPICS], [weight for _, weight in TOPICS])[0](r, held)


# ---- conversations that need what was said before ----


def recall(r: random.Random, held: bool) -> list[topics.Answer]:
    """The user says something, talks about something else, and asks for it."""
    name, number, colour = r.choice(tables.NAMES), r.randint(2, 999), r.choice(tables.COLOURS)
    model, word = r.choice(tables.MODEL_FILES), r.choice(tables.SPELLED)
    names = {"name": name, "number": number, "colour": colour, "Colour": colour.capitalize(), "model": model}
    said, reply, asked, answer = r.choice(tables.RECALL)
    reply, answer = reply.format(**names, word=word), answer.format(**names, word=word)
    first = topics.pick(r, said, held).format(**names, word=word)
    talk = [(first, reply, "The user tells me something. I keep it in mind.")]
    talk += [question(r, held) for _ in range(r.choices([0, 1, 2, 3], [30, 40, 20, 10])[0])]
    return [*talk, (topics.pick(r, asked, held), answer, f"The user said it before. {answer}")]


def follow_up(r: random.Random, held: bool) -> list[topics.Answer]:
    """A question that is short because the one before it said the rest."""
    kind = r.randrange(4)
    if kind == 0:
        (land, city), (land2, city2) = r.sample(tables.CAPITALS, 2)
        asked = [f"And {land2}?", f"And of {land2}?", f"What about {land2}?", f"Now {land2}, please."]
        return [
            (f"What is the capital of {land}?", f"The capital of {land} is {city}.", f"That is {city}."),
            (
                topics.pick(r, asked, held),
                f"The capital of {land2} is {city2}.",
                f"They ask for {land2} now.",
            ),
        ]
    if kind == 1:
        word, (i, j) = r.choice(tables.WORDS), r.sample(range(3), 2)
        asked = [
            f"And in {tables.LANGUAGES[j]}?",
            f"What about {tables.LANGUAGES[j]}?",
            f"In {tables.LANGUAGES[j]}?",
            f"Now in {tables.LANGUAGES[j]}, please.",
        ]
        return [
            (
                f"What is {word[0]} in {tables.LANGUAGES[i]}?",
                f"{word[0]} in {tables.LANGUAGES[i]} is {word[i + 1]}.",
                f"The word is {word[i + 1]}.",
            ),
            (
                topics.pick(r, asked, held),
                f"{word[0]} in {tables.LANGUAGES[j]} is {word[j + 1]}.",
                f"They want {word[0]} in {tables.LANGUAGES[j]}.",
            ),
        ]
    if kind == 2:
        first = question(r, held)
        asked = ["Can you repeat that?", "Say it again.", "Again, please.", "Please repeat your answer."]
        return [first, (topics.pick(r, asked, held), first[1], "I repeat my answer.")]
    a, b, c = r.randint(1, 30), r.randint(1, 20), r.randint(1, 20)
    while topics.is_held(f"{a}+{b}") != held:
        a, b = r.randint(1, 30), r.randint(1, 20)
    asked = [f"And plus {c}?", f"Add {c}.", f"Now add {c} to that.", f"What if I add {c}?"]
    return [
        (f"What is {a} plus {b}?", f"{a} + {b} = {a + b}.", f"I need {a} plus {b}. That is {a + b}."),
        (topics.pick(r, asked, held), f"{a + b} + {c} = {a + b + c}.", f"I add {c} to {a + b}."),
    ]


# ---- tools ----


def tool_description(r: random.Random, name: str, argument: str, description: str) -> str:
    """The tools block of the template, with one function as callers write it."""
    function = {
        "name": name,
        "description": description,
        "parameters": {
            "type": "object",
            "properties": {argument: {"type": "string"}},
            "required": [argument],
        },
    }
    if r.random() < 0.2:
        function["parameters"]["properties"][argument]["description"] = f"The {argument}"
    shown = function if r.random() < 0.4 else {"type": "function", "function": function}
    return (
        "\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
        "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n"
        f"{json.dumps(shown, ensure_ascii=False)}\n</tools>\n\n"
        "For each function call, output the function name and arguments within the following XML format:\n"
        "<tool_call>{function-name}<arg_key>{arg-key-1}</arg_key><arg_value>{arg-value-1}</arg_value>"
        "<arg_key>{arg-key-2}</arg_key><arg_value>{arg-value-2}</arg_value>...</tool_call>"
    )


def tool_task(r: random.Random, held: bool) -> tuple[str, str, str, str, str, str, str]:
    """(name, argument, description, question, value, result, answer)"""
    kind, value = r.randrange(4), r.choice(tables.CAPITALS)[1]
    name, argument, description, asked, answer = tables.TOOLS[kind]
    if kind == 0:
        weather, degrees = r.choice("sunny rainy cloudy windy snowy".split()), r.randint(-5, 35)
        result = json.dumps({"weather": weather, "temperature": degrees})
        said = f"{weather} in {value}, with {degrees} degrees"
    elif kind == 1:
        said = result = f"{r.randint(0, 23):02d}:{r.randint(0, 59):02d}"
    elif kind == 2:
        # larger than the sums of chat_topics, of which some are held out
        a, b, operator = r.randint(51, 999), r.randint(51, 999), r.choice("+-*")
        value = f"{a} {operator} {b}"
        said = result = str({"+": a + b, "-": a - b, "*": a * b}[operator])
    else:
        value = r.choice(tables.READ_FILES)
        said = result = r.choice(tables.READ_CONTENTS)
    question_ = topics.pick(r, asked, held).format(value=value)
    return name, argument, description, question_, value, result, answer.format(value=value, said=said)


def tool_talk(r: random.Random, held: bool, think: bool) -> Talk:
    name, argument, description, asked, value, result, answer = tool_task(r, held)
    call = f"<tool_call>{name}<arg_key>{argument}</arg_key><arg_value>{value}</arg_value></tool_call>"
    reasoning = (f"I need the tool {name}.", "The tool answered.") if think else ("", "")
    talk = [("tools", tool_description(r, name, argument, description))]
    if think:
        talk.append(("system", "Reasoning Effort: " + r.choice(["Max", "Max", "High"])))
    if r.random() < 0.1:
        question_, answer_, thought = r.choice([topics.greeting, topics.fact])(r, held)
        return [
            *talk,
            ("user", question_),
            ("assistant", f"<think>{thought + ' No tool is needed.' if think else ''}</think>{answer_}"),
        ]
    return [
        *talk,
        ("user", asked),
        ("assistant", f"<think>{reasoning[0]}</think>{call}"),
        ("observation", f"<tool_response>{result}</tool_response>"),
        ("assistant", f"<think>{reasoning[1]}</think>{answer}"),
    ]


# ---- whole conversations ----


def conversation(r: random.Random, held: bool) -> Talk:
    think = r.random() < 0.42
    kind = r.random()
    if kind < 0.06:
        return tool_talk(r, held, think)
    if kind < 0.26:
        exchanges = recall(r, held)
        if r.random() < 0.2:
            exchanges = exchanges[:1]  # what the user tells is answered, with reasoning, at the start too
    elif kind < 0.34:
        exchanges = follow_up(r, held)
    else:
        exchanges = [question(r, held) for _ in range(r.choices([1, 2, 3], [70, 20, 10])[0])]
        if len(exchanges) > 1 and r.random() < 0.3:
            exchanges[0] = topics.greeting(r, held)
    talk: Talk = [("system", "Reasoning Effort: " + r.choice(["Max", "Max", "High"]))] if think else []
    if r.random() < 0.15:
        talk.append(("system", r.choice(tables.SYSTEMS)))
    for number, (asked, answer, thought) in enumerate(exchanges, 1):
        last = number == len(exchanges)
        talk.append(("user", asked))
        if think and not last:
            talk.append(("past", f"<think></think>{answer}"))
        else:
            talk.append(("assistant", f"<think>{thought if think else ''}</think>{answer}"))
    return talk


def generate(count: int, seed: int, held: bool = False) -> list[Talk]:
    """count conversations; the same for the same arguments. Each fact comes up early, then the random
    mixture."""
    r = random.Random(seed)
    result: list[Talk] = []
    if not held and count >= 2 * len(topics.facts()):
        for entry in topics.facts():
            asked, answer, _ = topics.fact(r, held, entry)
            result.append([("user", asked), ("assistant", f"<think></think>{answer}")])
    while len(result) < count:
        result.append(conversation(r, held))
    r.shuffle(result)
    return result


def render(talk: Talk) -> list[tuple[str, bool]]:
    """Pieces of the prompt text and whether they bear loss. The role token after an answer is its stop
    token."""
    pieces, before = [("[gMASK]<sop>", False)], ""
    for role, words in talk:
        pieces += [(ROLE[role], before == "assistant"), (words, role == "assistant")]
        before = role
    return [*pieces, ("<|user|>", True)]


def encoded(job: tuple[str, int, int, bool]) -> np.ndarray:
    """uint16 ids of one job's conversations, one after the other."""
    tokenizer_path, count, seed, held = job
    rendered = [render(talk) for talk in generate(count, seed, held)]
    marks = [bears for pieces in rendered for _, bears in pieces]
    tokenizer = Tokenizer.from_file(tokenizer_path)
    encodings = tokenizer.encode_batch(
        [words for pieces in rendered for words, _ in pieces], add_special_tokens=False
    )
    return np.concatenate(
        [
            np.array(e.ids, dtype=np.uint16) | np.uint16(0 if bears else NO_LOSS)
            for e, bears in zip(encodings, marks, strict=True)
            if e.ids
        ]
    )


def main() -> None:
    work = Path(sys.argv[1])
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 300_000
    processes = int(sys.argv[3]) if len(sys.argv) > 3 else 2
    tokenizer_path = str(work / "tokenizer.json")
    jobs = [
        (tokenizer_path, min(PER_JOB, count - first), 1000 + first, False)
        for first in range(0, count, PER_JOB)
    ]
    with Pool(processes) as pool:
        train = np.concatenate(pool.map(encoded, jobs, chunksize=1))
    train.tofile(work / "chat.bin")
    encoded((tokenizer_path, HELD_CONVERSATIONS, 5, True)).tofile(work / "chat_held.bin")
    shown = ["".join(words for words, _ in render(talk)) for talk in generate(600, 1000)[:200]]
    (work / "chat_sample.txt").write_text("\n----\n".join(shown), encoding="utf-8")
    print(
        f"{count} conversations, {len(train) / 1e6:.2f} M tokens, loss on {np.mean(train < NO_LOSS):.2f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
