"""What check_msl.py must reject, and what it must let pass: a kernel that keeps to the subset, broken in one place.

    msl_rejects.py FOLDER        the folder of generated headers
"""

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools/gpu"))
from check_msl import check  # noqa: E402

KERNEL = """\
#include "common.h"

struct probe_args {
    uint count;
    float factor;
};

static float largest(threadgroup const float *values, uint count) {
    float found = values[0];
    for (uint i = 1; i < count; i++) found = max(found, values[i]);
    return found;
}

kernel void probe(constant probe_args &args [[buffer(0)]], device const half *x [[buffer(1)]],
                  device float *out [[buffer(2)]], threadgroup float *space [[threadgroup(0)]],
                  uint i [[thread_position_in_grid]], uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float partial[SIMD_WIDTH];
    device const half4 *wide = (device const half4 *)x;
    float sum = dot(float4(wide[i]), float4(args.factor));
    sum = simd_sum(sum);
    partial[lane] = space[lane];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (i < args.count) {
        out[i] = sum + largest(partial, SIMD_WIDTH);
    }
}
"""
HELPER = "static float largest"
SUM = "    sum = simd_sum(sum);\n"
# What is broken, what is replaced, by what; whether it must be rejected.
CASES = (
    ("as it is", "", "", False),
    ("swizzles, subscripts", SUM, SUM + "    float4 v = float4(sum); v.xy = v.zw; v[1] = v[2]; sum += v.x;\n", False),
    ("a local pointer without a space", "device const half4 *wide = (device", "const half4 *wide = (device", True),
    ("a cast to another space", "= (device const half4 *)x", "= (device const half4 *)space", True),
    ("a pointer into a local array", SUM, SUM + "    float a[2]; a[0] = sum; float *p = a; sum = p[0];\n", True),
    ("device memory as threadgroup memory", "largest(partial,", "largest(out,", True),
    ("a reference without a space", HELPER, "static float f(float &p) { return p; }\n" + HELPER, True),
    ("a pointer parameter without a space", HELPER, "static float f(float *p) { return p[0]; }\n" + HELPER, True),
    ("a double literal", SUM, SUM + "    sum += 1.5 * sum;\n", True),
    ("a double", SUM, SUM + "    double d = sum; sum = d;\n", True),
    ("a lambda", SUM, SUM + "    auto f = [](float a) { return a; }; sum = f(sum);\n", True),
    ("a function pointer", SUM, SUM + "    float (*f)(float) = 0; if (f) sum = 1.0f;\n", True),
    ("new", SUM, SUM + "    sum += *(new float(1.0f));\n", True),
    ("goto", SUM, SUM + "    goto end;\nend:\n", True),
    ("a virtual function", "struct probe_args {", "struct other { virtual int f(); };\nstruct probe_args {", True),
    ("a static local", SUM, SUM + "    static int calls; sum += calls;\n", True),
    ("a write to constant memory", SUM, SUM + "    args.count = 3;\n", True),
    ("a write to const device memory", SUM, SUM + "    x[0] = half(0.0f);\n", True),
    ("half to float without a word", "dot(float4(wide[i]),", "dot(wide[i],", True),
    ("threadgroup memory with a value", "partial[SIMD_WIDTH];", "partial[SIMD_WIDTH] = {0.0f};", True),
    ("an unknown attribute", "[[thread_index_in_simdgroup]]", "[[thread_idx_in_simdgroup]]", True),
    ("two attributes", "[[buffer(1)]]", "[[buffer(1)]] [[function_constant(1)]]", True),
    ("erf", SUM, "    sum = erf(sum);\n", True),
    ("a helper that is not static", HELPER, "float largest", True),
)


def main(folder: str) -> int:
    wrong = 0
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "probe.metal"
        for name, old, new, is_rejected in CASES:
            assert old in KERNEL, name
            path.write_text(KERNEL.replace(old, new, 1) if old else KERNEL, encoding="utf-8")
            said = check("clang-22", path, [Path(folder), ROOT / "native/gpu/kernels"])
            if bool(said) != is_rejected:
                wrong += 1
                print(f"{name}: {'not rejected' if is_rejected else said}")
    print(f"address spaces and subset: {sum(c[3] for c in CASES)} ways to break a kernel, {wrong} not told right")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
