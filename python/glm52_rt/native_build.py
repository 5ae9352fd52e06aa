"""What made the native library, and which of its loops run: the binding of glm52_build and glm52_engine_kernels."""

from .native import NativeEngine, _text, ffi, lib


def build() -> str:
    """One line: version, compiler, flags, instruction sets that were built."""
    return ffi.string(lib.glm52_build()).decode("utf-8", "replace")


def kernels(engine: NativeEngine) -> str:
    """The loops that run on this machine, of those that the engine's backend has."""
    with engine._running() as pointer:
        return _text(lib.glm52_engine_kernels(pointer))
