"""The command line: in this process through main(), and as a process of its own for pipes, signals and terminals."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import glm52_rt as rt
from glm52_rt.chat import render_chat
from glm52_rt.cli import main
from glm52_rt.cli_inspect import quoted
from glm52_rt.cli_options import byte_count
from glm52_rt.cli_terminal import PrefillBar, one_line, visible
from glm52_rt.sampling import generate
from glm52_rt.tokenizer import Tokenizer

WAIT_SECONDS = 60


@pytest.fixture(scope="module")
def path(make: Callable[..., Path]) -> str:
    return str(make("micro"))


@pytest.fixture(scope="module")
def endless(make: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model that never ends an answer: its end tokens are ids of the padding, and their texts are others'."""
    data = make("micro").read_bytes()
    for name in (b"eos", b"eot", b"eom"):
        key = b"tokenizer.ggml." + name + b"_token_id" + (4).to_bytes(4, "little")
        at = data.index(key) + len(key)
        data = data[:at] + (511).to_bytes(4, "little") + data[at + 4 :]
    copy = tmp_path_factory.mktemp("endless") / "endless.gguf"
    copy.write_bytes(data)
    return str(copy)


def call(*argv: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = main(argv)
    out, err = capsys.readouterr()
    return code, out, err


def process(*argv: str, **options: Any) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TERM": "xterm"}
    environment.pop("NO_COLOR", None)
    command = [sys.executable, "-m", "glm52_rt", *argv]
    return subprocess.Popen(command, env=environment, **options)


# ---- run ----


def test_run_continues_a_text_as_the_library_does(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("-n", "12", "--seed", "5", "--temp", "0.8", "--top-p", "0.9", "--min-p", "0.01", "--context", "64")
    code, out, err = call("run", path, "-p", "return the value", *options, capsys=capsys)
    with rt.Model.open(path) as model, rt.Engine(model, context=64) as engine:
        tokenizer = Tokenizer.from_model(model)
        ids = tokenizer.encode("return the value")
        tokens = list(generate(engine, ids, 12, 0.8, 0.9, 0.01, 5))
    assert (code, out.removesuffix("\n")) == (0, tokenizer.decode(tokens).removesuffix("\n"))
    speed = r"tokens at [\d.]+ tokens/s"
    assert re.fullmatch(rf"prefill {len(ids)} {speed}, decode {len(tokens) - 1} {speed}, seed 5\n", err)


def test_run_prints_one_json_document(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call("run", path, "--chat", "Hi <|user|>", "-n", "3", "--seed", "7", "--json", capsys=capsys)
    found = json.loads(out)
    with rt.Model.open(path) as model:
        tokenizer = Tokenizer.from_model(model)
        assert found["model"] == {"path": path, "identity": model.identity, "bytes": os.path.getsize(path)}
        assert found["prompt"]["ids"] == render_chat(model, [{"role": "user", "content": "Hi <|user|>"}])
    assert (code, err, out.count("\n")) == (0, "", 1)
    assert found["output"]["text"] == tokenizer.decode(found["output"]["ids"])
    assert found["stop_reason"] in ("length", "stop") and len(found["output"]["ids"]) <= 3
    assert found["seed"] == 7
    assert found["options"]["backend"] == "cpu" and found["options"]["max_tokens"] == 3
    assert found["timings"]["prefill_tokens"] == len(found["prompt"]["ids"])
    assert found["timings"]["prefill_tokens_per_second"] > 0


def test_a_drawn_seed_is_shown_and_gives_the_same_again(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    first = json.loads(call("run", path, "-p", "x", "-n", "9", "--temp", "2", "--json", capsys=capsys)[1])
    again = ("run", path, "-p", "x", "-n", "9", "--temp", "2", "--seed", str(first["seed"]), "--json")
    assert json.loads(call(*again, capsys=capsys)[1])["output"] == first["output"]
    other = json.loads(call("run", path, "-p", "x", "-n", "9", "--temp", "2", "--json", capsys=capsys)[1])
    assert other["seed"] != first["seed"]
    greedy = call("run", path, "-p", "x", "-n", "1", "--temp", "0", "--json", capsys=capsys)[1]
    assert json.loads(greedy)["seed"] is None


def test_stop_reasons_of_run(path: str, endless: str, capsys: pytest.CaptureFixture[str]) -> None:
    def reason(*argv: str) -> tuple[str, int]:
        found = json.loads(call("run", *argv, "--json", capsys=capsys)[1])
        return found["stop_reason"], len(found["output"]["ids"])

    assert reason(endless, "-p", "x", "-n", "4", "--temp", "0") == ("length", 4)
    assert reason(endless, "-p", "x", "-n", "0") == ("length", 0)
    assert reason(endless, "-p", "x", "--context", "20")[0] == "context"
    assert reason(path, "-p", "hello", "--temp", "0")[0] == "stop"


def test_prompts_come_from_options_or_standard_input(
    path: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def ids(*argv: str) -> list[int]:
        return json.loads(call("run", path, *argv, "-n", "0", "--json", capsys=capsys)[1])["prompt"]["ids"]

    with rt.Model.open(path) as model:
        tokenizer = Tokenizer.from_model(model)
    user = {"role": "user", "content": "Hi"}
    assert ids("-p", "a<|user|>") == tokenizer.encode("a<|user|>")
    assert ids("-p", "a<|user|>", "--special") == tokenizer.encode("a<|user|>", special=True)
    assert ids("--chat", "Hi", "--no-think") == render_chat(tokenizer, [user], thinking=False)
    assert ids("--chat", "Hi", "--effort", "high") == render_chat(tokenizer, [user], reasoning_effort="high")
    assert ids("--chat", "Hi", "--system", "S") == render_chat(tokenizer, [{"role": "system", "content": "S"}, user])
    monkeypatch.setattr("sys.stdin", open_text(b"from\xe2\x82\xac stdin\n"))
    assert ids("-p", "-") == tokenizer.encode("from\u20ac stdin\n")


def open_text(data: bytes) -> Any:
    reading, writing = os.pipe()
    os.write(writing, data)
    os.close(writing)
    return os.fdopen(reading, "r", encoding="utf-8")


def test_engine_options_reach_the_engine(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    outputs = []
    for options in ([], ["--threads", "1"], ["--experts", "40"], ["--cache", "1MiB"]):
        argv = ("run", path, "-p", "hello", "-n", "9", "--temp", "0", "--quality", "--kv-type", "f32", "--json")
        code, out, _ = call(*argv, *options, capsys=capsys)
        found = json.loads(out)
        assert (code, found["options"]["quality"], found["options"]["kv_type"]) == (0, True, "f32")
        outputs.append(found["output"])
    assert all(output == outputs[0] for output in outputs)


# ---- inspect and tokenize ----


def test_inspect_describes_a_model(tiny: rt.Model, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call("inspect", tiny.path, "--json", capsys=capsys)
    found = json.loads(out)
    assert code == 0
    assert found["identity"] == tiny.identity
    assert found["full_indexer_layers"] == list(tiny.full_indexer_layers)
    assert found["shape"]["vocab"] == 2048
    assert found["tensor_count"] == len(tiny.tensors) == sum(row["tensors"] for row in found["types"].values())
    assert found["tensor_bytes"] == sum(tensor.bytes for tensor in tiny.tensors)
    assert found["tensor_bytes"] == sum(row["bytes"] for row in found["types"].values())
    assert found["cache_bytes_per_token"] == {"f16": 2 * (8 * 320 + 4 * 128), "f32": 4 * (8 * 320 + 4 * 128)}
    assert "tensors" not in found
    code, out, _ = call("inspect", tiny.path, "--tensors", "--json", capsys=capsys)
    assert [tensor["name"] for tensor in json.loads(out)["tensors"]] == [tensor.name for tensor in tiny.tensors]


def test_inspect_is_readable(tiny: rt.Model, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call("inspect", tiny.path, "--tensors", capsys=capsys)
    assert (code, err) == (0, "")
    for line in (
        f"identity    {tiny.identity}",
        "full indexer layers (4 of 8)",
        "  0 1 2 6",
        "cache per token  6,144 bytes as f16, 12,288 as f32",
    ):
        assert line in out.split("\n")
    listed = [line for line in out.split("\n") if line.startswith(("  blk.", "  output", "  token_embd"))]
    assert len(listed) == len(tiny.tensors)


def test_the_full_model_is_inspected_without_its_bytes(
    make: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """The exact shapes and mix of the published file of 211,075,856,448 bytes, as a file that is one hole."""
    code, out, _ = call("inspect", str(make("full", sparse=True)), "--json", capsys=capsys)
    found = json.loads(out)
    assert code == 0
    assert (found["tensor_count"], found["file_bytes"]) == (1809, 211_075_856_448)
    # The published number of weights, and the copies of indexers that the file has on its 57 shared layers.
    assert found["parameters"] == 753_329_940_480 + 57 * (128 * 6144 + 4096 * 2048 + 32 * 6144 + 2 * 128)
    assert found["full_indexer_layers"] == [0, 1, 2, *range(6, 75, 4)] and len(found["full_indexer_layers"]) == 21
    assert found["cache_bytes_per_token"]["f16"] == 95_232
    assert found["tokenizer"]["end_token_ids"] == [154820, 154827, 154829]


def test_tokenize_shows_ids_and_bytes(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    with rt.Model.open(path) as model:
        tokenizer = Tokenizer.from_model(model)
    ids = tokenizer.encode('a"\u20ac<|user|>')
    code, out, _ = call("tokenize", path, 'a"\u20ac<|user|>', "--json", capsys=capsys)
    found = json.loads(out)
    assert (code, found["ids"], found["text"]) == (0, ids, 'a"\u20ac<|user|>')
    assert b"".join(bytes.fromhex(piece) for piece in found["bytes"]).decode() == 'a"\u20ac<|user|>'
    _, out, _ = call("tokenize", path, "a<|user|>", "--special", capsys=capsys)
    assert out == f'{ids[0]:7}  "a"\n{tokenizer.special_tokens["<|user|>"]:7}  "<|user|>"\n'
    assert quoted(b'\xe2\x82\xac\xff"\\\n\x1b') == '"\u20ac\\xff\\"\\\\\\n\\u001b"'


# ---- refusals ----


def test_usage_errors_are_2(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    for argv in (
        [], ["fly"], ["run", path], ["run", "-p", "x"], ["run", path, "-p", "x", "--chat", "y"],
        ["run", path, "-p", "x", "--temp", "-1"], ["run", path, "-p", "x", "--temp", "nan"],
        ["run", path, "-p", "x", "-n", "many"], ["run", path, "-p", "x", "--seed", "-1"],
        ["run", path, "-p", "x", "--top-p", "1.1"], ["run", path, "-p", "x", "--cache", "12 apples"],
        ["run", path, "-p", "x", "--cache", "1GiB", "--experts", "3"], ["run", path, "-p", "x", "--kv-type", "q4"],
        ["tokenize", path], ["inspect", path, "--nothing"],
    ):  # fmt: skip
        code, out, err = call(*argv, capsys=capsys)
        assert (code, out) == (2, "") and "usage: glm52" in err, argv
    assert call("--help", capsys=capsys)[0] == call("run", "--help", capsys=capsys)[0] == 0
    assert call("--version", capsys=capsys)[1].startswith("glm52 ")


def test_failures_are_1_with_one_line(path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.gguf"
    page.write_text("<!DOCTYPE html><html></html>")
    for argv, words in (
        (["inspect", str(tmp_path / "none.gguf")], "none.gguf"),
        (["inspect", str(page)], "page.gguf"),
        (["run", str(tmp_path / "a\nb.gguf"), "-p", "x"], "a b.gguf"),
        (["run", path, "-p", ""], "the prompt is empty"),
        (["run", path, "-p", "x\udcff"], "lone surrogate"),
        (["run", path, "-p", "x", "--backend", "abacus"], "abacus"),
        (["run", path, "-p", "x", "--context", "1048577"], "1048577"),
        (["run", path, "-p", "x " * 50, "--context", "4"], "context"),
        (["tokenize", path, "\ud800"], "lone surrogate"),
        (["chat", str(tmp_path)], str(tmp_path)),
    ):
        code, out, err = call(*argv, capsys=capsys)
        assert (code, out) == (1, ""), argv
        assert err.startswith("glm52: error: ") and err.count("\n") == 1 and err.endswith("\n"), argv
        assert words in err and "Traceback" not in err


def test_sizes_are_read() -> None:
    sizes = {"12GiB": 12 << 30, "1.5 kB": 1500, "7": 7, "2m": 2_000_000, "1TB": 10**12}
    assert {text: byte_count(text) for text in sizes} == sizes


# ---- terminals ----


def test_text_cannot_steer_a_terminal() -> None:
    assert visible("a\x1b[2Jb\r\x07\x7f\x9b\tc\n") == "a\u241b[2Jb\u240d\u2407\ufffd\ufffd\tc\n"
    assert one_line("a\nb\x1b") == "a b\u241b"


def test_the_bar_shows_how_far_a_prefill_is(capsys: pytest.CaptureFixture[str]) -> None:
    bar = PrefillBar(10, 30, shown=True)
    bar(20)
    bar(30)  # at once after the other: not drawn
    bar.clear()
    bar.clear()
    err = capsys.readouterr().err
    assert re.fullmatch(r"\rprefill \[#{12}-{12}\] 10/20(, [\d.]+ tokens/s)?\x1b\[K\r\x1b\[K", err)
    hidden = PrefillBar(10, 30, shown=False)
    hidden(20)
    hidden.clear()
    assert capsys.readouterr().err == ""


class Terminal:
    """A process whose three streams are one pseudo-terminal."""

    def __init__(self, *argv: str) -> None:
        self._ours, theirs = pty.openpty()
        self.process = process(*argv, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
                               preexec_fn=lambda: take_terminal(theirs))  # fmt: skip
        os.close(theirs)
        self.seen = ""

    def wait_for(self, pattern: str, typing: str = "") -> None:
        """Reads until what was written since the last match matches pattern; types typing every two seconds."""
        started, typed = time.monotonic(), 0
        while not (found := re.search(pattern, self.seen)):
            passed = time.monotonic() - started
            if passed > WAIT_SECONDS:
                raise AssertionError(f"no {pattern!r} in {self.seen!r}")
            if typing and passed >= 2 * typed:
                self.type(typing)
                typed += 1
            if not select.select([self._ours], [], [], 0.5)[0]:
                continue
            try:
                self.seen += os.read(self._ours, 65536).decode("utf-8", "replace")
            except OSError:  # the other side is closed
                raise AssertionError(f"no {pattern!r} in {self.seen!r} and nothing follows") from None
        self.seen = self.seen[found.end() :]

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def end(self) -> int:
        try:
            return self.process.wait(WAIT_SECONDS)
        finally:
            self.process.kill()
            os.close(self._ours)


def take_terminal(descriptor: int) -> None:
    """Makes the terminal the session's, so that Ctrl-C typed there is a signal."""
    import fcntl
    import termios

    fcntl.ioctl(descriptor, termios.TIOCSCTTY, 0)


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def start(*argv: str) -> Terminal:
        opened.append(Terminal(*argv))
        return opened[-1]

    yield start
    for one in opened:
        one.process.kill()
        one.process.wait()


def test_a_chat_at_a_terminal(endless: str, terminal: Callable[..., Terminal]) -> None:
    """Ctrl-C stops an answer and clears a line, and neither ends the conversation; Ctrl-D does."""
    chat = terminal("chat", endless, "--temp", "0", "--context", "100000")
    chat.wait_for("Type a message.*\r\n.*> ")
    chat.type("hello\r")
    chat.wait_for("hello\r\n(.|\n)*\x1b\\[2m(.|\n)*[a-z]{2}")
    chat.type("\x03")
    chat.wait_for(r"\(prefill \d+ tokens at .*, decode \d+ tokens at .* tokens/s\)(.|\n)*> ")
    chat.type("half a li")
    chat.wait_for("half a li")
    # More than once if need be: Python's input() overlooks a signal that strikes just before it waits for a key.
    chat.wait_for(r"Ctrl-D or /exit ends(.|\n)*> ", typing="\x03")
    chat.type("/nonsense\r")
    chat.wait_for(r"/reset +forget(.|\n)*> ")
    chat.type("\x04")
    assert chat.end() == 0


def test_a_run_at_a_terminal_is_interrupted(endless: str, terminal: Callable[..., Terminal]) -> None:
    run = terminal("run", endless, "-p", "hello", "--context", "100000", "--temp", "0")
    run.wait_for("\r\x1b\\[K(.|\n)*[a-z]{2}")
    run.type("\x03")
    run.wait_for(r"prefill \d+ tokens at .*, decode \d+ tokens at")
    assert run.end() == 130


# ---- pipes and signals ----


def test_a_chat_through_pipes(path: str) -> None:
    lines = "hello\n\n/think on\n/think off\nand then\n/reset\nhello\n/exit\nnever read\n"
    chat = process("chat", path, "--temp", "0", "-n", "5", "--no-think", stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                   stderr=subprocess.PIPE, text=True, encoding="utf-8", errors="replace")  # fmt: skip
    out, err = chat.communicate(lines, timeout=WAIT_SECONDS)
    assert (chat.returncode, err) == (0, "")
    with rt.Model.open(path) as model, rt.Engine(model) as engine:
        tokenizer = Tokenizer.from_model(model)

        def answer(*messages: tuple[str, str]) -> str:
            given = [{"role": role, "content": text} for role, text in messages]
            ids = render_chat(tokenizer, given, thinking=False)
            return tokenizer.decode(generate(engine, ids, 5, temperature=0))

        first = answer(("user", "hello"))
        second = answer(("user", "hello"), ("assistant", first), ("user", "and then"))
    assert out.split() == f"{first}\n{second}\n{first}\n".split()


def test_a_chat_computes_only_what_is_new(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each turn prefills behind the longest prefix that the engine holds."""
    prompts: list[list[int]] = []
    positions: list[int] = []
    original = rt.Engine.prefill

    def watched(engine: rt.Engine, ids: list[int], progress: Any = None) -> int:
        positions.append(engine.position)
        prompts.append(list(ids))
        return original(engine, ids, progress)

    monkeypatch.setattr(rt.Engine, "prefill", watched)
    monkeypatch.setattr("sys.stdin", open_text(b"hello there\nand now\n"))
    assert main(["chat", path, "--temp", "0", "-n", "3", "--no-think"]) == 0
    assert positions[0] == 0 and positions[1] >= len(prompts[0])
    assert len(prompts[1]) < len(prompts[0]) + 12


def test_a_conversation_that_is_too_long_is_refused_and_goes_on(
    endless: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"{'long ' * 60}\nhi\n".encode()
    monkeypatch.setattr("sys.stdin", open_text(text))
    code, out, err = call("chat", endless, "--no-think", "--context", "40", capsys=capsys)
    assert code == 0 and len(out) > 5
    errors = err.split("\n")
    assert re.match(r"glm52: error: the conversation has \d+ tokens, more than the context of 40; /reset", errors[0])
    assert errors[1].startswith("glm52: warning: the context of 40 tokens is full")


def test_templates_may_ask_for_the_time(make: Callable[..., Path], monkeypatch: pytest.MonkeyPatch,
                                         capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    bare = str(make("micro", template=False))
    monkeypatch.setattr("glm52_rt.chat.builtin_template", lambda: "It is {{ strftime_now('%Y') }}<think></think>")
    monkeypatch.setattr("sys.stdin", open_text(b"hello\n"))
    found = json.loads(call("run", bare, "--chat", "Hi", "-n", "0", "--json", capsys=capsys)[1])
    assert re.fullmatch(r"It is 20\d\d<think></think>", found["prompt"]["text"])
    assert call("chat", bare, "-n", "1", capsys=capsys)[0::2] == (0, "")


def test_an_interrupt_ends_a_run_with_130(endless: str) -> None:
    run = process("run", endless, "-p", "hello", "--context", "100000", "--temp", "0", stdout=subprocess.PIPE,
                  stderr=subprocess.PIPE)  # fmt: skip
    assert run.stdout is not None
    assert run.stdout.read(20)
    run.send_signal(signal.SIGINT)
    _, err = run.communicate(timeout=WAIT_SECONDS)
    assert run.returncode == 130
    assert re.fullmatch(rb"prefill \d+ tokens at [\d.]+ tokens/s, decode \d+ tokens at [\d.]+ tokens/s\n", err)


def test_an_interrupted_run_prints_the_document_of_what_it_has(endless: str, monkeypatch: pytest.MonkeyPatch,
                                                               capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    original, calls = rt.Engine.eval, []

    def interrupted(engine: rt.Engine, token: int) -> None:
        calls.append(token)
        if len(calls) == 4:
            raise KeyboardInterrupt
        original(engine, token)

    monkeypatch.setattr(rt.Engine, "eval", interrupted)
    code, out, _ = call("run", endless, "-p", "hello", "--json", "--temp", "0", capsys=capsys)
    found = json.loads(out)
    assert (code, found["stop_reason"], found["output"]["ids"]) == (130, "interrupted", calls)


def test_a_closed_pipe_ends_a_run_quietly(endless: str) -> None:
    run = process("run", endless, "-p", "hello", "--context", "100000", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert run.stdout is not None and run.stderr is not None
    assert run.stdout.read(20)
    run.stdout.close()
    err = run.stderr.read()
    assert run.wait(WAIT_SECONDS) == 1
    assert err == b"glm52: error: standard output was closed\n"
    run.stderr.close()
