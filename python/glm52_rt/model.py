"""A GLM-5.2 file: its hyperparameters, its tensors, its metadata."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from .native import NativeModel, Tensor


@dataclass(frozen=True)
class Shape:
    """Hyperparameters of a model, as checked when it was opened. Real GLM-5.2 values in brackets."""

    context_max: int  # positions the model was made for [1048576]
    layers: int  # trunk layers [78]
    nextn_layers: int  # MTP blocks behind the trunk [1]
    hidden: int  # [6144]
    vocab: int  # [154880]
    heads: int  # [64]
    q_lora: int  # [2048]
    kv_lora: int  # latent values per cache row [512]
    rope: int  # rotated values per head [64]
    key_mla: int  # values of a query head, rotated ones included [256]
    value_mla: int  # values of a value head [256]
    dense_layers: int  # leading layers with a dense feed-forward network [3]
    dense_ff: int  # [12288]
    experts: int  # routed experts per sparse layer [256]
    experts_used: int  # of them per token [8]
    expert_ff: int  # [2048]
    shared_ff: int  # [2048]
    index_heads: int  # [32]
    index_key: int  # [128]
    index_top_k: int  # positions a query may attend to [2048]
    rms_epsilon: float  # [1e-5]
    rope_base: float  # [8e6]
    expert_scale: float  # [2.5]
    expert_norm: int  # [1]
    index_full: tuple[bool, ...]  # per trunk layer: runs its own indexer

    def kv_bytes_per_token(self, kv_type: str = "f16") -> int:
        """Bytes that one position takes in the caches of all layers."""
        element = {"f16": 2, "f32": 4}[kv_type]
        return element * (self.layers * (self.kv_lora + self.rope) + sum(self.index_full) * self.index_key)


class Metadata(Mapping[str, Any]):
    """The file's key-value pairs, decoded when asked for: int, float, bool, str or a list of one of them. Bytes
    that are no UTF-8 are kept as lone surrogates (surrogateescape)."""

    def __init__(self, native: NativeModel) -> None:
        self._native = native

    def __getitem__(self, key: str) -> Any:
        return self._native.value(key)

    def __iter__(self) -> Iterator[str]:
        return iter(self._native.keys())

    def __len__(self) -> int:
        return len(self._native.keys())


class Model:
    """An open model file. Close it, or use it in a with statement; engines opened on it stay valid."""

    def __init__(self, native: NativeModel) -> None:
        self._native = native
        self._identity: str | None = None
        self._tensors: list[Tensor] | None = None
        self.shape = Shape(**native.shape())
        self.paths = native.paths()
        self.metadata = Metadata(native)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> "Model":
        """Opens a GGUF: a file, any shard of a split one, or a folder that holds one model. Raises ModelError,
        ShapeError, UnsupportedError or IoError with what is wrong and where."""
        return cls(NativeModel(path))

    @property
    def native(self) -> NativeModel:
        return self._native

    @property
    def path(self) -> str:
        """The first of the model's files."""
        return self.paths[0]

    @property
    def full_indexer_layers(self) -> tuple[int, ...]:
        """Numbers of the layers that run their own indexer; the others reuse the selection before them."""
        return tuple(i for i, full in enumerate(self.shape.index_full) if full)

    @property
    def identity(self) -> str:
        """64 hexadecimal digits that depend on the content alone (docs/FORMAT.md). Reads some megabytes, once."""
        if self._identity is None:
            self._identity = self._native.identity()
        return self._identity

    @property
    def tensors(self) -> list[Tensor]:
        """(name, type name, shape with the contiguous dimension first, bytes, ...) in the order of the file."""
        if self._tensors is None:
            self._tensors = self._native.tensors()
        return self._tensors

    @property
    def file_bytes(self) -> int:
        """Bytes of all the model's files."""
        return self._native.file_bytes()

    def close(self) -> None:
        """Gives the file up; closing twice is fine."""
        self._native.close()

    def __reduce__(self) -> Any:
        raise TypeError("a model can't be copied or pickled: open another one")

    def __enter__(self) -> "Model":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
