"""Several requests over one engine: whose turn it is, prompts in pieces, rules of stopping, cancellation.

Pure: no thread, no clock, no randomness of its own. Whoever owns the loop calls step() until it returns nothing; each
call is one turn of one request, a piece of its prompt or a few of its tokens. Turns go round in the order in which
requests were admitted, so with n requests admitted each has every n-th turn, however long the prompts of the others
are. What a request produces does not depend on the others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from .errors import ArgumentError, Error, MemoryBudgetError
from .sampling import Sampler

PIECE_TOKENS = 256  # of a prompt in one turn
TURN_TOKENS = 8  # decoded in one turn
ADMITTED = 4  # conversations in memory


class EngineLike(Protocol):
    """What the scheduler needs of an Engine."""

    logits: np.ndarray
    position: int
    context: int

    def align(self, ids: Sequence[int]) -> int: ...
    def prefill(self, ids: Sequence[int], progress: Any = None) -> int: ...
    def eval(self, token: int, ahead: int = 0) -> None: ...
    def park(self) -> Any: ...
    def swap(self, state: Any) -> None: ...


@dataclass(eq=False)
class Request:
    """A prompt to be continued, and how far that has come. Scheduler.submit makes one.

    stop_reason  None while it runs; "stop" (an end token came, which is stop_token and not among tokens), "length",
                 "context", "cancelled" or "error" (then error is what the engine raised)
    """

    ids: list[int]
    max_tokens: int | None
    sampler: Sampler
    stop: frozenset[int]
    tokens: list[int] = field(default_factory=list)
    stop_reason: str | None = None
    stop_token: int | None = None
    error: Error | None = None
    cancelled: bool = False
    fed: int = 0  # of ids, then of tokens
    turns: int = 0
    state: Any = None  # its conversation, while the engine holds another

    @property
    def done(self) -> bool:
        return self.stop_reason is not None

    def cancel(self) -> None:
        """Ends the request at the next moment that the engine can stop. Fine from another thread and from progress."""
        self.cancelled = True


@dataclass(frozen=True)
class Turn:
    """What one call of Scheduler.step did."""

    request: Request
    tokens: list[int]  # decoded in this turn
    prefilled: int  # tokens of the prompt fed in it


class Scheduler:
    """Interleaves requests on engine.

    admitted      conversations in memory at once; the engine's own counts. Fewer if the engine has no room for more
    piece_tokens  of a prompt in one turn
    turn_tokens   decoded in one turn

    The engine belongs to the scheduler: what it holds may be given up, or kept as the beginning of a prompt."""

    def __init__(
        self,
        engine: EngineLike,
        admitted: int = ADMITTED,
        piece_tokens: int = PIECE_TOKENS,
        turn_tokens: int = TURN_TOKENS,
    ) -> None:
        for name, number in (("admitted", admitted), ("piece_tokens", piece_tokens), ("turn_tokens", turn_tokens)):
            if number < 1:
                raise ArgumentError(f"{name} {number}; it must be at least 1")
        self._engine = engine
        self.admitted, self._piece_tokens, self._turn_tokens = admitted, piece_tokens, turn_tokens
        self._waiting: deque[Request] = deque()
        self._round: deque[Request] = deque()  # admitted, the next turn's first
        self._holder: Request | None = None  # whose conversation the engine holds

    def submit(
        self,
        ids: Sequence[int],
        max_tokens: int | None = None,
        sampler: Sampler | None = None,
        stop: Collection[int] = (),
    ) -> Request:
        """Queues a prompt. Admission is in the order of submission. sampler: None is the default one, seed 0.

        Raises ArgumentError for an empty prompt or a negative max_tokens."""
        if not ids:
            raise ArgumentError("a request needs at least one token to continue")
        if max_tokens is not None and max_tokens < 0:
            raise ArgumentError(f"max_tokens {max_tokens}; it must be at least 0, or None")
        request = Request(list(ids), max_tokens, sampler or Sampler(), frozenset(stop))
        self._waiting.append(request)
        return request

    @property
    def requests(self) -> list[Request]:
        """Those that are not done: admitted ones in the order of their turns, then those that wait."""
        return [*self._round, *self._waiting]

    def step(self) -> Turn | None:
        """One turn of the request whose turn it is; None if there is nothing to do.

        An error of the engine ends the request that met it and no other; anything else that is raised, such as
        KeyboardInterrupt, leaves all of them where they were."""
        self._admit()
        if not self._round:
            return None
        request = self._round[0]
        try:
            if not request.cancelled and not self._hold(request):
                self._put_back()
                request = self._round[0]
                self._hold(request)
            return self._turn(request)
        except Error as error:
            request.stop_reason, request.error = "error", error
            return self._end_turn(request, 0, 0)

    def _turn(self, request: Request) -> Turn:
        fed, count = request.fed, len(request.tokens)
        try:
            if not request.cancelled:
                self._advance(request)
        except Error as error:
            request.stop_reason, request.error = "error", error
        if request.cancelled and not request.done:
            request.stop_reason = "cancelled"
        return self._end_turn(request, fed, count)

    def _end_turn(self, request: Request, fed: int, count: int) -> Turn:
        request.turns += 1
        self._round.popleft()
        if not request.done:
            self._round.append(request)
        elif request.state is not None:
            request.state.close()
            request.state = None
        prompt = len(request.ids)
        return Turn(request, request.tokens[count:], min(request.fed, prompt) - min(fed, prompt))

    def run(self) -> None:
        """Steps until nothing is left."""
        while self.step() is not None:
            pass

    def _admit(self) -> None:
        while self._waiting and len(self._round) < self.admitted:
            self._round.append(self._waiting.popleft())

    def _hold(self, request: Request) -> bool:
        """Has the engine hold request's conversation and puts aside the one that it held. False if there is no memory
        for another conversation."""
        holder = self._holder
        if holder is request:
            return True
        if request.state is not None:
            state, request.state = request.state, None
            self._engine.swap(state)
            if holder is None or holder.done:
                state.close()
            else:
                holder.state = state
        else:
            if holder is not None and not holder.done:
                try:
                    holder.state = self._engine.park()
                except MemoryBudgetError:
                    return False
                self._holder = None
            request.fed = self._engine.align(request.ids)
        self._holder = request
        return True

    def _put_back(self) -> None:
        """Requests that have no conversation yet wait again, in their order; no more are admitted than have one."""
        begun = [request for request in self._round if request is self._holder or request.state is not None]
        self._waiting.extendleft(request for request in reversed(self._round) if request not in begun)
        self._round = deque(begun)
        self.admitted = len(begun)

    def _advance(self, request: Request) -> None:
        engine = self._engine
        request.fed = engine.position  # a turn that was interrupted may have fed more than it could note
        if request.fed < len(request.ids):
            piece = request.ids[request.fed : request.fed + self._piece_tokens]
            request.fed += engine.prefill(piece, lambda position: not request.cancelled)
            if request.fed < len(request.ids):
                return
        self._decode(request)

    def _decode(self, request: Request) -> None:
        """Up to turn_tokens tokens; the first turn's begin right behind the prompt's last piece."""
        engine = self._engine
        for _ in range(self._turn_tokens):
            if request.max_tokens is not None and len(request.tokens) >= request.max_tokens:
                request.stop_reason = "length"
                return
            behind = request.fed - len(request.ids)
            if behind < len(request.tokens):
                if engine.position >= engine.context:
                    request.stop_reason = "context"
                    return
                left = engine.context if request.max_tokens is None else request.max_tokens - len(request.tokens)
                engine.eval(request.tokens[behind], max(0, left - 1))
                request.fed += 1
            token = request.sampler.pick(engine.logits)
            if token in request.stop:
                request.stop_reason, request.stop_token = "stop", token
                return
            request.tokens.append(token)
            if request.cancelled:
                return
