"""From logits to tokens: the sampler, and the loop that feeds an engine with what it picks.

Everything random comes from a seed that the caller gives; there is no clock and no hidden state. The arithmetic is
float64, and each step uses one uniform number, so the choice of a step depends on the seed, the number of steps before
it and the logits alone.
"""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Callable, Collection, Iterator, Sequence
from types import TracebackType
from typing import Any, Protocol

import numpy as np

from .errors import ArgumentError, Error
from .tokenizer import end_token_ids

SEED_MAX = 2**64 - 1
_STATE = struct.Struct("<dddQ")  # temperature, top_p, min_p, seed; then state and increment of PCG64, 16 bytes each
STATE_BYTES = _STATE.size + 32


class EngineLike(Protocol):
    """What generate needs of an Engine."""

    model: Any
    logits: np.ndarray
    position: int
    context: int
    tokens: Sequence[int]

    def align(self, ids: Sequence[int]) -> int: ...
    def prefill(self, ids: Sequence[int], progress: Callable[[int], Any] | None = None) -> int: ...
    def eval(self, token: int, ahead: int = 0) -> None: ...


class Sampler:
    """Picks tokens: temperature, then min-p, then top-p, then one draw.

    temperature  the logits are divided by it; 0 takes the greatest logit, of equal ones the lower id
    min_p        keeps tokens of at least min_p times the greatest probability
    top_p        keeps the smallest set of the most probable tokens whose share of what min-p left reaches top_p (of
                 equally probable ones the lower id first), always at least one; 1 keeps all
    seed         0 .. SEED_MAX; None is 0, so that a run without a seed is as reproducible as any other

    The draw inverts the cumulative distribution over ids in ascending order, with 53 bits of PCG64 per step.
    """

    def __init__(
        self, temperature: float = 1.0, top_p: float = 0.95, min_p: float = 0.0, seed: int | None = None
    ) -> None:
        if not (math.isfinite(temperature) and temperature >= 0):
            raise ArgumentError(f"temperature {temperature}; it must be a finite number of at least 0")
        for name, value in (("top_p", top_p), ("min_p", min_p)):
            if not 0 <= value <= 1:
                raise ArgumentError(f"{name} {value}; it must be between 0 and 1")
        if seed is not None and not 0 <= operator.index(seed) <= SEED_MAX:
            raise ArgumentError(f"seed {seed}; it must be between 0 and {SEED_MAX}")
        self.temperature, self.top_p, self.min_p = float(temperature), float(top_p), float(min_p)
        self.seed = 0 if seed is None else operator.index(seed)
        self._bits = np.random.PCG64(self.seed)

    def pick(self, logits: np.ndarray) -> int:
        """The next token for logits [vocab]. Minus infinity forbids a token.

        Raises ArgumentError if a logit is NaN or plus infinity, or all are minus infinity."""
        if self.temperature == 0:
            return int(np.argmax(_checked(logits)))
        ids, weights = self.candidates(logits)
        sums = np.cumsum(weights)
        target = (self._bits.random_raw() >> 11) * 2.0**-53 * sums[-1]
        # The first sum above the target. There is one: at most 1 - 2^-53 times the last sum rounds to below it.
        return int(ids[np.searchsorted(sums, target, "right")])

    def candidates(self, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(ids [n] ascending, weights float64 [n]) that a draw chooses from; the greatest weight is 1. Errors as
        pick. Needs a temperature above 0."""
        if self.temperature == 0:
            raise ArgumentError("temperature 0 takes the greatest logit: there is no distribution")
        values = _checked(logits).astype(np.float64)
        with np.errstate(under="ignore", over="ignore"):
            weights = np.exp((values - values.max()) / self.temperature)
        ids = np.flatnonzero(weights >= self.min_p)
        if self.top_p < 1:
            ids = ids[self._most_probable(weights[ids])]
        return ids, weights[ids]

    @property
    def state(self) -> bytes:
        """All that the next picks depend on beside the logits: STATE_BYTES bytes, laid out as docs/FORMAT.md says."""
        generator = self._bits.state["state"]
        settings = _STATE.pack(self.temperature, self.top_p, self.min_p, self.seed)
        return settings + b"".join(generator[name].to_bytes(16, "little") for name in ("state", "inc"))

    @state.setter
    def state(self, state: bytes) -> None:
        if len(state) != STATE_BYTES:
            raise ArgumentError(f"a sampler's state of {len(state)} bytes; it has {STATE_BYTES}")
        temperature, top_p, min_p, seed = _STATE.unpack(state[: _STATE.size])
        numbers = [int.from_bytes(state[at : at + 16], "little") for at in (_STATE.size, _STATE.size + 16)]
        if numbers[1] % 2 == 0:
            raise ArgumentError("a sampler's state with an even increment: no PCG64 has one")
        Sampler.__init__(self, temperature, top_p, min_p, seed)
        generator = {"state": numbers[0], "inc": numbers[1]}
        self._bits.state = {"bit_generator": "PCG64", "state": generator, "has_uint32": 0, "uinteger": 0}

    def _most_probable(self, weights: np.ndarray) -> np.ndarray:
        """Places of the top-p set, ascending. Sorts only as many of the greatest weights as it takes."""
        wanted = self.top_p * weights.sum()
        count = 256
        while True:
            if count >= len(weights):
                greatest = np.arange(len(weights))
            else:  # with everything that ties with the last of them, so that ties are broken by place
                greatest = np.flatnonzero(weights >= np.partition(weights, -count)[-count])
            order = greatest[np.argsort(-weights[greatest], kind="stable")]
            sums = np.cumsum(weights[order])
            if sums[-1] >= wanted or len(order) == len(weights):
                return np.sort(order[: np.searchsorted(sums, wanted, "left") + 1])
            count *= 8


def _checked(logits: np.ndarray) -> np.ndarray:
    values = np.asarray(logits)
    if values.ndim != 1 or not len(values):
        raise ArgumentError(f"logits of shape {values.shape}; they must be one row of at least one")
    greatest = values.max()
    if math.isfinite(greatest):
        return values
    if greatest == -math.inf:
        raise ArgumentError("every logit is minus infinity: there is no token to pick")
    at = int(np.flatnonzero(np.isnan(values) | (values == math.inf))[0])
    raise ArgumentError(f"the logit of token {at} is {values[at]}")


class Generation(Iterator[int]):
    """An iterator of tokens, and how it ended.

    stop_reason  None while it runs; then "stop" (an end token came, which is not yielded but is stop_token),
                 "length" (max_tokens), "context" (no room for another token), "cancelled" (progress said stop during
                 the prefill) or "closed"
    tokens       what was yielded so far
    kept         tokens of the prompt that the engine already held; None before the first step

    The engine holds the prompt and every token yielded but the last, whenever it may be left: by close(), by an
    exception or by never asking for the next token. An exception from the engine, KeyboardInterrupt too, leaves the
    generation where it was: the next step tries the same token again.
    """

    def __init__(
        self,
        engine: EngineLike,
        ids: Sequence[int],
        max_tokens: int | None,
        sampler: Sampler,
        stop: Collection[int],
        progress: Callable[[int], Any] | None,
    ) -> None:
        self.tokens: list[int] = []
        self.stop_reason: str | None = None
        self.stop_token: int | None = None
        self.kept: int | None = None
        self._engine, self._ids, self._max_tokens = engine, list(ids), max_tokens
        self._sampler, self._stop, self._progress = sampler, frozenset(stop), progress

    def __iter__(self) -> Generation:
        return self

    def __next__(self) -> int:
        if self.stop_reason is None and self._max_tokens is not None and len(self.tokens) >= self._max_tokens:
            self.stop_reason = "length"
        if self.stop_reason is None:
            self._feed()
        if self.stop_reason is not None:
            raise StopIteration
        token = self._sampler.pick(self._engine.logits)
        if token in self._stop:
            self.stop_reason, self.stop_token = "stop", token
            raise StopIteration
        self.tokens.append(token)
        return token

    def _feed(self) -> None:
        """Brings the engine behind the prompt and everything yielded, so that it has the logits of the next token."""
        engine = self._engine
        if not self.tokens:
            kept = engine.align(self._ids)
            self.kept = kept if self.kept is None else self.kept
            if engine.prefill(self._ids[kept:], self._progress) < len(self._ids) - kept:
                self.stop_reason = "cancelled"
            return
        expected = len(self._ids) + len(self.tokens) - 1
        if engine.position == expected + 1 and engine.tokens[-1] == self.tokens[-1]:
            return  # the step before was interrupted behind its eval
        if engine.position != expected:
            raise Error(f"the engine was moved to position {engine.position} while a generation stands at {expected}")
        if expected >= engine.context:
            self.stop_reason = "context"
            return
        if getattr(engine, "mtp", False):
            left = engine.context if self._max_tokens is None else self._max_tokens - len(self.tokens)
            engine.eval(self.tokens[-1], max(0, left - 1))
        else:
            engine.eval(self.tokens[-1])

    def close(self) -> None:
        """Ends the iteration; closing twice is fine."""
        self.stop_reason = self.stop_reason or "closed"

    def __enter__(self) -> Generation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def generate(
    engine: EngineLike,
    ids: Sequence[int],
    max_tokens: int | None,
    temperature: float = 1.0,
    top_p: float = 0.95,
    min_p: float = 0.0,
    seed: int | None = None,
    stop: Collection[int] | None = None,
    progress: Callable[[int], Any] | None = None,
) -> Generation:
    """Continues ids: an iterator of tokens.

    The engine keeps what it already holds of ids (engine.align) and prefills the rest at the first step, calling
    progress as Engine.prefill does. Ends before a token of stop (None: the model's three end tokens; (): none), behind
    max_tokens tokens (None: no limit) and at the end of the context. temperature, top_p, min_p and seed are Sampler's.

    Raises ArgumentError here for arguments out of range; errors of the engine come from the step that meets them."""
    if len(ids) == 0:
        raise ArgumentError("generate needs at least one token to continue")
    if max_tokens is not None and max_tokens < 0:
        raise ArgumentError(f"max_tokens {max_tokens}; it must be at least 0, or None")
    sampler = Sampler(temperature, top_p, min_p, seed)
    ends = end_token_ids(engine.model) if stop is None else stop
    return Generation(engine, ids, max_tokens, sampler, ends, progress)
