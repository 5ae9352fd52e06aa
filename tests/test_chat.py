"""Prompts and answers: the built-in template against strings written by hand, every template against plain Jinja as
Hugging Face runs it, and users' text that tries to become a control token."""

import json
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from synthetic.tokenizer import ADDED, NORMAL, vocabulary

import glm52_rt as rt
from glm52_rt.chat import builtin_template, parse_tool_calls, render_chat, render_chat_text, split_thinking
from glm52_rt.templates import Guard
from glm52_rt.tokenizer import Tokenizer

LISTED = vocabulary(2048)
TOKENIZER = Tokenizer(LISTED.tokens, LISTED.types, LISTED.merges, source="some.gguf",
                      named_ids={"bos": LISTED.id_of("[gMASK]"), "eos": LISTED.id_of("<|endoftext|>")})  # fmt: skip

COMPOSED = """{{ bos_token }}<sop>{% for m in messages %}<|{{ m['role'] }}|>
{{ m.content | trim }}{% if m.tool_calls %}{% for c in m.tool_calls %}{{ c.function | tojson }}{% endfor %}{% endif %}
{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"""

BUSY = """{%- for tool in tools or [] %}{{ tool | tojson(indent=2) }}{{ '\\n' }}{% endfor -%}
{%- for m in messages %}
    {%- if loop.first and m.role == 'system' %}[gMASK]<sop>{% endif %}
    {%- set lines = m.content.split('\\n') %}
    {{- '<|' ~ m.role ~ '|>' ~ (lines | join('\\n')).strip() }}
    {%- if m.name is defined %}<{{ m.name }}>{% endif %}
    {%- for c in m.tool_calls or [] %}
        {%- for key, value in c.function.arguments.items() %}
            {{- '<arg_key>' + key + '</arg_key><arg_value>' }}
            {{- value if value is string else value | tojson }}</arg_value>
        {%- endfor %}
    {%- endfor %}
    {%- if loop.index > 9 %}{% break %}{% endif %}
{%- endfor %}
{{- m }}"""

TEMPLATES = {"built-in": builtin_template(), "composed": COMPOSED, "busy": BUSY}


def hugging_face(template: str, messages: list[dict], **variables: Any) -> str:
    """The prompt as transformers' apply_chat_template renders it: plain Jinja, raw messages."""
    names = {"bos_token": "[gMASK]", "eos_token": "<|endoftext|>", "tools": None, "add_generation_prompt": True}
    return plain_jinja(template).render(messages=messages, **{**names, **variables})


@cache
def plain_jinja(template: str) -> jinja2.Template:
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    environment.filters["tojson"] = lambda value, ensure_ascii=False, indent=None: json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent
    )
    return environment.from_string(template)


def special_ids(ids: list[int]) -> list[str]:
    return [LISTED.tokens[at] for at in ids if LISTED.types[at] != NORMAL]


# ---- the built-in template, as strings ----

EFFORT = "<|system|>Reasoning Effort: Max"
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
TOOLS_TEXT = (
    "<|system|>\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with "
    "function signatures within <tools></tools> XML tags:\n<tools>\n"
    '{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}\n'
    "</tools>\n\nFor each function call, output the function name and arguments within the following XML format:\n"
    "<tool_call>{function-name}<arg_key>{arg-key-1}</arg_key><arg_value>{arg-value-1}</arg_value>"
    "<arg_key>{arg-key-2}</arg_key><arg_value>{arg-value-2}</arg_value>...</tool_call>"
)
USER = {"role": "user", "content": "Hi"}
CALL = {"name": "add", "arguments": {"a": 1, "b": "two", "c": [1.5, None, True], "d": "3"}}
CALL_TEXT = (
    "<tool_call>add<arg_key>a</arg_key><arg_value>1</arg_value><arg_key>b</arg_key><arg_value>two</arg_value>"
    "<arg_key>c</arg_key><arg_value>[1.5, null, true]</arg_value><arg_key>d</arg_key><arg_value>3</arg_value>"
    "</tool_call>"
)

BUILT_IN = [
    ([USER], {}, f"[gMASK]<sop>{EFFORT}<|user|>Hi<|assistant|><think>"),
    ([USER], {"thinking": False}, "[gMASK]<sop><|user|>Hi<|assistant|><think></think>"),
    ([USER], {"add_generation_prompt": False}, f"[gMASK]<sop>{EFFORT}<|user|>Hi"),
    (
        [USER], {"reasoning_effort": "high"},
        "[gMASK]<sop><|system|>Reasoning Effort: High<|user|>Hi<|assistant|><think>",
    ),
    ([USER], {"reasoning_effort": "max"}, f"[gMASK]<sop>{EFFORT}<|user|>Hi<|assistant|><think>"),
    ([USER], {"reasoning_effort": "high", "thinking": False}, "[gMASK]<sop><|user|>Hi<|assistant|><think></think>"),
    (
        [{"role": "system", "content": "Be brief."}, USER], {},
        f"[gMASK]<sop>{EFFORT}<|system|>Be brief.<|user|>Hi<|assistant|><think>",
    ),
    ([USER], {"tools": [TOOL]}, f"[gMASK]<sop>{TOOLS_TEXT}{EFFORT}<|user|>Hi<|assistant|><think>"),
    ([USER], {"tools": []}, f"[gMASK]<sop>{EFFORT}<|user|>Hi<|assistant|><think>"),
    (
        [USER, {"role": "assistant", "content": " A ", "reasoning_content": " R "}, USER], {},
        f"[gMASK]<sop>{EFFORT}<|user|>Hi<|assistant|><think></think>A<|user|>Hi<|assistant|><think>",
    ),
    (
        [USER, {"role": "assistant", "content": " A ", "reasoning_content": " R "}, USER], {"clear_thinking": False},
        f"[gMASK]<sop>{EFFORT}<|user|>Hi<|assistant|><think>R</think>A<|user|>Hi<|assistant|><think>",
    ),
    (
        [USER, {"role": "assistant", "content": "<think>R1\nR2</think>\n\nA"}, USER], {"clear_thinking": False},
        f"[gMASK]<sop>{EFFORT}<|user|>Hi<|assistant|><think>R1\nR2</think>A<|user|>Hi<|assistant|><think>",
    ),
    (
        [USER, {"role": "assistant", "content": None, "reasoning_content": "R", "tool_calls": [{"function": CALL}]},
         {"role": "tool", "content": "3"}, {"role": "tool", "content": "4"}], {},
        f"[gMASK]<sop>{EFFORT}<|user|>Hi<|assistant|><think>R</think>{CALL_TEXT}<|observation|>"
        "<tool_response>3</tool_response><tool_response>4</tool_response><|assistant|><think>",
    ),
    (
        [USER, {"role": "assistant", "tool_calls": [CALL, {"name": "f", "arguments": "{}"}]},
         {"role": "tool", "content": "1"}, {"role": "assistant", "content": "x"}, {"role": "tool", "content": "2"}],
        {"thinking": False},
        f"[gMASK]<sop><|user|>Hi<|assistant|><think></think>{CALL_TEXT}<tool_call>f</tool_call><|observation|>"
        "<tool_response>1</tool_response><|assistant|><think></think>x<|observation|><tool_response>2</tool_response>"
        "<|assistant|><think></think>",
    ),
    (
        [{"role": "user", "content": [{"type": "text", "text": "a"}, "b", {"text": "c"}]}], {"thinking": False},
        "[gMASK]<sop><|user|>abc<|assistant|><think></think>",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("messages", "options", "wanted"), BUILT_IN)
def test_the_built_in_template_writes_glms_prompt(messages: list[dict], options: dict, wanted: str) -> None:
    assert render_chat_text(TOKENIZER, messages, **options) == wanted
    assert render_chat(TOKENIZER, messages, **options) == TOKENIZER.encode(wanted, special=True)


def test_arguments_as_json_are_those_as_a_mapping() -> None:
    as_text = {"function": {"name": "add", "arguments": json.dumps(CALL["arguments"])}}
    texts = [
        render_chat_text(TOKENIZER, [USER, {"role": "assistant", "content": "", "tool_calls": [call]}])
        for call in (as_text, {"function": CALL}, CALL)
    ]
    assert texts[0] == texts[1] == texts[2]


def test_a_files_own_template_is_used_and_the_built_in_one_without(make: Any, tiny: rt.Model) -> None:
    assert render_chat(tiny, [USER]) == render_chat(TOKENIZER, [USER])
    with rt.Model.open(make("micro", template=False)) as bare:
        assert render_chat_text(bare, [USER]) == f"[gMASK]<sop>{EFFORT}<|user|>Hi<|assistant|><think>"
    own = Tokenizer(LISTED.tokens, LISTED.types, LISTED.merges, chat_template="{{ messages[0].content }}<|user|>")
    assert render_chat_text(own, [USER]) == "Hi<|user|>"
    assert render_chat_text(own, [USER], template="[gMASK]") == "[gMASK]"


# ---- against plain Jinja ----

ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.sampled_from(
    ["", " ", "\n", " x\n", "user", "a\nb", "\u00e9\u2028", "\u2800\u2801", "\U000f0000", "k", "{{ 1 }}", "{% if %}"]
)
HARMLESS = ANY_TEXT.filter(lambda text: not set(text) & set("<[/"))
PIECES = sorted({word[a:b] for word in ("<|user|>", "</think>", "[gMASK]") for a in range(9) for b in range(a, 9)})
HOSTILE = st.lists(st.sampled_from([*ADDED, *PIECES]) | ANY_TEXT, max_size=4).map("".join)
ROLES = st.sampled_from(["system", "user", "assistant", "tool"])


@st.composite
def conversations(draw: Any, text: Any) -> list[dict]:
    value = text | st.integers() | st.booleans() | st.none() | st.lists(text, max_size=2)
    messages = []
    for role in draw(st.lists(ROLES, min_size=1, max_size=5)):
        message = {"role": role, "content": draw(text)}
        if draw(st.booleans()):
            message["name"] = draw(text)
        if role == "assistant" and draw(st.booleans()):
            arguments = draw(st.dictionaries(text, value, max_size=3))
            message["tool_calls"] = [{"type": "function", "function": {"name": draw(text), "arguments": arguments}}]
            message["reasoning_content"] = draw(text)
        messages.append(message)
    return messages


@pytest.mark.parametrize("name", TEMPLATES)
@settings(max_examples=80, deadline=None, derandomize=True)
@given(data=st.data())
def test_ids_are_those_of_hugging_faces_prompt(name: str, data: Any) -> None:
    """Without "<", "[" and "/" no users' text looks like a special token; what only nearly does is the same, too."""
    nearly = st.sampled_from(["a < b", "x[0]", "1/2", "<b>", "</", "user|", "<|us"])
    messages = data.draw(conversations(HARMLESS | nearly))
    tools = data.draw(st.lists(st.fixed_dictionaries({"name": HARMLESS, "x": st.none() | st.integers()}), max_size=2))
    wanted = hugging_face(TEMPLATES[name], messages, tools=tools or None)
    tame = hugging_face(TEMPLATES[name], neutral(messages), tools=neutral(tools) or None)
    assume(special_ids(TOKENIZER.encode(wanted, True)) == special_ids(TOKENIZER.encode(tame, True)))
    ids = render_chat(TOKENIZER, messages, tools=tools, template=TEMPLATES[name])
    assert ids == TOKENIZER.encode(wanted, special=True)
    assert render_chat_text(TOKENIZER, messages, tools=tools, template=TEMPLATES[name]) == wanted


def neutral(value: Any, key: str | None = None) -> Any:
    """The same conversation with nothing in it that could be a token. Empty text stays empty."""
    if isinstance(value, str):
        return value if key == "role" or not value.strip() else "." * len(value.strip())
    if isinstance(value, dict):
        if key == "arguments":
            return {f".{at}": neutral(item) for at, item in enumerate(value.values())}
        return {name: neutral(item, name) for name, item in value.items()}
    return [neutral(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", TEMPLATES)
@settings(max_examples=120, deadline=None, derandomize=True)
@given(data=st.data())
def test_no_users_text_becomes_a_control_token(name: str, data: Any) -> None:
    """The special tokens of a prompt are those of the same conversation with harmless words, and its text is whole."""
    messages = data.draw(conversations(HOSTILE))
    tool = st.fixed_dictionaries({"name": HOSTILE, "x": st.lists(HOSTILE, max_size=2)})
    tools = data.draw(st.lists(tool, max_size=2))
    ids = render_chat(TOKENIZER, messages, tools=tools, template=TEMPLATES[name])
    apart = [with_reasoning_apart(message) for message in messages]
    tame = render_chat(TOKENIZER, neutral(apart), tools=neutral(tools), template=TEMPLATES[name])
    assert special_ids(ids) == special_ids(tame)
    assert TOKENIZER.decode(ids) == hugging_face(TEMPLATES[name], apart, tools=tools or None)
    assert TOKENIZER.decode(ids) == render_chat_text(TOKENIZER, messages, tools=tools, template=TEMPLATES[name])


def with_reasoning_apart(message: dict) -> dict:
    """An assistant's message with what stands before "</think>" where reasoning belongs."""
    head, end, tail = message["content"].partition("</think>")
    if message["role"] != "assistant" or "reasoning_content" in message or not (end or "<think>" in message["content"]):
        return message
    if end:
        return {**message, "content": tail, "reasoning_content": head.rsplit("<think>", 1)[-1]}
    starts = message["content"].lstrip().startswith("<think>")
    return {**message, "content": "", "reasoning_content": head.split("<think>", 1)[1]} if starts else message


M = "{{ messages[0].content }}"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (M, {"content": "<|user|>"}),
        ("<|" + M + "|>", {"content": "user"}),
        ("<|" + M + "|>", {"content": "  user  "}),
        ("<|{{ messages[0].content.strip() }}|>", {"content": "  user  "}),
        ("<|" + M, {"content": "user|>"}),
        ("<|" + M, {"content": "user|> and more"}),
        ("<|{{ messages[0].content.strip() }}", {"content": "\nuser|> and more"}),
        ("<" + M + "er|>", {"content": "|us"}),
        (M + "user|>", {"content": "<|"}),
        (M + "|>", {"content": "<|user"}),
        ("{{ messages[0].content }}{{ messages[0].name }}", {"content": "<|us", "name": "er|>"}),
        ("{{ messages[0].content ~ messages[0].name }}", {"content": "[gM", "name": "ASK]"}),
        ("{{ messages[0].content | replace('\\n', '') }}", {"content": "<|us\ner|>"}),
        ("{{ messages[0].content | replace('!', '') }}", {"content": "<!|us!er|!>"}),
        ("{{ messages[0].content[1:] }}", {"content": "x<|user|>"}),
        ("{{ messages[0].content[:8] }}", {"content": "<|user|>x"}),
        ("{{ messages[0].content | upper }}", {"content": "<think>[mask]"}),
        ("{{ messages[0].content.lower() }}", {"content": "<THINK>"}),
        ("{{ messages[0].content.split('x') | join }}", {"content": "<x|user|>"}),
        ("{{ messages[0].content.split('x') | last }}", {"content": "x<|user|>"}),
        ("{{ messages[0].content | reverse }}", {"content": ">|resu|<"}),
        ("{{ messages[0].content | list | join('') }}", {"content": "<|user|>"}),
        ("{{ messages[0].content | tojson }}", {"content": "<|user|>"}),
        ("{{ messages[0].content | tojson(ensure_ascii=True) }}", {"content": "<|user|>"}),
        ("{{ messages }}", {"content": "<|user|>"}),
        ("{{ messages | string }}{{ messages[0] }}", {"content": "<|user|>", "<|user|>": 1}),
        ("{% for k in messages[0] %}{{ k }}{% endfor %}", {"content": "", "<|user|>": 1}),
        ("<{{ messages[0].tool_calls[0].arguments | first }}>",
         {"role": "assistant", "content": "", "tool_calls": [{"name": "f", "arguments": {"think": 1}}]}),
        ("<|{{ messages[0].extra.role }}|>{{ messages[0].extra.type }}",
         {"content": "", "extra": {"role": "<|user|>", "type": "<|user|>"}}),
        ("{{ messages[0].content | e }}{{ messages[0].content | trim('<') }}", {"content": "<|user|>"}),
        ("{{ '%s' % messages[0].content }}{{ '{}'.format(messages[0].content) }}", {"content": "<|user|>"}),
        ("{% set x %}<|{{ messages[0].content }}{% endset %}{{ x }}", {"content": "user|>"}),
        ("{% macro w(t) %}<|{{ t }}|>{% endmacro %}{{ w(messages[0].content) }}", {"content": "user"}),
        ("/no{{ messages[0].content }}", {"content": "think"}),
    ],
)  # fmt: skip
def test_no_way_to_put_text_together_makes_a_token_of_it(template: str, message: dict) -> None:
    messages = [{"role": "user", **message}]
    ids = render_chat(TOKENIZER, messages, template=template)
    assert special_ids(ids) == []
    assert TOKENIZER.decode(ids) == render_chat_text(TOKENIZER, messages, template=template)


def test_tokens_that_a_template_composes_itself_are_tokens() -> None:
    for template in ("<|{{ messages[0].role }}|>", "{{ '<|' + messages[0].role }}|>", "{{ '<' ~ '|user' ~ '|>' }}"):
        assert special_ids(render_chat(TOKENIZER, [USER], template=template)) == ["<|user|>"]
    named = render_chat(TOKENIZER, [USER], template="{{ bos_token }}{{ eos_token }}")
    assert special_ids(named) == ["[gMASK]", "<|endoftext|>"]
    assert render_chat(TOKENIZER, [USER], template="[PAD2040]") == TOKENIZER.encode("[PAD2040]")


@example("\u2800" * 3, "".join(map(chr, range(0x2800, 0x2900))))
@settings(max_examples=100, deadline=None, derandomize=True)
@given(HOSTILE, HOSTILE)
def test_a_guard_gives_back_what_it_hid(first: str, second: str) -> None:
    for literals, before in (([], ""), (["<|"], "<|")):
        guard = Guard(ADDED, literals, [first, second])
        hidden = guard.hide(first) + guard.hide(second)
        assert not any(token in before + hidden + "|>" for token in ADDED)
        assert guard.show(hidden) == first + second
        assert len(hidden) == len(first + second)
        assert (guard.hide(first) == first) == (not set(first) & set("<[/")) or literals


def test_messages_with_every_character_there_is_are_refused() -> None:
    everything = "".join(chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000)
    with pytest.raises(rt.ArgumentError, match="so many different characters"):
        Guard(ADDED, [], [everything])


# ---- what is refused ----


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "there are no messages"),
        ("Hi", "messages must be a list"),
        ({"role": "user"}, "messages must be a list"),
        (["Hi"], r"messages\[0\] is a str, not a mapping"),
        ([{"content": "Hi"}], r"messages\[0\] has the role None; it must be one of system, user"),
        ([USER, {"role": "<|user|>", "content": "Hi"}], r"messages\[1\] has the role '<\|user\|>'"),
        ([{"role": "user", "content": 5}], r"messages\[0\].content is a int"),
        ([{"role": "user", "content": {"text": "x"}}], r"messages\[0\].content is a dict"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}], r"\[0\] is of type 'image_url'"),
        ([{"role": "user", "content": [7]}], r"content\[0\] is of type 'int'"),
        ([{"role": "user", "content": "x", "at": datetime(2026, 1, 1)}], r"messages\[0\].at is a datetime"),
        ([{"role": "user", "content": "x", 3: 4}], r"messages\[0\] has the key 3"),
        ([{"role": "assistant", "content": "", "tool_calls": ["f"]}], r"tool_calls\[0\] is a str"),
        ([{"role": "assistant", "content": "", "tool_calls": [{"arguments": {}}]}], r"tool_calls\[0\] has no name"),
        ([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}], "not JSON"),
        ([{"role": "assistant", "tool_calls": [{"name": "f", "arguments": [1]}]}], "arguments is a list"),
        ([{"role": "assistant", "content": "", "reasoning_content": 1}], "reasoning_content is not a string"),
        ([{"role": "user", "content": "\ud800"}], "lone surrogate U\\+D800"),
    ],
)  # fmt: skip
def test_messages_that_are_none_are_refused(messages: Any, words: str) -> None:
    with pytest.raises(rt.ArgumentError, match=words):
        render_chat(TOKENIZER, messages)


def test_other_bad_arguments_are_refused() -> None:
    deep: Any = "x"
    for _ in range(100):
        deep = [deep]
    with pytest.raises(rt.ArgumentError, match="levels deep"):
        render_chat(TOKENIZER, [{**USER, "extra": deep}])
    for tools in ("x", [1], {"name": "f"}):
        with pytest.raises(rt.ArgumentError, match="tools must be"):
            render_chat(TOKENIZER, [USER], tools=tools)
    with pytest.raises(rt.ArgumentError, match="variables.v is a set"):
        render_chat(TOKENIZER, [USER], variables={"v": {1}})
    assert render_chat_text(TOKENIZER, [USER], template="{{ v }}<", variables={"v": "<|user|>"}) == "<|user|><"


GROW = "{% set ns = namespace(x='aaaaaaaaaa') %}{% for i in range(40) %}{% set ns.x = EXPRESSION %}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "kind", "words"),
    [
        ("a\n{% for x in %}", rt.ModelError, "line 2: Expected an expression"),
        ("a\nb\n{{ x | nonsense }}", rt.ModelError, "line 3: No filter named 'nonsense'"),
        ("a\n{{ messages[0].nothing.more }}", rt.ModelError, "line 2: 'dict object' has no attribute 'nothing'"),
        ("{% macro m() %}\n\n{{ 1 / 0 }}{% endmacro %}\n{{ m() }}", rt.ModelError, "line 3: ZeroDivisionError"),
        ("\n{{ raise_exception('no ' ~ messages[0].content) }}", rt.ArgumentError, "line 2: no Hi"),
        ("{{ strftime_now('%Y') }}", rt.ArgumentError, "no `now` was given"),
        ("{% include 'secrets' %}", rt.ModelError, "line 1"),
        ("{% import 'os' as os %}", rt.ModelError, "line 1"),
        ("{{ messages.append(1) }}", rt.ModelError, "unsafe"),
        ("{{ messages[0].update(a=1) }}", rt.ModelError, "unsafe"),
        ("{{ ''.__class__.__mro__ }}", rt.ModelError, "line 1"),
        ("{{ raise_exception.__globals__.os }}", rt.ModelError, "line 1"),
        ("{{ lipsum() }}", rt.ModelError, "'lipsum' is undefined"),
        ("{{ [1, 2] | random }}", rt.ModelError, "random"),
        ("{{ 'a' * 1000000 }}", rt.ModelError, "repetition"),
        ("{{ 1000000 * [1] }}", rt.ModelError, "repetition"),
        ("{{ 9 ** 9 ** 9 }}", rt.ModelError, "power"),
        ("{{ '%1000000000d' % 3 }}", rt.ModelError, "format string"),
        ("{{ '{:1000000000}'.format(3) }}", rt.ModelError, "format string"),
        ("{{ '{:{}}'.format(3, 1000000000) }}", rt.ModelError, "format string"),
        ("{{ '%*d' % (1000000000, 3) }}", rt.ModelError, "format string"),
        ("{{ 'a'.ljust(1000000000) }}", rt.ModelError, "ljust"),
        ("{{ 'a' | indent(1000000000) | length }}{{ 1 / 0 }}", rt.ModelError, "ZeroDivision"),
        ("{{ messages | tojson(indent=100000) }}", rt.ModelError, "indent of 100000"),
        ("{% for i in range(1000000) %}x{% endfor %}", rt.ModelError, "Range too big"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", rt.ModelError, "Recursion"),
        ("{{ '\t'.expandtabs(tabsize=100001) }}", rt.ModelError, "expandtabs"),
        ("{{ ('\t' * 10000).expandtabs(99999) }}", rt.ModelError, "a string of more than"),
        ("{{ ('{0}' * 10000).format('a' * 100000) }}", rt.ModelError, "a string of more than"),
        ("{{ ('{a}' * 10000).format_map({'a': 'a' * 100000}) }}", rt.ModelError, "a string of more than"),
        ("{{ '%(a)s' * 10000 % {'a': 'a' * 100000} }}", rt.ModelError, "a string of more than"),
        ("{{ '%s%s' * 10000 % (('a' * 100000,) * 20000) }}", rt.ModelError, "a string of more than"),
        ("{{ (1).to_bytes(length=100001, byteorder='big') }}", rt.ModelError, "to_bytes"),
        ("{{ 'a'.encode() }}", rt.ModelError, "the method encode"),
        ("{{ messages[0].content.translate({72: 60}) }}", rt.ModelError, "the method translate"),
        ("{{ (messages[0].content | safe).unescape() }}", rt.ModelError, "the method unescape"),
        ("{{ messages[0].content | striptags }}", rt.ModelError, "striptags"),
        (GROW.replace("'aaaaaaaaaa'", "[1]").replace("EXPRESSION", "ns.x + ns.x"), rt.ModelError, "100000 items"),
        (GROW.replace("'aaaaaaaaaa'", "3").replace("EXPRESSION", "ns.x * ns.x"), rt.ModelError, "more than 4096 bits"),
        (GROW.replace("EXPRESSION", "ns.x + ns.x"), rt.ModelError, "a string of more than"),
        (GROW.replace("EXPRESSION", "ns.x ~ ns.x"), rt.ModelError, "a string of more than"),
        (GROW.replace("EXPRESSION", "ns.x | replace('a', 'aaaaaaaa')"), rt.ModelError, "a string of more than"),
        (GROW.replace("EXPRESSION", "ns.x.replace('a', 'aaaaaaaa')"), rt.ModelError, "a string of more than"),
        (GROW.replace("EXPRESSION", "[ns.x, ns.x] | join"), rt.ModelError, "a string of more than"),
        (GROW.replace("EXPRESSION", "ns.x.join(['', '', ''])"), rt.ModelError, "a string of more than"),
        (GROW.replace("= EXPRESSION %}", "%}{{ ns.x }}{{ ns.x }}{% endset %}"), rt.ModelError, "a string of more"),
    ],
)  # fmt: skip
def test_a_template_that_fails_is_named_with_its_line(template: str, kind: type, words: str) -> None:
    broken = Tokenizer(LISTED.tokens, LISTED.types, LISTED.merges, chat_template=template, source="some.gguf")
    with pytest.raises(kind, match=words) as raised:
        render_chat(broken, [USER])
    assert str(raised.value).startswith("some.gguf: tokenizer.chat_template: line ")


def test_a_prompt_that_is_too_long_is_refused() -> None:
    template = "{% for i in range(10) %}{% for i in range(90000) %}" + 100 * "x" + "{% endfor %}{% endfor %}"
    with pytest.raises(rt.ModelError, match="the given chat template: a string of more than"):
        render_chat(TOKENIZER, [USER], template=template)


def test_names_of_hugging_face_are_there() -> None:
    now = datetime(2026, 3, 1)
    template = (
        "{% generation %}{{ strftime_now('%d %b %Y') }}{% endgeneration %}{{ tools is none }}{{ documents is none }}"
        "{% for x in [1, 2, 3] %}{% if x == 2 %}{% continue %}{% endif %}{{ x }}{% endfor %}"
        "{{ {'b': '\u00e9<', 'a': 1} | tojson }}{{ messages[0].content | tojson(ensure_ascii=true) }}"
        "{{ {'b': 1, 'a': 2} | tojson(sort_keys=true, separators=(',', ':')) }}"
    )
    wanted = '01 Mar 2026TrueTrue13{"b": "\u00e9<", "a": 1}"<\\u00e9>"{"a":2,"b":1}'
    message = {"role": "user", "content": "<\u00e9>"}
    assert render_chat_text(TOKENIZER, [message], template=template, now=now) == wanted


# ---- answers ----


@pytest.mark.parametrize(
    ("text", "opened", "wanted"),
    [
        ("<think>R</think>A", False, ("R", "A")),
        ("R\n</think>\nA", False, ("R\n", "\nA")),
        ("R</think>A", True, ("R", "A")),
        ("</think>A", False, ("", "A")),
        ("A", False, (None, "A")),
        ("cut off", True, ("cut off", "")),
        ("<think>cut off", False, ("cut off", "")),
        ("A <think>", False, (None, "A <think>")),
        ("x<think>R</think>A</think>B", False, ("R", "A</think>B")),
        ("", False, (None, "")),
    ],
)
def test_reasoning_is_split_off(text: str, opened: bool, wanted: tuple) -> None:
    assert split_thinking(text, opened) == wanted


SCHEMA = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {
    "s": {"type": "string"}, "i": {"type": "integer"}, "n": {"type": "number"}, "b": {"type": "boolean"},
    "o": {"type": "object"}, "a": {"type": "array"}, "u": {"type": ["string", "null"]},
    "any": {"anyOf": [{"type": "integer"}, {"type": "string"}]}, "free": {}}}}}]  # fmt: skip


def call_text(arguments: dict[str, str], name: str = "f") -> str:
    pairs = "".join(f"<arg_key>{key}</arg_key><arg_value>{value}</arg_value>" for key, value in arguments.items())
    return f"<tool_call>{name}{pairs}</tool_call>"


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("s", "12", "12"), ("s", "null", "null"), ("s", ' {"a": 1} ', ' {"a": 1} '), ("s", "", ""),
        ("s", '"x"', '"x"'),
        ("i", "12", 12), ("i", "-3", -3), ("i", "twelve", "twelve"), ("i", "true", "true"), ("n", "1.5e3", 1500.0),
        ("b", "true", True), ("b", "1", "1"), ("o", '{"x": [1]}', {"x": [1]}), ("o", "[1]", "[1]"),
        ("a", "[1, 2]", [1, 2]),
        ("u", "null", None), ("u", "5", "5"), ("any", "5", 5), ("any", "x", "x"), ("any", "null", "null"),
        ("free", "5", 5), ("free", "007", "007"), ("free", "NaN", "NaN"), ("free", '"x"', '"x"'),
        ("free", "[" * 9999, "[" * 9999),
        ("other", "true", True), ("s", "a</arg_key>\n<tool_call>", "a</arg_key>\n<tool_call>"),
    ],
)  # fmt: skip
def test_arguments_have_the_types_of_the_schema(key: str, text: str, value: Any) -> None:
    calls = parse_tool_calls("Well.\n" + call_text({key: text}) + " done", SCHEMA)
    assert calls == [{"name": "f", "arguments": {key: value}}]
    assert type(calls[0]["arguments"][key]) is type(value)


def test_tools_without_schemas_say_nothing_of_types() -> None:
    odd = {"name": "f", "parameters": {"properties": {"a": "any"}}}
    for tools in ([{}], [{"function": None}], [{"name": "f"}], [odd]):
        assert parse_tool_calls(call_text({"a": "5"}), tools) == [{"name": "f", "arguments": {"a": 5}}]


def test_calls_are_found_in_their_order_with_white_space_between_parts() -> None:
    text = "x<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>\n<tool_call> g </tool_call>"
    assert parse_tool_calls(text) == [{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]
    assert parse_tool_calls("no call, though <arg_key> is there") == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ab<tool_call>f", "the tool call at character 2 is cut off"),
        ("<tool_call>f<arg_key>a</arg_key>", "goes on with '<arg_key>a</arg_key>'"),
        ("<tool_call>f<arg_value>a</arg_value></tool_call>", "goes on with '<arg_value>"),
        ("<tool_call></tool_call>", "has no name"),
        ("<tool_call>f</tool_call><tool_call>g<arg_key>a", "character 24 goes on"),
    ],
)
def test_a_call_that_is_cut_off_or_mixed_up_is_refused(text: str, words: str) -> None:
    with pytest.raises(rt.ArgumentError, match=words):
        parse_tool_calls(text)


PLAIN = st.text(st.characters(exclude_categories=["Cs"]), max_size=8).filter(lambda text: "</arg_value>" not in text)
JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(PLAIN, inner, max_size=3))  # fmt: skip
KEY = st.text("abcxyz_", min_size=1, max_size=5)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.dictionaries(KEY, PLAIN | JSON, max_size=4))
def test_what_the_template_writes_of_a_call_is_read_back(arguments: dict) -> None:
    kinds = {key: {"type": "string"} if isinstance(value, str) else {} for key, value in arguments.items()}
    tools = [{"function": {"name": "f", "parameters": {"properties": kinds}}}]
    calls = [{"name": "f", "arguments": arguments}]
    ids = render_chat(TOKENIZER, [USER, {"role": "assistant", "content": "", "tool_calls": calls}],
                      thinking=False, add_generation_prompt=False)  # fmt: skip
    assert parse_tool_calls(TOKENIZER.decode(ids), tools) == calls


def test_the_built_in_template_lies_beside_the_package() -> None:
    path = Path(rt.__file__).with_name("chat_template.jinja")
    assert path.read_text(encoding="utf-8") == builtin_template()
