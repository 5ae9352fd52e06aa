#!/usr/bin/env bash
# mac_check.sh [MODEL.gguf] - settles on a Mac what could not be tried without one (docs/METAL.md). Writes
# build/mac_check.txt, which is the report to send. Takes about ten minutes; MODEL, if given, is run as well.
#
# BACKEND=sim tools/mac_check.sh is a rehearsal where there is no Mac: the same steps on the simulator.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

backend=${BACKEND:-metal}
model=${1:-}
build=${BUILD:-build}
venv=build/venv
python=${PYTHON:-$venv/bin/python}
nano=$(echo models/glm52-nano-*.gguf)
report=$build/mac_check.txt
passed=0
failed=0

# step NAME COMMAND... : a heading, the command's output, ok or FAIL.
step() {
    local name=$1 begun=$SECONDS
    shift
    printf '\n== %s\n' "$name"
    if "$@" 2>&1; then
        passed=$((passed + 1))
        printf -- '-- ok, %d s\n' $((SECONDS - begun))
    else
        failed=$((failed + 1))
        printf -- '-- FAIL, %d s: %s\n' $((SECONDS - begun)) "$*"
    fi
}

system() {
    git rev-parse HEAD
    if [ "$(uname -s)" != Darwin ]; then
        uname -a
        return
    fi
    sw_vers
    sysctl -n machdep.cpu.brand_string hw.memsize hw.pagesize
    sysctl iogpu.wired_limit_mb || true
    xcode-select -p
    clang --version | head -1
}

build_all() {
    local parts=(ext "$build/gpu-probe" "$build/models/micro.gguf" "$build/models/tiny.gguf")
    if [ "$backend" = sim ]; then parts+=(sim); fi
    if [ "$python" = "$venv/bin/python" ]; then make "$venv/ready-for-tests" || return 1; fi
    make "BUILD=$build" "PYTHON=$python" "${parts[@]}" > "$build/mac_check_build.txt" 2>&1 ||
        { cat "$build/mac_check_build.txt"; return 1; }
}

# Metal's own compiler on the kernels' text, if Xcode is there: every warning of it.
compile_kernels() {
    if ! xcrun -f metal > /dev/null 2>&1; then
        echo "no offline Metal compiler (it comes with Xcode): the driver's own compilation is the test"
        return
    fi
    "$python" tools/gpu/metal_text.py "$build/generated" > "$build/kernels.metal" &&
        xcrun metal -std=metal3.0 -Wall -Wextra -Wno-unused-function -Wno-unused-parameter -fsyntax-only \
            "$build/kernels.metal"
}

check() {
    PYTHONPATH=python "$python" tools/mac_check.py "$@"
}

operations() {
    "$python" -m pytest -q tests/test_gpu_ops.py -k "$backend-"
}

# Metal's API and shader validation: what it finds it says, and the run ends.
validated() {
    MTL_DEBUG_LAYER=1 MTL_SHADER_VALIDATION=1 check logits "$backend" "$build/models/micro.gguf"
}

main() {
    echo "glm52-rt on a Mac: backend $backend"
    step "1 system" system
    step "2 build" build_all
    step "3 device, launches, fences, adoption" "$build/gpu-probe" "$backend" "${model:-$nano}"
    if [ "$backend" = metal ]; then step "4 kernels by Metal's compiler" compile_kernels; fi
    step "5 operations" operations
    if [ "$backend" = metal ]; then
        step "6 logits" check logits "$backend" "$build/models/micro.gguf" "$build/models/tiny.gguf" "$nano"
        step "7 logits under Metal's validation" validated
        step "8 streaming" check stream "$backend" "$nano"
        step "9 speed and memory" check speed "$backend" "$nano"
    else
        step "6 logits" check logits "$backend" "$build/models/micro.gguf"
        step "8 streaming" check stream "$backend" "$build/models/micro.gguf"
    fi
    if [ -n "$model" ]; then
        step "10 $model: logits" check logits "$backend" "$model"
        step "11 $model: streaming" check stream "$backend" "$model"
        step "12 $model: speed and memory" check speed "$backend" "$model"
    fi
    printf '\n%d passed, %d failed\n' "$passed" "$failed"
    [ "$failed" -eq 0 ]
}

mkdir -p "$build"
main | tee "$report"
