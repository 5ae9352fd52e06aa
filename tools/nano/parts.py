"""Moves a checkpoint between machines in files of limited size.

    python tools/nano/parts.py split MODEL_FOLDER OUT GROUP [PIECES]    writes group GROUP (0, 1, ...) of
    pieces python tools/nano/parts.py join FOLDER... MODEL_FOLDER              puts model.safetensors together
    again

The high bytes of BF16 numbers hold little information: they are compressed, the low bytes travel as they are.
"""

import hashlib
import lzma
import sys
from multiprocessing import Pool
from pathlib import Path

PIECE = 15_900_000
STREAM = 4_000_000
MAGIC = b"nano"


def _compressed(data: bytes) -> bytes:
    return lzma.compress(data, preset=2)


def packed(data: bytes) -> bytes:
    """magic, size, size of the compressed high bytes, low bytes, high bytes as xz streams."""
    high, low = data[1::2], data[0::2]
    with Pool() as pool:
        streams = b"".join(
            pool.map(_compressed, [high[at : at + STREAM] for at in range(0, len(high), STREAM)])
        )
    return b"".join((MAGIC, len(data).to_bytes(8, "little"), len(low).to_bytes(8, "little"), low, streams))


def unpacked(data: bytes) -> bytes:
    if data[:4] != MAGIC:
        raise ValueError("not a packed checkpoint")
    size, low_size = int.from_bytes(data[4:12], "little"), int.from_bytes(data[12:20], "little")
    result = bytearray(size)
    result[0::2] = data[20 : 20 + low_size]
    result[1::2] = lzma.decompress(data[20 + low_size :])
    return bytes(result)


def split(folder: Path, out: Path, group: int, pieces: int) -> None:
    content = (folder / "model.safetensors").read_bytes()
    data = packed(content)
    count = -(-len(data) // PIECE)
    out.mkdir(parents=True, exist_ok=True)
    for number in range(group * pieces, min(count, (group + 1) * pieces)):
        (out / f"model.part{number:02d}").write_bytes(data[number * PIECE : (number + 1) * PIECE])
    digest = hashlib.sha256(content).hexdigest()
    print(f"{len(content)} bytes packed to {len(data)}, {count} pieces, sha256 {digest}")


def join(folders: list[Path], target: Path) -> None:
    pieces = sorted(
        (piece for folder in folders for piece in folder.glob("model.part*")), key=lambda p: p.name
    )
    content = unpacked(b"".join(piece.read_bytes() for piece in pieces))
    target.mkdir(parents=True, exist_ok=True)
    (target / "model.safetensors").write_bytes(content)
    print(f"{len(pieces)} pieces, {len(content)} bytes, sha256 {hashlib.sha256(content).hexdigest()}")


if __name__ == "__main__":
    if sys.argv[1] == "split":
        split(Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]), int((sys.argv + ["4"])[5]))
    else:
        join([Path(p) for p in sys.argv[2:-1]], Path(sys.argv[-1]))
