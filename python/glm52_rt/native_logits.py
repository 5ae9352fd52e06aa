"""Logits of every token as it is fed: the binding of glm52_observe_logits."""

from collections.abc import Callable
from typing import Any

import numpy as np

from .native import NativeEngine, _check, _copy, _keep_stray, _stray, ffi, lib

LogitsCallback = Callable[[int, np.ndarray], Any]


class _Watch:
    """Who is called, and how many logits there are."""

    def __init__(self, callback: LogitsCallback, vocab: int) -> None:
        self.callback, self.vocab = callback, vocab


@ffi.def_extern(name="glm52_py_logits", onerror=_keep_stray)
def _on_logits(user: Any, position: int, logits: Any) -> None:
    if getattr(_stray, "error", None) is not None:
        return  # an earlier row's exception waits to be raised
    try:
        watch: _Watch = ffi.from_handle(user)
        watch.callback(position, _copy(logits, watch.vocab, "<f4"))
    except BaseException as error:
        _stray.error = error


def observe_logits(engine: NativeEngine, callback: LogitsCallback | None, first: int) -> None:
    """As Engine.observe_logits."""
    with engine._running() as pointer:
        if callback is None:
            _check(lib.glm52_observe_logits(pointer, 0, ffi.NULL, ffi.NULL))
            engine.logits_watch = None
            return
        handle = ffi.new_handle(_Watch(callback, engine._vocab))
        _check(lib.glm52_observe_logits(pointer, first, lib.glm52_py_logits, handle))
        engine.logits_watch = handle
