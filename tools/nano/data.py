"""Batches for training and the fixed windows of the evaluation, from the files of build_corpus.py and
chat.py."""

import bz2
import subprocess
import sys
from multiprocessing import Pool
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vocabulary import GMASK, encode_documents, without_specials

HERE = Path(__file__).parent
NO_LOSS = 0x8000
EXTRA = 2  # a window holds two tokens more than it has rows: targets of MTP


def read_ids(path: Path, device: str) -> Tensor:
    return torch.from_numpy(np.fromfile(path, dtype=np.uint16).astype(np.int32)).to(device)


def _encoded(job: tuple[str, list[str]]) -> np.ndarray:
    tokenizer_path, documents = job
    return encode_documents(tokenizer_path, [without_specials(page) for page in documents])


def encode_part(packed: Path, target: Path, tokenizer_path: Path, processes: int) -> None:
    documents = bz2.decompress(packed.read_bytes()).decode().split("\0")
    jobs = [(str(tokenizer_path), documents[at : at + 256]) for at in range(0, len(documents), 256)]
    with Pool(processes) as pool:
        ids = np.concatenate(pool.map(_encoded, jobs, chunksize=1))
    ids.tofile(target.with_suffix(".part"))
    target.with_suffix(".part").rename(target)


def prepare(carried: Path, state: Path, conversations: int, processes: int) -> None:
    """Encodes carried/corpus-*.txt.bz2 into state and generates the conversations there, both where
    missing."""
    for name in ("tokenizer.json", "tokenizer_config.json", "valid.bin", "valid.json"):
        if not (state / name).exists():
            (state / name).write_bytes((carried / name).read_bytes())
    for packed in sorted(carried.glob("corpus-*.txt.bz2")):
        target = state / packed.name.replace(".txt.bz2", ".bin")
        if not target.exists():
            encode_part(packed, target, state / "tokenizer.json", processes)
    if not (state / "chat.bin").exists():
        subprocess.run(
            [sys.executable, str(HERE / "chat.py"), str(state), str(conversations), str(processes)],
            check=True,
        )


class Corpus:
    """Windows of the corpus parts that do not overlap, in random order, with a new offset and order each
    epoch. repeats[i]: how often part i comes in an epoch (a part that joined late may be repeated)."""

    def __init__(
        self, parts: list[Tensor], repeats: list[int], time: int, epoch: int = 0, at: int = 0
    ) -> None:
        self.parts, self.repeats, self.time = parts, repeats, time
        self.ids = torch.cat(parts)
        self.epoch, self.at = epoch - 1, 0
        self.next_epoch()
        self.at = min(at, len(self.starts))

    def next_epoch(self) -> None:
        self.epoch, self.at = self.epoch + 1, 0
        generator = torch.Generator().manual_seed(1000 + self.epoch)
        starts, base = [], 0
        for part, repeat in zip(self.parts, self.repeats, strict=True):
            for _ in range(repeat):
                offset = int(torch.randint(0, self.time, (1,), generator=generator))
                count = (len(part) - self.time - EXTRA - offset) // self.time
                starts.append(torch.arange(count) * self.time + offset + base)
            base += len(part)
        joined = torch.cat(starts)
        self.starts = joined[torch.randperm(len(joined), generator=generator)].to(self.ids.device)
        self.window = torch.arange(self.time + EXTRA, device=self.ids.device)

    def take(self, count: int) -> Tensor:
        """[count, time + 2] ids."""
        if self.at + count > len(self.starts):
            self.next_epoch()
        starts = self.starts[self.at : self.at + count]
        self.at += count
        return self.ids[starts[:, None] + self.window]


class Conversations:
    """Windows that begin where a conversation begins, drawn with replacement."""

    def __init__(self, ids: Tensor, time: int) -> None:
        self.ids, self.window = ids, torch.arange(time + EXTRA, device=ids.device)
        starts = ((ids & 0x7FFF) == GMASK).nonzero().flatten()
        self.starts = starts[starts < len(ids) - time - EXTRA]

    def take(self, count: int, generator: torch.Generator) -> Tensor:
        chosen = torch.randint(0, len(self.starts), (count,), generator=generator, device=self.ids.device)
        return self.ids[self.starts[chosen][:, None] + self.window]

    def spread(self, count: int) -> Tensor:
        chosen = torch.linspace(0, len(self.starts) - 1, count).long().to(self.ids.device)
        return self.ids[self.starts[chosen][:, None] + self.window]


def spread_windows(ids: Tensor, time: int, count: int) -> Tensor:
    """Up to count windows spread evenly over ids."""
    step = max(time + EXTRA, (len(ids) - time - EXTRA) // count)
    starts = torch.arange(0, len(ids) - time - EXTRA, step, device=ids.device)[:count]
    return ids[starts[:, None] + torch.arange(time + EXTRA, device=ids.device)]
