"""An engine: one conversation on one model, and the memory planned for it."""

import operator
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from . import checkpoint
from .errors import ArgumentError, Error, UnsupportedError
from .model import Model
from .native import KV_TYPES, NativeEngine, NativeSession, Observation, Progress, engine_plan
from .native_logits import LogitsCallback, observe_logits
from .sampling import Sampler
from .streaming import LayerStats, Streaming, StreamStats

if TYPE_CHECKING:
    from .native_inputs import Inputs


@dataclass(frozen=True)
class Plan:
    """Memory of an engine in bytes; total is the sum of the others."""

    weights_mapped: int  # of the file, shared with the page cache
    kv_cache: int
    index_cache: int
    activations: int
    backend_scratch: int
    mtp: int  # caches of the MTP block
    sessions: int  # conversations beside the engine's: those reserved, or those open if more
    host: int
    expert_cache: int  # slots of streamed experts
    stream_buffers: int  # what streaming needs beside them
    total: int


@dataclass(frozen=True)
class Stats:
    """Measured since the engine was opened."""

    prefill_tokens: int
    prefill_ns: int
    eval_tokens: int
    eval_ns: int
    cancelled: int
    mtp_cycles: int  # batches that ran drafts
    mtp_drafted: int  # tokens predicted in them
    mtp_accepted: int  # of them, those that were then fed
    mtp_passes: int  # of the MTP block, prompts included
    mtp_ns: int  # in the MTP block
    mtp_verify_ns: int  # in the batches that ran drafts
    mtp_length: int  # drafts of the next cycle; 0: none, it may be for a single cycle
    mtp_off: int  # 1: drafts were tried and do not pay at the moment
    stream: StreamStats | None = None  # of a streaming engine
    stream_layers: tuple[LayerStats, ...] = ()  # per layer of the trunk


class State:
    """A conversation that an engine does not hold at the moment: Engine.park and Engine.fork make one, Engine.swap goes
    back to it. It takes memory (Plan.sessions) until it is closed or forgotten.

    tag   bytes of the caller's that belong to the conversation (Engine.tag)"""

    def __init__(self, native: NativeSession, tag: bytes, raw_keys: bool) -> None:
        self.native = native
        self.tag = tag
        self.raw_keys = raw_keys

    @property
    def tokens(self) -> list[int]:
        """The tokens held."""
        return self.native.tokens()

    @property
    def position(self) -> int:
        """Number of tokens held."""
        return len(self.native.tokens())

    def close(self) -> None:
        """Gives the conversation up; closing twice is fine."""
        self.native.close()

    def __enter__(self) -> "State":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Engine:
    """Runs a model. Close it, or use it in a with statement.

    context    positions there is room for, 1 .. model.shape.context_max
    backend    "cpu", "metal", "cuda", "sim" (kernels on this processor: slow); "auto" takes metal or cuda if there is a
               device, else cpu
    threads    0: one per processor this process may use. Never changes a bit of any result
    quality    float32 activations against exact weights, in a fixed order of summation; else activations are
               rounded to 8 bits and multiplied with the quantised weights as they lie
    kv_type    "f16" or "f32": how cache rows are kept
    chunk_rows rows of a prefill batch, 0 for the default
    latent_epsilon  of the norms of the low-rank query and key-value latents; None: the model's own. Hugging Face
               transformers uses 1e-6
    sessions   conversations that the plan has room for beside the engine's own (park, fork); more are let in while
               there is memory
    streaming  a Streaming: routed experts are read from the file when they are chosen; None: they stay mapped
    mtp        run the file's block for multi-token prediction, so that eval and speculate can run tokens ahead. No
               result depends on it
    drafts     tokens to run ahead in each cycle, 1 .. 7; 0: as many as pay, none if none do
    profile belongs to a part that this version does not have: UnsupportedError.

    Raises ContextError, MemoryBudgetError, UnsupportedError, ArgumentError. A call that fails leaves the engine as it
    was."""

    def __init__(
        self,
        model: Model,
        context: int = 4096,
        backend: str = "auto",
        threads: int = 0,
        quality: bool = False,
        kv_type: str = "f16",
        streaming: Streaming | None = None,
        mtp: bool = False,
        profile: Any = None,
        chunk_rows: int = 0,
        latent_epsilon: float | None = None,
        sessions: int = 0,
        drafts: int = 0,
    ) -> None:
        if profile:
            raise UnsupportedError(f"profile={profile!r}: this version has no profile")
        if not isinstance(model, Model):
            raise ArgumentError(f"model is {model!r}; it must be an open Model")
        if streaming is not None and not isinstance(streaming, Streaming):
            raise ArgumentError(f"streaming is {streaming!r}; it must be a Streaming or None")
        self.model = model
        self.mtp = bool(mtp)
        options = _options(context, backend, threads, quality, kv_type, chunk_rows, latent_epsilon, sessions)
        options |= {"mtp": int(self.mtp), "drafts": _number("drafts", drafts)}
        self.tag = b""  # the caller's, about the conversation: it goes where the conversation goes
        # So does this: the indexer's keys were made by another executor in another way (checkpoint_ds4.py).
        self.raw_keys = False
        self.options = options  # as given to C; 0 stands for a default
        self._native = NativeEngine(model.native, options, streaming.native_options() if streaming else None)
        self.warnings = self._native.stream_warnings()  # what opening had to say beside an error

    def prefill(self, ids: Sequence[int], progress: Progress | None = None) -> int:
        """Feeds tokens and returns how many were completed: all, or fewer after a cancellation.

        progress(position) is called before each batch and behind each of its layers; returning False (or anything
        false but None) cancels: the engine then stands behind the last whole batch, and feeding the rest gives bit
        for bit what one call would have. An exception raised in it, KeyboardInterrupt too, cancels alike and is
        raised here."""
        return self._native.prefill(_token_list(ids), progress)

    def eval(self, token: int, ahead: int = 0) -> None:
        """Feeds one token. KeyboardInterrupt leaves the engine as it was.

        ahead  up to so many tokens that are expected behind it are run in the same batch (with mtp). If they are fed
               next, that costs nothing; else they are forgotten."""
        self._native.eval(operator.index(token), _number("ahead", ahead))

    def speculate(self, token: int, max_tokens: int, cancelled: Callable[[], Any] | None = None) -> list[int]:
        """Feeds token and, with mtp, those behind it that greedy decoding would choose and that were predicted: at most
        max_tokens together. Returns the tokens fed, token first; logits are those of the last. Without mtp: [token].

        cancelled() is called between steps; if it returns something true, nothing is fed and [] returned."""
        progress = None if cancelled is None else lambda position: not cancelled()
        return self._native.speculate(operator.index(token), _number("max_tokens", max_tokens), progress)

    @property
    def ahead(self) -> list[int]:
        """Tokens that were run ahead: feeding them next, in this order, costs nothing."""
        return self._native.ahead()

    @property
    def logits(self) -> np.ndarray:
        """float32 [vocab] of the last token fed. A read-only view of the engine's memory: the next token overwrites
        it (copy to keep), and it stays readable after close. Raises Error if there are none."""
        return self._native.logits()

    @property
    def position(self) -> int:
        """Number of tokens held, which is the position of the next one."""
        return self._native.position()

    @property
    def tokens(self) -> list[int]:
        """The tokens held."""
        return self._native.tokens()

    @property
    def context(self) -> int:
        """Positions there is room for."""
        return self._native.context()

    def reset(self) -> None:
        """Goes back to position 0, without a tag."""
        self.rewind(0)
        self.tag = b""

    def rewind(self, position: int) -> None:
        """Goes back to an earlier position; what follows equals never having been further, bit for bit. There are no
        logits then, unless position is the current one."""
        self._native.rewind(position)
        self.raw_keys = self.raw_keys and position > 0

    def align(self, ids: Sequence[int]) -> int:
        """Keeps the longest common prefix of the tokens held and ids and returns its length, always below len(ids) so
        that feeding ids from there on gives logits."""
        kept = self._native.align(_token_list(ids))
        self.raw_keys = self.raw_keys and kept > 0
        return kept

    def park(self) -> State:
        """Puts the conversation aside and leaves the engine empty. Nothing is computed or copied but the logits.

        Raises MemoryBudgetError if there is no room for another conversation."""
        state = State(self._native.open_session(), b"", False)
        self.swap(state)
        return state

    def swap(self, state: State) -> None:
        """Exchanges the engine's conversation and a parked one: the engine goes on with state's, and state then holds
        what the engine held. Raises ArgumentError if state is another engine's."""
        self._native.swap(state.native)
        self.tag, state.tag = state.tag, self.tag
        self.raw_keys, state.raw_keys = state.raw_keys, self.raw_keys

    def fork(self) -> State:
        """A copy of the conversation, for a second continuation. Copies the cache rows up to the position. Raises
        MemoryBudgetError as park does."""
        state = State(self._native.open_session(), self.tag, self.raw_keys)
        self._native.copy_to(state.native)
        return state

    @property
    def native(self) -> NativeEngine:
        return self._native

    def save(
        self,
        path: str | os.PathLike[str],
        tag: bytes | None = None,
        progress: Progress | None = None,
        sampler: Sampler | None = None,
    ) -> None:
        """Writes the conversation to a checkpoint (docs/FORMAT.md), readable by its owner alone. path is replaced in
        one step when all is on the disk; after an error or a cancellation it is what it was.

        tag       bytes of the caller's to be kept with it, up to a MiB; it becomes the engine's. None: the engine's
        progress  progress(bytes written) is called before each piece of about a MiB; returning False cancels
        sampler   its state is kept too

        Raises Cancelled, IoError, ArgumentError."""
        tag = self.tag if tag is None else bytes(tag)
        checkpoint.save(self, path, tag, sampler, progress)
        self.tag = tag

    def load(
        self, path: str | os.PathLike[str], progress: Progress | None = None, sampler: Sampler | None = None
    ) -> bool:
        """Takes up the conversation of a checkpoint; what follows is bit for bit what would have followed where it was
        saved (on the same backend). False if there is no file. The engine must be of the same model by content, with
        the same quality, kv_type and latent_epsilon, and have room for the tokens; context, threads, streaming and
        chunk_rows may differ. Its tag becomes the engine's; sampler, if the file has one, goes on as the saved one.

        progress(bytes read) may cancel as in save. For the time of the call there are two conversations in memory.
        Raises CheckpointError for a file that is damaged or does not belong here, ContextError, MemoryBudgetError,
        Cancelled, IoError; the engine and the sampler are then as they were."""
        return checkpoint.load(self, path, sampler, progress)

    def observe(self, callback: Callable[[Observation], Any] | None) -> None:
        """Has callback called once per trunk layer of every batch with what the layer decided; None ends it. An
        exception in it is raised by the call that ran the layer, once that is done."""
        self._native.observe(callback)

    def observe_logits(self, callback: LogitsCallback | None, first: int = 0) -> None:
        """Has callback(position, logits) called for every token fed at position first or behind it, a prompt's tokens
        too; logits are float32 [vocab], a copy, bit for bit what feeding tokens one by one would show. Tokens run ahead
        are not shown. None ends it. An exception in it is raised by the call that fed the token, once that is done."""
        observe_logits(self._native, callback, _number("first", first))

    def observe_inputs(self, callback: "Callable[[Inputs], Any] | None") -> None:
        """Has callback(inputs) called with the rows that each matrix is about to be multiplied with, those of routed
        experts with the experts' numbers (native_inputs.Inputs): what importance matrices are made of. No result
        changes; a pass takes longer. None ends it. An exception in it is raised by the call that ran the layer, once
        that is done. Raises UnsupportedError on backends other than the CPU's."""
        from .native_inputs import observe_inputs

        observe_inputs(self._native, callback)

    @property
    def backend(self) -> str:
        """Name of the backend in use."""
        return self._native.backend()

    @property
    def plan(self) -> Plan:
        """The memory that was planned and allocated."""
        return Plan(**self._native.plan())

    def stats(self) -> Stats:
        """Counters since the engine was opened."""
        stats = Stats(**self._native.stats())
        streamed = self._native.stream_stats()
        if streamed is None:
            return stats
        layers = tuple(LayerStats(**layer) for layer in streamed[1])
        return replace(stats, stream=StreamStats.from_fields(streamed[0]), stream_layers=layers)

    def shrink_cache(self, cache_bytes: int) -> int:
        """Gives memory back under pressure: the expert cache takes no more than cache_bytes from now on, and what it
        takes is returned. Changes no result. Raises MemoryBudgetError if pins and one slot of each size need more,
        UnsupportedError if the engine does not stream."""
        if not 0 <= cache_bytes < 2**64:
            raise ArgumentError(f"cache_bytes {cache_bytes} is out of range")
        return self._native.shrink_cache(cache_bytes)

    def close(self) -> None:
        """Frees the engine; closing twice is fine. Raises IoError, when all is freed, if its usage ledger could not be
        written."""
        self._native.close()

    def __reduce__(self) -> Any:
        raise TypeError("an engine can't be copied or pickled: open another one")

    def __enter__(self) -> "Engine":
        if self._native.closed:
            raise Error("the engine is closed")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _options(
    context: int,
    backend: str,
    threads: int,
    quality: bool,
    kv_type: str,
    chunk_rows: int,
    latent_epsilon: float | None,
    sessions: int,
) -> dict[str, Any]:
    if kv_type not in KV_TYPES:
        raise ArgumentError(f"kv_type {kv_type!r}; it must be one of {', '.join(sorted(KV_TYPES))}")
    numbers = {"context": context, "threads": threads, "chunk_rows": chunk_rows, "sessions": sessions}
    for name, number in numbers.items():
        _number(name, number)
    if not isinstance(backend, str) or "\0" in backend:
        raise ArgumentError(f"backend {backend!r}; it must be a name")
    if latent_epsilon is not None and not 0 < float(np.float32(latent_epsilon)) <= 1:
        raise ArgumentError(f"latent_epsilon {latent_epsilon}; it must be above 0 and at most 1")
    return {
        "backend": backend,
        "context": context,
        "threads": threads,
        "quality": int(bool(quality)),
        "kv_type": KV_TYPES[kv_type],
        "chunk_rows": chunk_rows,
        "latent_epsilon": latent_epsilon or 0.0,
        "sessions": sessions,
    }


def plan_memory(
    model: Model, context: int = 4096, *, streaming: Streaming | None = None, quality: bool = False,
    kv_type: str = "f16", chunk_rows: int = 0, threads: int = 0, sessions: int = 0,
    mtp: bool = False,
) -> Plan:
    """The plan that an engine would have, without its memory. Raises what Engine raises."""
    options = _options(context, "auto", threads, quality, kv_type, chunk_rows, None, sessions)
    options["mtp"] = int(mtp)
    return Plan(**engine_plan(model.native, options, streaming.native_options() if streaming else None))


def _number(name: str, number: int) -> int:
    if not 0 <= number < 2**32:
        raise ArgumentError(f"{name} {number}; it must be between 0 and {2**32 - 1}")
    return int(number)


def _token_list(ids: Sequence[int]) -> list[int]:
    return [operator.index(token) for token in ids]
