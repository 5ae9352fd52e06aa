"""glm52 doctor: what it finds in order and what it does not, and its exit code."""

import json
from pathlib import Path

from glm52_rt import cli

NANO = Path(__file__).resolve().parent.parent / "models/glm52-nano-v1-Q4_K_M.gguf"


def found(capsys, *argv: object) -> tuple[int, dict]:
    code = cli.main(["doctor", *map(str, argv), "--json"])
    document = json.loads(capsys.readouterr().out)
    return code, document | {one["name"]: one for one in document["findings"]}


def test_a_file_in_order(capsys):
    code, all_of_it = found(capsys, NANO, "--identity", "--no-disk")
    assert code == 0 and all_of_it["works"] and all_of_it["backend cpu"]["state"] == "ok"
    assert {"Q4_K", "Q6_K", "Q5_0"} <= set(all_of_it["types"]["value"]) and len(all_of_it["identity"]["value"]) == 64


def test_what_does_not_work_is_exit_code_1(capsys, tmp_path):
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(NANO.read_bytes()[:100_000])
    code, all_of_it = found(capsys, cut)
    assert code == 1 and not all_of_it["works"] and "cut.gguf" in all_of_it["file"]["text"]
    code, all_of_it = found(capsys, NANO, "--expect", "0" * 64, "--no-disk")
    assert code == 1 and all_of_it["identity"]["state"] == "bad"
