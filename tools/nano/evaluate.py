"""What the model card says, measured again.

    python tools/nano/evaluate.py MODEL_FOLDER DATA_FOLDER [QUESTIONS] [--short]

MODEL_FOLDER holds the model in the Hugging Face layout, DATA_FOLDER valid.bin, valid.json and chat_held.bin.
Prints loss and draft acceptance on held-out text and conversations, expert loads, and answers to held-out
questions (a wording, sum or statement that the training never showed), conversations with thinking, a tool
call and the exact completion of a C statement.
"""

import json
import random
import re
import sys
from collections import Counter
from pathlib import Path

import torch
from tokenizers import Tokenizer

import chat
from data import Conversations, read_ids, spread_windows
from measure import measure
from model import GLM, MoE, load_hf
from talk import complete

OPEN = "<|assistant|><think>"
PLAIN = OPEN + "</think>"
EXACT = (
    'Complete the C statement with the next exact token only: return snprintf(buf, sizeof(buf), "%d", value'
)
FIXED = (
    "Hello",
    "Who are you?",
    "What does the indexer do?",
    "What is an expert cache?",
    "List the planets in order.",
    "What is the capital of France?",
    "How do I chat with a model?",
    "Count from 1 to 12.",
)
RAW = (
    "int main(int argc, char **argv)\n{\n",
    "def fibonacci(n):\n",
    "And it came to pass",
    "The indexer selects",
    "It is a truth universally acknowledged, that",
    "SELECT ",
)


def user(question: str) -> str:
    return "[gMASK]<sop><|user|>" + question


def show_numbers(model: GLM, folder: Path, device: str, quick: bool) -> None:
    per_token = json.loads((folder / "valid.json").read_text())["bytes_per_token"]
    text, held = read_ids(folder / "valid.bin", device), read_ids(folder / "chat_held.bin", device)
    count = 32 if quick else 512
    for name, windows in (
        ("text, 512", spread_windows(text, 512, count)),
        ("text, 1024", spread_windows(text, 1024, count // 2)),
        ("conversations, 512", Conversations(held, 512).spread(min(64, count))),
    ):
        for sparse in (False, True):
            got = measure(model, windows, sparse)
            bits = "" if name[0] == "c" else f"{got.bits_per_byte(per_token):.4f} bits per byte, "
            print(
                f"{name}, {'sparse' if sparse else 'dense'}: loss {got.loss:.4f}, {bits}"
                f"top-1 {got.top1:.3f}, drafts accepted {got.accepted:.3f}"
            )
        print(
            f"  {name}, sparse: load max/mean per layer {' '.join(f'{x:.2f}' for x in got.loads())}; "
            f"share of the top quarter of experts {' '.join(f'{x:.2f}' for x in got.top_quarter())}",
            flush=True,
        )


def held_questions(model: GLM, tokenizer: Tokenizer, count: int) -> None:
    """Exact answers to held-out questions, by topic; twenty of them in full."""
    r = random.Random(99)
    asked = []
    for _ in range(count):
        topic = r.choices([t for t, _ in chat.TOPICS], [w for _, w in chat.TOPICS])[0]
        asked.append((topic.__name__, *topic(r, True)[:2]))
    answers = complete(model, tokenizer, [user(question) + PLAIN for _, question, _ in asked])
    right, total = Counter(), Counter()
    for (topic, _, wanted), answer in zip(asked, answers, strict=True):
        total[topic] += 1
        # who and unknown have several right answers
        right[topic] += (
            answer == wanted
            or (topic == "who" and answer in chat.tables.WHO)
            or (topic == "unknown" and answer in chat.tables.REFUSALS)
        )
    print(
        f"held-out questions answered exactly: {sum(right.values())} of {count}; "
        + ", ".join(f"{topic} {right[topic]}/{total[topic]}" for topic in sorted(total))
    )
    for (_, question, wanted), answer in list(zip(asked, answers, strict=True))[:20]:
        print(
            f"  {'ok   ' if answer == wanted else 'WRONG'} {question!r} -> {answer!r}"
            + ("" if answer == wanted else f", wanted {wanted!r}")
        )


def held_recall(model: GLM, tokenizer: Tokenizer, count: int) -> None:
    """Conversations that end with a question about their beginning, the turns before it as written."""
    r, prompts, wanted = random.Random(7), [], []
    for _ in range(count):
        exchanges = chat.recall(r, True)
        talk = "".join(f"<|user|>{q}{PLAIN}{a}" for q, a, _ in exchanges[:-1])
        prompts.append(f"[gMASK]<sop>{talk}<|user|>{exchanges[-1][0]}{PLAIN}")
        wanted.append(exchanges[-1][1])
    answers = complete(model, tokenizer, prompts)
    right = sum(a == w for a, w in zip(answers, wanted, strict=True))
    print(f"questions about the beginning of the conversation: {right} of {count} right")


def thinking_conversations(model: GLM, tokenizer: Tokenizer) -> None:
    """Three conversations, every answer the model's own, reasoning dropped from the history as the template
    does."""
    for turns in (
        ("My name is Clara.", "What is the capital of Norway?", "What is my name?"),
        ("What is 7 plus 8?", "Add 5.", "What is 6 times 7?"),
        ("What is MTP?", "Does MTP change the answer?", "Thank you!"),
    ):
        history = "[gMASK]<sop><|system|>Reasoning Effort: Max"
        print("  conversation with thinking:")
        for turn in turns:
            reply = complete(model, tokenizer, [f"{history}<|user|>{turn}{OPEN}"])[0]
            thought, _, answer = reply.partition("</think>")
            print(f"    {turn!r} -> thinks {thought!r}, says {answer!r}")
            history += f"<|user|>{turn}{PLAIN}{answer}"


def tool_call(model: GLM, tokenizer: Tokenizer) -> None:
    """One call that parses, and the answer after the tool's result."""
    block = chat.tool_description(random.Random(1), "get_weather", "city", "Get the weather of a city")
    prompt = f"[gMASK]<sop><|system|>{block}<|user|>What is the weather in Rome?{PLAIN}"
    reply = complete(model, tokenizer, [prompt])[0]
    form = r"<tool_call>(\w+)<arg_key>(\w+)</arg_key><arg_value>(.*?)</arg_value></tool_call>"
    found = re.fullmatch(form, reply)
    print(f"tool call: {reply!r} parsed as {found.groups() if found else None}")
    result = '<|observation|><tool_response>{"weather": "sunny", "temperature": 24}</tool_response>'
    print(f"  after its result: {complete(model, tokenizer, [prompt + reply + result + PLAIN])[0]!r}")


def main() -> None:
    short = "--short" in sys.argv
    device = "cuda" if torch.cuda.is_available() else "cpu"
    folder, data = Path(sys.argv[1]), Path(sys.argv[2])
    count = int(sys.argv[3]) if len(sys.argv) > 3 and sys.argv[3].isdigit() else 400
    model = load_hf(GLM(), folder).to(device).eval()
    MoE.grouped = False
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    show_numbers(model, data, device, short)
    held_questions(model, tokenizer, count)
    held_recall(model, tokenizer, max(20, count // 4))
    for prompt, answer in zip(
        FIXED, complete(model, tokenizer, [user(q) + PLAIN for q in FIXED]), strict=True
    ):
        print(f"  {prompt!r} -> {answer!r}")
    thinking_conversations(model, tokenizer)
    tool_call(model, tokenizer)
    exact = complete(
        model, tokenizer, [user(EXACT) + PLAIN, user(EXACT.replace("only: ", "only:\n")) + PLAIN]
    )
    print(f"exact completion: {exact[0]!r} (after a line break: {exact[1]!r}), wanted ');'")
    for prompt, text in zip(
        RAW, complete(model, tokenizer, ["[gMASK]<sop>" + p for p in RAW], 48), strict=True
    ):
        print(f"  raw {prompt!r} -> {text!r}")


if __name__ == "__main__":
    main()
