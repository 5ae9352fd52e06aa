#!/usr/bin/env python3
"""Runs llama.cpp's converter on the checkpoints of make_checkpoint.py and writes down digests of what it makes, for
tests/test_convert.py.

    record_convert.py CONVERT_HF_TO_GGUF.py VERSION OUT.json

Needs what that script and this package need (torch, transformers, cffi). Its check of the tokenizer compares a digest
of some tokens with a list of published models; a small vocabulary is in no such list, so the check is answered here.
"""

import hashlib
import json
import runpy
import sys
import tempfile
from pathlib import Path
from typing import Any

SEED = 1
TYPES = ("bf16", "f16", "f32", "q8_0")
FORMS = ("bf16", "fp8", "mixed")


def describe(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Keys with type and value (long lists as digests), and a digest of type, shape and bytes of each tensor."""
    import gguf

    reader = gguf.GGUFReader(path)
    keys = {}
    for key, field in reader.fields.items():
        if key.startswith("GGUF."):
            continue
        value = field.contents()
        if isinstance(value, list) and len(value) > 16:
            value = hashlib.sha256(json.dumps(value).encode()).hexdigest()
        keys[key] = [*(kind.name for kind in field.types), value]
    tensors = {}
    for tensor in reader.tensors:
        digest = hashlib.sha256(f"{tensor.tensor_type.name} {tensor.shape.tolist()} ".encode())
        digest.update(tensor.data.tobytes())
        tensors[tensor.name] = digest.hexdigest()[:16]
    return keys, tensors


def e4m3() -> list[str]:
    """What torch makes of every code of F8_E4M3, as float.hex."""
    import torch

    return [value.hex() for value in torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().tolist()]


def run(script: Path, arguments: list[str]) -> None:
    sys.path[:0] = [str(script.parent), str(script.parent / "gguf-py")]
    from conversion import base

    base.TextModel.get_vocab_base_pre = lambda self, tokenizer: "glm4"
    sys.argv = [str(script), *arguments]
    runpy.run_path(str(script), run_name="__main__")


def main() -> int:
    if len(sys.argv) != 4:
        print(__doc__, file=sys.stderr)
        return 2
    script, version, out = Path(sys.argv[1]).resolve(), sys.argv[2], Path(sys.argv[3])
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    from make_checkpoint import make_checkpoint

    found: dict[str, Any] = {"made_by": f"tools/record_convert.py with llama.cpp {version}", "seed": SEED,
                             "e4m3": e4m3(), "keys": {}, "names": [], "files": {}}  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        for form in FORMS:
            checkpoint = make_checkpoint(Path(folder) / f"checkpoint-{form}", form, shards=2, seed=SEED)
            for kind in TYPES if form != "mixed" else ("bf16", "f16"):
                path = Path(folder) / f"{form}-{kind}.gguf"
                run(script, [str(checkpoint), "--outtype", kind, "--outfile", str(path)])
                keys, tensors = describe(path)
                found["keys"][f"{form}-{kind}"] = keys
                found["names"] = sorted(tensors)
                found["files"][f"{form}-{kind}"] = " ".join(tensors[name] for name in sorted(tensors))
    # Keys differ between the files of a form in their file type alone.
    first = {form: found["keys"].pop(f"{form}-bf16") for form in FORMS}
    for name, keys in found["keys"].items():
        assert {**first[name.split("-")[0]], "general.file_type": keys["general.file_type"]} == keys
    found["file_types"] = {name: keys["general.file_type"] for name, keys in found["keys"].items()}
    found["keys"] = first
    out.write_text(json.dumps(found, indent=0) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
