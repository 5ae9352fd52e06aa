"""The table of a GPU backend's operations against what the card reaches.

    gpu.py GPU_OPS BACKEND [REPEATS] [-o FILE.json]

GPU_OPS is the program made of gpu_ops.c. The limits are measured in the same run, through PyTorch if it is there: a
device copy (bytes read and written) and a product of bf16 matrices of 8192. Each operation's share is of the one that
bounds it: bytes over the copy's bandwidth, or operations over the product's rate, whichever takes longer.
"""

import argparse
import json
import statistics
import subprocess
import sys


def limits() -> dict[str, float]:
    """Bytes and operations per second; empty without PyTorch or a device."""
    try:
        import torch
    except ImportError:
        return {}
    if not torch.cuda.is_available():
        return {}

    def timed(work, repeats: int = 10) -> float:
        for _ in range(3):
            work()
        times = []
        for _ in range(repeats):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            work()
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end) / 1e3)
        return statistics.median(times)

    size = 4 << 30
    source, target = (torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(2))
    copy = 2 * size / timed(lambda: target.copy_(source))
    del source, target
    a, b = (torch.randn(8192, 8192, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    return {"copy_bytes_per_s": copy, "bf16_flops_per_s": 2 * 8192**3 / timed(lambda: a @ b)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("backend")
    parser.add_argument("repeats", nargs="?", default="7")
    parser.add_argument("-o", "--output")
    args = parser.parse_args()
    reach = limits()
    if reach:
        print(f"copy {reach['copy_bytes_per_s'] / 1e12:.2f} TB/s, bf16 {reach['bf16_flops_per_s'] / 1e12:.0f} TFLOP/s")
    rows = []
    run = subprocess.Popen([args.program, args.backend, args.repeats], stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    for line in run.stdout:
        row = json.loads(line)
        rate = row["bytes"] / (row["us"] * 1e-6)
        text = f"{row['op']:12} {row['case']:42} {row['us']:9.1f} us {rate / 1e12:6.2f} TB/s"
        text += f" {row['flops'] / (row['us'] * 1e-6) / 1e12:7.1f} TFLOP/s"
        if reach:
            moving = row["bytes"] / reach["copy_bytes_per_s"]
            computing = row["flops"] / reach["bf16_flops_per_s"]
            row["share"] = max(moving, computing) / (row["us"] * 1e-6)
            text += f" {100 * row['share']:5.1f} % of {'copy' if moving >= computing else 'bf16'}"
        print(text, flush=True)
        rows.append(row)
    if args.output:
        with open(args.output, "w", encoding="utf-8") as file:
            json.dump({"limits": reach, "operations": rows}, file, indent=1)
    return run.wait()


if __name__ == "__main__":
    sys.exit(main())
