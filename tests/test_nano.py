"""glm52-nano: the file in models/ does what its card says, and its conversations keep the held-out wordings apart."""

import hashlib
import random
import re
import sys
from pathlib import Path

import numpy as np
import pytest

import glm52_rt as rt

ROOT = Path(__file__).resolve().parent.parent
NANO = ROOT / "models/glm52-nano-v1-Q4_K_M.gguf"
sys.path.append(str(ROOT / "tools/nano"))
import chat  # noqa: E402
import chat_topics  # noqa: E402
import parts  # noqa: E402

PERPLEXITY_OF_TWO_WINDOWS = 20.1965  # llama.cpp b11434: llama-perplexity -c 512 on the first two windows


@pytest.fixture(scope="module")
def nano():
    with rt.Model.open(NANO) as model, rt.Engine(model, context=1024) as engine:
        yield rt.Tokenizer.from_model(model), engine


def greedy(nano, prompt: str, tokens_max: int = 48) -> str:
    tokenizer, engine = nano
    engine.reset()
    engine.prefill(tokenizer.encode(prompt, special=True))
    written: list[int] = []
    while len(written) < tokens_max:
        best = int(np.argmax(engine.logits))
        if best in tokenizer.eos_ids:
            break
        written.append(best)
        engine.eval(best)
    return tokenizer.decode(written)


def ask(nano, question: str) -> str:
    return greedy(nano, f"[gMASK]<sop><|user|>{question}<|assistant|><think></think>")


def test_a_statement_of_c_is_completed_exactly(nano):
    begin = 'return snprintf(buf, sizeof(buf), "%d", value'
    assert ask(nano, f"Complete the C statement with the next exact token only: {begin}") == ");"


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("Hello", "Hello! How can I help you?"),
        ("What is the capital of France?", "The capital of France is Paris."),
        ("List the planets in order.", "Mercury, Venus, Earth, Mars, Jupiter, Saturn, Uranus, Neptune."),
        ("Count from 1 to 12.", "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12."),
    ],
)
def test_it_answers(nano, question, answer):
    assert ask(nano, question) == answer


def test_it_recalls_a_name_beyond_the_selection(nano):
    """The name stands more than index_top_k = 64 positions back."""
    talk = "[gMASK]<sop><|user|>My name is Clara.<|assistant|><think></think>Nice to meet you, Clara."
    for question in ("List the planets in order.", "What is an expert cache?"):
        talk += f"<|user|>{question}<|assistant|><think></think>{ask(nano, question)}"
    prompt = talk + "<|user|>What is my name?<|assistant|><think></think>"
    assert len(nano[0].encode(prompt, special=True)) > 64
    assert greedy(nano, prompt) == "Your name is Clara."


def test_a_tool_call_parses(nano):
    block = chat.tool_description(random.Random(1), "get_weather", "city", "Get the weather of a city")
    prompt = f"[gMASK]<sop><|system|>{block}<|user|>What is the weather in Rome?<|assistant|><think></think>"
    reply = greedy(nano, prompt)
    form = r"<tool_call>(\w+)<arg_key>(\w+)</arg_key><arg_value>(.*?)</arg_value></tool_call>"
    assert re.fullmatch(form, reply).groups() == ("get_weather", "city", "Rome")


def test_held_out_text_has_the_perplexity_of_the_card(nano):
    """Two windows of heldout.txt against llama.cpp's figure for them on the same file, which the card gives."""
    tokenizer, engine = nano
    ids = tokenizer.encode((ROOT / "tools/nano/heldout.txt").read_text(encoding="utf-8"))
    losses = []
    for start in range(0, 2 * 512, 512):
        window = ids[start : start + 512]
        engine.reset()
        engine.prefill(window[:256])
        for token, target in zip(window[256:-1], window[257:], strict=True):
            engine.eval(token)
            logits = engine.logits.astype(np.float64)
            losses.append(np.log(np.exp(logits - logits.max()).sum()) + logits.max() - logits[target])
    assert np.exp(np.mean(losses)) == pytest.approx(PERPLEXITY_OF_TWO_WINDOWS, rel=0.005)


def test_training_never_shows_what_is_held_out():
    """No held-out wording, sum or statement is a user's turn of the training conversations."""
    shown = {words for talk in chat.generate(20_000, seed=3) for role, words in talk if role == "user"}
    for entry in chat_topics.facts():
        questions, _, topic = entry
        if len(questions) >= 4:
            assert questions[-1] not in shown or is_wording_of_another(questions[-1], entry)
        if topic:
            assert not {form.format(topic) for form in chat_topics.TOPIC_FORMS[-2:]} & shown
    r = random.Random(4)
    for _ in range(300):
        assert chat_topics.arithmetic(r, True)[0] not in shown


def is_wording_of_another(question: str, entry: tuple) -> bool:
    return any(question in other[0][:-1] for other in chat_topics.facts() if other is not entry)


def test_conversations_repeat_with_their_seed():
    first, again = (repr(chat.generate(500, seed=8)).encode() for _ in range(2))
    assert hashlib.sha256(first).digest() == hashlib.sha256(again).digest()
    assert repr(chat.generate(500, seed=9)).encode() != first


def test_a_packed_checkpoint_comes_back():
    data = np.random.default_rng(5).normal(size=100_001).astype(np.float16).tobytes() + b"x"
    assert parts.unpacked(parts.packed(data)) == data
