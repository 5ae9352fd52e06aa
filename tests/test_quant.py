"""Block formats: every type decodes to what the gguf package makes of the same bytes, bit for bit."""

import gguf
import numpy as np
import pytest
import quant_tables
from gguf import quants
from hypothesis import given, settings
from hypothesis import strategies as st

from glm52_rt._native import ffi, lib

TYPES = (
    "F32 F16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ2_XXS IQ2_XS IQ3_XXS IQ1_S IQ4_NL IQ3_S IQ2_S "
    "IQ4_XS IQ1_M BF16 MXFP4"
).split()

# Float16 scales at the ends: zeros, smallest and largest subnormals and normals, one, infinities, NaNs.
HALVES = (0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x0400, 0x3C00, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7C01, 0x7E00)

every_type = pytest.mark.parametrize("name", TYPES)


def kind(name: str) -> gguf.GGMLQuantizationType:
    return gguf.GGMLQuantizationType[name]


def sizes(name: str) -> tuple[int, int]:
    """Values and bytes of a block."""
    return gguf.GGML_QUANT_SIZES[kind(name)]


def decode(name: str, blocks: np.ndarray) -> np.ndarray:
    """uint8 [blocks, block bytes] to float32 [blocks * block values], by the library."""
    blocks = np.ascontiguousarray(blocks)
    out = np.empty(len(blocks) * sizes(name)[0], np.float32)
    status = lib.glm52_quant_decode(
        kind(name).value, ffi.from_buffer(blocks), ffi.from_buffer("float[]", out, require_writable=True), out.size
    )
    assert status == lib.GLM52_OK, ffi.string(lib.glm52_error_message()).decode()
    return out


def assert_equal(name: str, blocks: np.ndarray) -> None:
    """Same bits, except that a NaN may be any NaN."""
    with np.errstate(all="ignore"):
        wanted = quants.dequantize(blocks, kind(name)).ravel()
    found = decode(name, blocks)
    different = (found.view(np.uint32) != wanted.view(np.uint32)) & ~(np.isnan(found) & np.isnan(wanted))
    if different.any():
        at = int(different.argmax())
        block = at // sizes(name)[0]
        pytest.fail(
            f"{name}: {different.sum()} of {different.size} values differ, the first is value {at % sizes(name)[0]} of "
            f"its block: {found[at]!r}, not {wanted[at]!r}; block {blocks[block].tobytes().hex()}"
        )


def random_blocks(name: str, count: int, seed: int) -> np.ndarray:
    return np.random.Generator(np.random.PCG64(seed)).integers(0, 256, (count, sizes(name)[1]), dtype=np.uint8)


def test_types_and_their_sizes_are_ggufs() -> None:
    found = {}
    for index in range(lib.glm52_quant_count()):
        info = ffi.new("glm52_quant_info *")
        assert lib.glm52_quant_describe(index, info) == lib.GLM52_OK
        found[ffi.string(info.name).decode()] = (info.type, info.block_size, info.block_bytes)
    assert found == {name: (kind(name).value, *sizes(name)) for name in TYPES}


@every_type
def test_random_blocks_decode_as_in_gguf(name: str) -> None:
    assert_equal(name, random_blocks(name, 200_000 // sizes(name)[0] + 1000, seed=11))


@every_type
@settings(deadline=None, max_examples=60, print_blob=True)
@given(data=st.data())
def test_any_bytes_decode_as_in_gguf(name: str, data: st.DataObject) -> None:
    block_bytes = sizes(name)[1]
    raw = data.draw(st.integers(1, 3).flatmap(lambda n: st.binary(min_size=n * block_bytes, max_size=n * block_bytes)))
    assert_equal(name, np.frombuffer(raw, np.uint8).reshape(-1, block_bytes))


@every_type
def test_uniform_blocks_decode_as_in_gguf(name: str) -> None:
    """All of one byte: zeros, ones, alternating bits, and everything between."""
    assert_equal(name, np.repeat(np.arange(256, dtype=np.uint8)[:, None], sizes(name)[1], axis=1))


@every_type
def test_extreme_scales_decode_as_in_gguf(name: str) -> None:
    """A half of the list at every even place of random blocks, so at the places of the scales too."""
    places = sizes(name)[1] // 2
    blocks = random_blocks(name, places * len(HALVES), seed=12)
    for place in range(places):
        for index, half in enumerate(HALVES):
            blocks[place * len(HALVES) + index, 2 * place : 2 * place + 2] = (half & 255, half >> 8)
    assert_equal(name, blocks)
    if name == "IQ1_M":  # the only one whose scale is not in one place: a nibble each, in bytes 49, 51, 53 and 55
        for index, half in enumerate(HALVES):
            for part in range(4):
                byte = blocks[index, 49 + 2 * part]
                blocks[index, 49 + 2 * part] = byte & 15 | (half >> 4 * part & 15) << 4
        assert_equal(name, blocks[: len(HALVES)])


@pytest.mark.parametrize("name", ["F16", "BF16"])
def test_every_16_bit_float_decodes_as_in_gguf(name: str) -> None:
    assert_equal(name, np.arange(65536, dtype="<u2").view(np.uint8).reshape(-1, 2))


def test_every_mxfp4_power_with_every_code_decodes_as_in_gguf() -> None:
    powers, codes = np.meshgrid(np.arange(256), np.arange(256), indexing="ij")
    blocks = np.repeat(codes.reshape(-1, 1), sizes("MXFP4")[1], axis=1).astype(np.uint8)
    blocks[:, 0] = powers.ravel()
    assert_equal("MXFP4", blocks)


def test_unaligned_blocks_decode_alike() -> None:
    """Blocks in a file start at any byte of a page."""
    for name in TYPES:
        blocks = random_blocks(name, 5, seed=13)
        moved = np.zeros(blocks.size + 1, np.uint8)
        moved[1:] = blocks.ravel()
        shifted = moved[1:].reshape(blocks.shape)
        assert np.array_equal(decode(name, shifted).view(np.uint32), decode(name, blocks).view(np.uint32))


def test_tables_are_the_same_whenever_they_are_written() -> None:
    assert quant_tables.render() == quant_tables.render()
    names = [name for name, _, _ in quant_tables.tables()]
    assert len(set(names)) == len(names) == 12


def test_ranks_by_three_are_the_code_book() -> None:
    tables = {name: values for name, _, values in quant_tables.tables()}
    parts = tables["glm52_ranks_by_three_iq2_xxs"].reshape(3, 256)
    books = tables["glm52_magnitudes_by_three_iq2"].reshape(3, 64)
    for value in range(8):
        found = books[value % 3][parts[value // 3]]
        assert np.array_equal(found, tables["glm52_grid_iq2_xxs"][:, value])
