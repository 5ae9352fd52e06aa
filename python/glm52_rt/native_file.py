"""Bytes of a model's file as they are there: metadata values undecoded, for tools that carry them over."""

from __future__ import annotations

from typing import NamedTuple

from .native import NativeModel, _check, ffi, lib


class RawValue(NamedTuple):
    """A metadata value as in the file: GGUF's type numbers, and the bytes of its elements one behind the other."""

    key: str
    type: int
    element: int  # type of an array's elements; else the type itself
    count: int
    data: bytes


def raw_values(model: NativeModel) -> list[RawValue]:
    """Every key of the file, in its order."""
    value = ffi.new("glm52_value *")
    found = []
    for i in range(lib.glm52_model_key_count(model.pointer)):
        _check(lib.glm52_model_key(model.pointer, i, value))
        data = bytes(ffi.buffer(value.data, value.data_bytes)) if value.data_bytes else b""
        key = ffi.string(value.key).decode("utf-8")
        found.append(RawValue(key, value.type, value.element_type, value.count, data))
    return found
