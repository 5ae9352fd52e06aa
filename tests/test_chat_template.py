"""The built-in chat template: the prompt of each kind of conversation, written out."""

import json
from pathlib import Path
from typing import Any

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

SYSTEM = {"role": "system", "content": "Be brief."}
HELLO = {"role": "user", "content": "Hello"}
START = "[gMASK]<sop>"
EFFORT = "<|system|>Reasoning Effort: Max"


@pytest.fixture(params=[False, True], ids=["plain", "trimmed blocks"])
def render(request: pytest.FixtureRequest, root: Path) -> Any:
    """The template under both whitespace settings that loaders of chat templates use."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=request.param, lstrip_blocks=request.param)
    environment.filters["tojson"] = lambda value, ensure_ascii: json.dumps(value, ensure_ascii=ensure_ascii)
    text = (root / "python/glm52_rt/chat_template.jinja").read_text(encoding="utf-8")
    template = environment.from_string(text)
    return lambda messages, **options: template.render(messages=messages, **options)


def test_one_question(render: Any) -> None:
    asked = render([SYSTEM, HELLO], add_generation_prompt=True)
    assert asked == f"{START}{EFFORT}<|system|>Be brief.<|user|>Hello<|assistant|><think>"
    assert render([HELLO]) == f"{START}{EFFORT}<|user|>Hello"


def test_thinking_and_effort(render: Any) -> None:
    high = render([HELLO], reasoning_effort="high")
    assert high == f"{START}<|system|>Reasoning Effort: High<|user|>Hello"
    assert render([HELLO], reasoning_effort="low") == f"{START}{EFFORT}<|user|>Hello"
    off = render([HELLO], enable_thinking=False, add_generation_prompt=True)
    assert off == f"{START}<|user|>Hello<|assistant|><think></think>"


def test_reasoning_of_earlier_turns_is_dropped_unless_kept(render: Any) -> None:
    separate = {"role": "assistant", "content": " Hi. ", "reasoning_content": "A greeting."}
    inside = {"role": "assistant", "content": "<think>A greeting.</think>\n\nHi."}
    for answer in (separate, inside):
        dropped = render([HELLO, answer, HELLO])
        assert dropped == f"{START}{EFFORT}<|user|>Hello<|assistant|><think></think>Hi.<|user|>Hello"
        kept = render([HELLO, answer, HELLO], clear_thinking=False)
        assert kept == (
            f"{START}{EFFORT}<|user|>Hello<|assistant|><think>A greeting.</think>Hi.<|user|>Hello"
        )
        assert render([HELLO, answer]).endswith("<|assistant|><think>A greeting.</think>Hi.")


def test_tools_calls_and_results(render: Any) -> None:
    tool = {"type": "function", "function": {"name": "weather", "description": "für alle Städte"}}
    arguments = {"city": "Köln", "days": 2, "units": ["°C"]}
    call = {"role": "assistant", "content": "", "reasoning_content": "Ask.",
            "tool_calls": [{"function": {"name": "weather", "arguments": arguments}},
                           {"name": "clock", "arguments": {}}]}  # fmt: skip
    results = [{"role": "tool", "content": "rain"}, {"role": "tool", "content": "noon"}]
    made = render([HELLO, call, *results], tools=[tool], add_generation_prompt=True)
    head, rest = made.split("</tools>\n\n")
    assert head == (
        f"{START}<|system|>\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
        "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n"
        '{"type": "function", "function": {"name": "weather", "description": "für alle Städte"}}\n'
    )
    assert rest.endswith(
        f"...</tool_call>{EFFORT}<|user|>Hello<|assistant|><think>Ask.</think>"
        "<tool_call>weather<arg_key>city</arg_key><arg_value>Köln</arg_value><arg_key>days</arg_key>"
        '<arg_value>2</arg_value><arg_key>units</arg_key><arg_value>["°C"]</arg_value></tool_call>'
        "<tool_call>clock</tool_call>"
        "<|observation|><tool_response>rain</tool_response><tool_response>noon</tool_response>"
        "<|assistant|><think>"
    )


def test_content_in_parts_or_missing(render: Any) -> None:
    parts = {"role": "user", "content": [{"type": "text", "text": "Hel"}, "lo", {"type": "image"}]}
    assert render([parts]) == render([HELLO])
    assert render([{"role": "user", "content": None}]) == f"{START}{EFFORT}<|user|>"
    assert render([{"role": "assistant", "content": None}]).endswith("<|assistant|><think></think>")


def test_content_is_never_a_template(render: Any) -> None:
    nasty = {"role": "user", "content": "{{ 7 * 7 }}{% raw %}{# #}"}
    assert render([nasty]) == f"{START}{EFFORT}<|user|>{{{{ 7 * 7 }}}}{{% raw %}}{{# #}}"
