"""Judging a model by a text: windows, losses, perplexity, and how far a model's choices are from a reference's.

Everything is float64 from the logits on. Windows are cut as llama.cpp's llama-perplexity cuts them, so that figures
can be compared: each of context tokens, its second half scored; or, with a stride, its last stride tokens.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .engine import Engine
from .errors import ArgumentError, Error

CONTEXT_MIN = 4


@dataclass(frozen=True)
class Windows:
    """Cuts of a text: tokens int32 [windows, context]. In each, tokens first .. context - 1 are the targets that are
    scored; a target is predicted by the tokens before it in its window."""

    tokens: np.ndarray
    first: int

    @property
    def count(self) -> int:
        return self.tokens.shape[0]

    @property
    def context(self) -> int:
        return self.tokens.shape[1]

    @property
    def scored(self) -> int:
        """Targets of each window."""
        return self.context - self.first


def cut(ids: Sequence[int], context: int, stride: int = 0, windows_max: int = 0, begin: int | None = None) -> Windows:
    """Windows of a text.

    stride 0     windows side by side; of each the second half is scored: targets context // 2 + 1 .. context - 1, as
                 llama-perplexity
    stride s     windows that begin s tokens apart, of each the last s tokens: every token behind the first window is
                 scored once, each behind at least context - s others
    windows_max  at most so many; 0: all
    begin        token that stands in place of each window's first, where the model wants one

    A rest of the text that fills no window is left out. Raises ArgumentError if there is not one window."""
    if context < CONTEXT_MIN:
        raise ArgumentError(f"a context of {context} tokens: at least {CONTEXT_MIN}")
    if not 0 <= stride < context:
        raise ArgumentError(f"a stride of {stride} tokens must be below the context of {context}")
    if len(ids) < context:
        raise ArgumentError(f"the text has {len(ids)} tokens: not one window of {context}")
    starts = range(0, len(ids) - context + 1, stride or context)
    if windows_max:
        starts = starts[:windows_max]
    tokens = np.array([ids[start : start + context] for start in starts], np.int32)
    if begin is not None:
        tokens[:, 0] = begin
    return Windows(tokens, context - stride if stride else context // 2 + 1)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """float64 natural logarithms of the probabilities, over the last axis."""
    values = logits.astype(np.float64)
    values -= values.max(axis=-1, keepdims=True)
    return values - np.log(np.exp(values).sum(axis=-1, keepdims=True))


def rows(
    engine: Engine, windows: Windows, progress: Callable[[int], Any] | None = None
) -> Iterator[list[tuple[int, np.ndarray]]]:
    """Runs each window from an empty engine and yields its (target, float32 logits before it), target after target.
    progress(windows done) is called behind each. The engine is left empty."""
    if engine.context < windows.context - 1:
        raise ArgumentError(f"windows of {windows.context} tokens do not fit the engine's context of {engine.context}")
    for number, tokens in enumerate(windows.tokens.tolist()):
        found: list[tuple[int, np.ndarray]] = []

        def keep(position: int, logits: np.ndarray, tokens: list[int] = tokens, found: list = found) -> None:
            if not np.isfinite(logits).all():
                raise Error(f"the logits at position {position} of a window are not all finite numbers")
            found.append((tokens[position + 1], logits))

        engine.reset()
        engine.observe_logits(keep, windows.first - 1)
        try:
            engine.prefill(tokens[:-1])  # the last token predicts nothing that is known
        finally:
            engine.observe_logits(None)
        yield found
        if progress is not None:
            progress(number + 1)
    engine.reset()


@dataclass(frozen=True)
class Perplexity:
    """Of a model on a text. Errors are standard errors of the mean, as if tokens were independent; perplexity_error is
    the loss's, times the perplexity, as llama-perplexity prints it."""

    windows: int
    context: int
    scored: int  # tokens
    loss: float  # mean negative log-likelihood of a token, natural logarithm
    loss_error: float
    perplexity: float
    perplexity_error: float
    bits_per_byte: float | None  # of the scored tokens' text; None if it is not known


def _mean(values: np.ndarray) -> tuple[float, float]:
    """Mean and its standard error."""
    count = len(values)
    error = float(np.sqrt(max(0.0, np.mean(values**2) - np.mean(values) ** 2) / (count - 1))) if count > 1 else 0.0
    return float(np.mean(values)), error


def perplexity_of(losses: np.ndarray, windows: Windows, text_bytes: int | None = None) -> Perplexity:
    """From the losses of all targets; text_bytes: of the targets together."""
    loss, error = _mean(losses)
    perplexity = float(np.exp(loss))
    bits = float(losses.sum() / np.log(2) / text_bytes) if text_bytes else None
    return Perplexity(
        windows.count, windows.context, len(losses), loss, error, perplexity, perplexity * error, bits
    )  # fmt: skip


def perplexity(
    engine: Engine,
    windows: Windows,
    token_bytes: Callable[[int], int] | None = None,
    progress: Callable[[int, float], Any] | None = None,
) -> Perplexity:
    """Runs the windows. token_bytes(id): bytes of a token's text. progress(windows done, perplexity so far)."""
    losses: list[float] = []
    text_bytes = 0
    for number, found in enumerate(rows(engine, windows)):
        losses += [float(-log_softmax(logits)[target]) for target, logits in found]
        if token_bytes is not None:
            text_bytes += sum(token_bytes(target) for target, _ in found)
        if progress is not None:
            progress(number + 1, float(np.exp(np.mean(losses))))
    return perplexity_of(np.array(losses), windows, text_bytes or None)


# ---- beside a reference ----


@dataclass(frozen=True)
class Divergence:
    """A model beside a reference on the same windows. KL is that of the model from the reference, sum of
    p_ref (log p_ref - log p), in nats per token."""

    model: Perplexity
    reference: Perplexity
    ratio: float  # of the perplexities, model / reference
    ratio_error: float  # from the differences of the losses, which are paired
    top1: float  # share of tokens for which both have the same likeliest next token; ties: the lower id
    top1_error: float
    kl_mean: float
    kl_error: float
    kl_median: float
    kl_99: float
    kl_999: float
    kl_max: float
    change_rms: float  # of the true token's probability, root mean square


class Comparison:
    """Collects a model's rows beside a reference's."""

    def __init__(self, windows: Windows, cut: float = -np.inf) -> None:
        """cut: log-probabilities of the reference up to this count for nothing in the divergence."""
        self._windows, self._cut = windows, cut
        self._kl: list[float] = []
        self._same: list[bool] = []
        self._losses: list[tuple[float, float]] = []  # model, reference

    def add(self, target: int, reference: np.ndarray, logits: np.ndarray) -> None:
        """One token: the reference's log-probabilities [vocab], float64, and the model's logits."""
        own = log_softmax(logits)
        seen = reference > self._cut
        weights = np.exp(reference[seen])
        self._kl.append(float(weights @ (reference[seen] - own[seen])))
        self._same.append(int(np.argmax(own)) == int(np.argmax(reference)))
        self._losses.append((float(-own[target]), float(-reference[target])))

    @property
    def so_far(self) -> tuple[float, float]:
        """Mean KL and top-1 agreement."""
        return float(np.mean(self._kl)), float(np.mean(self._same))

    def result(self) -> Divergence:
        kl = np.array(self._kl)
        model, reference = np.array(self._losses).T
        top1 = float(np.mean(self._same))
        log_ratio, error = _mean(model - reference)
        mean, kl_error = _mean(kl)
        change = np.exp(-model) - np.exp(-reference)
        median, high, higher = np.percentile(kl, [50, 99, 99.9])
        return Divergence(
            perplexity_of(model, self._windows), perplexity_of(reference, self._windows),
            float(np.exp(log_ratio)), float(np.exp(log_ratio) * error), top1,
            float(np.sqrt(top1 * (1 - top1) / max(1, len(kl) - 1))), mean, kl_error, float(median), float(high),
            float(higher), float(kl.max()), float(np.sqrt(np.mean(change**2))),
        )  # fmt: skip
