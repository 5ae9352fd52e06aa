"""Conversations: messages to the ids of a prompt, and answers back into their parts.

The prompt is what the model file's own Jinja template makes of the messages, or the built-in GLM-5.2 template if the
file has none. Control tokens come from the template alone: users' text that spells one is encoded as text (see Guard
in templates.py for how).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib import resources
from typing import Any

from .errors import ArgumentError
from .templates import Guard, Template, compiled, strings_in
from .tokenizer import ModelLike, Tokenizer, tokenizer_of

ROLES = ("system", "user", "assistant", "tool")

Message = Mapping[str, Any]


# ---- prompts ----


def render_chat(
    model_or_tokenizer: ModelLike | Tokenizer,
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]] | None = None,
    thinking: bool = True,
    reasoning_effort: str | None = None,
    add_generation_prompt: bool = True,
    clear_thinking: bool | None = None,
    now: datetime | None = None,
    template: str | None = None,
    variables: Mapping[str, Any] | None = None,
) -> list[int]:
    """Ids of the prompt for a conversation.

    messages   mappings with "role" (one of ROLES) and "content": a string, None, or a list of strings and
               {"type": "text", "text": ...}, which are joined. An assistant's may have "reasoning_content" (else
               what stands before "</think>" in its content is taken as that) and "tool_calls", each with a "name" and
               "arguments" (a mapping or its JSON), bare or under "function".
    tools      JSON schemas of the functions the model may call
    thinking   False asks for an answer without reasoning
    reasoning_effort  "high" or "max" in GLM-5.2's template; None leaves the choice to the template
    add_generation_prompt  ends the prompt where the assistant's answer begins
    clear_thinking  whether reasoning of earlier turns is left out; None leaves the choice to the template
    now        the time for templates that ask for one; there is no clock in here
    template   a Jinja template to use instead of the file's
    variables  further JSON-like values that the template may ask for

    Where no text of a user looks like a special token, the ids are those of encode(rendered prompt, special=True), as
    with Hugging Face's apply_chat_template.

    Raises ArgumentError for messages that are not as above or that the template refuses, ModelError for a template
    that fails; both name the template's file and line."""
    tokenizer = tokenizer_of(model_or_tokenizer)
    text, guard = _rendered(
        tokenizer,
        messages,
        tools=tools,
        thinking=thinking,
        reasoning_effort=reasoning_effort,
        add_generation_prompt=add_generation_prompt,
        clear_thinking=clear_thinking,
        now=now,
        template=template,
        variables=variables,
    )
    ids: list[int] = []
    for piece in tokenizer.split_special(text):
        if isinstance(piece, str):
            ids += tokenizer.encode(guard.show(piece))
        else:
            ids.append(piece)
    return ids


def render_chat_text(
    model_or_tokenizer: ModelLike | Tokenizer, messages: Sequence[Message], **options: Any
) -> str:
    """The prompt as people read it. Encoding it again would not be safe: what users wrote and what the template wrote
    look alike. Options and errors as render_chat."""
    text, guard = _rendered(tokenizer_of(model_or_tokenizer), messages, **options)
    return guard.show(text)


def _rendered(
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    thinking: bool = True,
    reasoning_effort: str | None = None,
    add_generation_prompt: bool = True,
    clear_thinking: bool | None = None,
    now: datetime | None = None,
    template: str | None = None,
    variables: Mapping[str, Any] | None = None,
) -> tuple[str, Guard]:
    """The rendered prompt with stand-ins, and the guard that knows them."""
    given = {
        "messages": _checked_messages(messages),
        "tools": _checked_tools(tools),
        "variables": {
            "documents": None,
            **(variables or {}),
            "enable_thinking": bool(thinking),
            "add_generation_prompt": bool(add_generation_prompt),
            **({} if reasoning_effort is None else {"reasoning_effort": reasoning_effort}),
            **({} if clear_thinking is None else {"clear_thinking": bool(clear_thinking)}),
        },
    }
    texts = [text for name, value in given.items() for text in strings_in(value, name)]
    chosen = _template_of(tokenizer, template)
    guard = Guard(tokenizer.special_tokens, chosen.literals, texts)
    names = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
    scope = {
        **{name: tokenizer.named_tokens[key] for key, name in names.items() if key in tokenizer.named_tokens},
        **guard.hide_all(given["variables"]),
        "messages": guard.hide_all(given["messages"]),
        "tools": guard.hide_all(given["tools"]),
    }
    return chosen.render(guard, scope, now), guard


def _template_of(tokenizer: Tokenizer, template: str | None) -> Template:
    if template is not None:
        return compiled(template, "the given chat template")
    if tokenizer.chat_template is not None:
        return compiled(tokenizer.chat_template, f"{tokenizer.source}: tokenizer.chat_template")
    return compiled(builtin_template(), "the built-in chat template")


def builtin_template() -> str:
    """The GLM-5.2 template that is used for files without one."""
    return resources.files(__package__).joinpath("chat_template.jinja").read_text(encoding="utf-8")


def _checked_tools(tools: Sequence[Mapping[str, Any]] | None) -> list[Mapping[str, Any]] | None:
    if tools is None:
        return None
    if isinstance(tools, (str, Mapping)) or not all(isinstance(tool, Mapping) for tool in tools):
        raise ArgumentError("tools must be a list of mappings, one JSON schema each")
    return list(tools) or None


def _checked_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    if isinstance(messages, (str, Mapping)):
        raise ArgumentError("messages must be a list of mappings, one per message")
    checked = [_checked_message(message, f"messages[{at}]") for at, message in enumerate(messages)]
    if not checked:
        raise ArgumentError("there are no messages")
    return checked


def _checked_message(message: Message, where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise ArgumentError(f"{where} is a {type(message).__name__}, not a mapping")
    role = message.get("role")
    if role not in ROLES:
        raise ArgumentError(f"{where} has the role {role!r}; it must be one of {', '.join(ROLES)}")
    checked = {**message, "content": _checked_content(message.get("content"), f"{where}.content")}
    if role != "assistant":
        return checked
    if message.get("reasoning_content") is None:
        # Splitting happens here and not in the template, for which users' "</think>" is no special token.
        reasoning, checked["content"] = split_thinking(checked["content"])
        if reasoning is not None:
            checked["reasoning_content"] = reasoning
        else:
            checked.pop("reasoning_content", None)
    elif not isinstance(message["reasoning_content"], str):
        raise ArgumentError(f"{where}.reasoning_content is not a string")
    calls = message.get("tool_calls")
    if calls:
        checked["tool_calls"] = [_checked_call(call, f"{where}.tool_calls[{n}]") for n, call in enumerate(calls)]
    return checked


def _checked_content(content: Any, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, (list, tuple)):
        raise ArgumentError(f"{where} is a {type(content).__name__}, not a string or a list of parts")
    texts = []
    for at, part in enumerate(content):
        text = part.get("text") if isinstance(part, Mapping) and part.get("type", "text") == "text" else part
        if not isinstance(text, str):
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            raise ArgumentError(f"{where}[{at}] is of type {kind!r}; only text can be read")
        texts.append(text)
    return "".join(texts)


def _checked_call(call: Any, where: str) -> dict[str, Any]:
    if not isinstance(call, Mapping):
        raise ArgumentError(f"{where} is a {type(call).__name__}, not a mapping")
    if isinstance(call.get("function"), Mapping):
        return {**call, "function": _checked_call(call["function"], f"{where}.function")}
    if not isinstance(call.get("name"), str):
        raise ArgumentError(f"{where} has no name")
    arguments = call.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError) as error:
            raise ArgumentError(f"{where}.arguments is not JSON: {error}") from error
    if arguments is not None and not isinstance(arguments, Mapping):
        raise ArgumentError(f"{where}.arguments is a {type(arguments).__name__}, not a mapping")
    return {**call, "arguments": arguments or {}}


# ---- answers ----


def split_thinking(text: str, opened: bool = False) -> tuple[str | None, str]:
    """(reasoning, answer) of what an assistant wrote; reasoning is None if there is none.

    Reasoning ends at the first "</think>" and begins behind "<think>", or at the start of the text if there is no such
    tag, as in what follows a prompt that ends with "<think>". opened says that the prompt did: text without "</think>"
    is then all reasoning. The tags go, and nothing else."""
    before, end, after = text.partition("</think>")
    start = before.rfind("<think>")
    if end:
        return before[start + len("<think>") :] if start >= 0 else before, after
    if opened:
        return text, ""
    if text.lstrip().startswith("<think>"):
        return before[before.find("<think>") + len("<think>") :], ""
    return None, text


_CALL = re.compile(r"<tool_call>([^<]*)")
_ARGUMENT = re.compile(r"\s*<arg_key>([^<]*)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)
_CALL_END = re.compile(r"\s*</tool_call>")


def parse_tool_calls(text: str, tools: Sequence[Mapping[str, Any]] | None = None) -> list[dict[str, Any]]:
    """The tool calls in an answer, as [{"name": ..., "arguments": {...}}, ...] in their order.

    A call is <tool_call>NAME<arg_key>K</arg_key><arg_value>V</arg_value>...</tool_call>, which has no types: by the
    schema of the function's parameter in tools, a value that may be a number, a boolean, null, an object or an array
    and reads as one in JSON becomes that; every other value is the string as it stands. Without a schema for it, a
    value that is JSON and no string becomes what it says. Text around calls is left aside.

    Raises ArgumentError for a call that is cut off or has parts out of order, with its position in the text."""
    schemas = _parameter_schemas(tools or ())
    calls = []
    call = _CALL.search(text)
    while call:
        name, arguments, at = call[1].strip(), {}, call.end()
        while argument := _ARGUMENT.match(text, at):
            key, at = argument[1].strip(), argument.end()
            arguments[key] = _typed(argument[2], schemas.get(name, {}).get(key))
        end = _CALL_END.match(text, at)
        if not end or not name:
            what = "has no name" if end else f"goes on with {text[at : at + 20]!r}" if text[at:] else "is cut off"
            raise ArgumentError(f"the tool call at character {call.start()} {what}")
        calls.append({"name": name, "arguments": arguments})
        call = _CALL.search(text, end.end())
    return calls


def _parameter_schemas(tools: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Function name -> parameter name -> schema."""
    found = {}
    for tool in tools:
        function = tool.get("function") or tool
        parameters = function.get("parameters")
        properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
        found[function.get("name")] = properties if isinstance(properties, Mapping) else {}
    return found


def _typed(text: str, schema: Any) -> Any:
    allowed = _allowed_types(schema)
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return text
    kinds = {bool: {"boolean"}, int: {"integer", "number"}, float: {"number"}, type(None): {"null"},
             list: {"array"}, dict: {"object"}}  # fmt: skip
    fits = kinds.get(type(value), set())
    return value if fits and (allowed is None or fits & allowed) else text


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _allowed_types(schema: Any) -> set[str] | None:
    """JSON types a schema names; None if it names none."""
    if not isinstance(schema, Mapping):
        return None
    kinds = schema.get("type")
    found = {kinds} if isinstance(kinds, str) else set(kinds) if isinstance(kinds, (list, tuple)) else set()
    for word in ("anyOf", "oneOf"):
        for option in schema.get(word) or ():
            found |= _allowed_types(option) or set()
    return found or None
