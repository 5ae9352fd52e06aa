# The one builder: library, C programs and Python extension all come from here, each doing its own set-up.
#
#   make run          a model, a prompt, an answer: builds what is missing first
#   make test         every test: C (also under sanitizers), fuzz corpus, Python, tidy
#   make              the library, build/libglm52.a, and the C programs
#   make test-c       the C tests alone; make test-python: the Python tests alone
#   make fuzz         200,000 mutations of a GGUF file and as many of a split one, under sanitizers
#   make ext          python/glm52_rt/_native.abi3.so for PYTHON (which needs cffi, numpy and gguf)
#   make sim          the GPU simulators beside it: kernels on this processor, without and with looking at every access
#   make clean
#
# V=1 shows the commands. CFLAGS and LDFLAGS are yours (make test-c BUILD=build/asan CFLAGS='-O1 -g -fsanitize=address,undefined' \
# LDFLAGS=-fsanitize=address,undefined). Changing them rebuilds everything: no build mixes two sets of flags.

BUILD   ?= build
CFLAGS  ?= -O3 -g
VENV    ?= build/venv
PYTHON  ?= $(VENV)/bin/python
AR      ?= ar
JOBS    ?= $(shell getconf _NPROCESSORS_ONLN)

STRICT  := -std=c11 -D_GNU_SOURCE -D_FILE_OFFSET_BITS=64 -Wall -Wextra -Wshadow -Wstrict-prototypes -Wconversion \
           -Wno-sign-conversion -Werror=implicit-function-declaration -ffp-contract=off -fvisibility=hidden \
           -fno-math-errno -fPIC -pthread -DGLM52_BUILD
INCLUDE := -Inative/include -Inative/core -Inative/quant -Inative/cpu -Inative/stream -Inative/gpu -I$(BUILD)/generated
LDLIBS  := -lm -pthread -ldl

# Instruction sets that the loops over quantised blocks are compiled for once more: same sources, same bits, other
# flags. quant.c chooses among them at run time.
ifneq ($(shell $(CC) $(CFLAGS) $(ARCHFLAGS) -dM -E -x c /dev/null 2>/dev/null | grep __x86_64__),)
SETS    := avx2 avx512 avx512vnni
endif
ifneq ($(shell $(CC) $(CFLAGS) $(ARCHFLAGS) -dM -E -x c /dev/null 2>/dev/null | grep __aarch64__),)
SETS    := neon dotprod
endif
FLAGS_avx2   := -mavx2 -mf16c
FLAGS_avx512 := -mavx512f -mavx512bw -mavx512vl -mavx512dq -mprefer-vector-width=256
FLAGS_avx512vnni := $(FLAGS_avx512) -mavx512vnni -mavx512vbmi -mavx512bitalg
FLAGS_neon   :=
FLAGS_dotprod := -march=armv8.2-a+dotprod
SET_SRCS := $(filter-out native/quant/quant.c,$(wildcard native/quant/*.c))

SRCS    := $(wildcard native/core/*.c native/quant/*.c native/cpu/*.c native/stream/*.c native/gpu/*.c)
TESTS   := $(wildcard tests/native/*.c)
OBJS    := $(SRCS:%.c=$(BUILD)/%.o) $(foreach set,$(SETS),$(SET_SRCS:%.c=$(BUILD)/%.$(set).o))
LIB     := $(BUILD)/libglm52.a
TESTER  := $(BUILD)/test_native
CHECKER := $(BUILD)/glm52-check
EXT     := python/glm52_rt/_native.abi3.so
TABLES  := $(BUILD)/generated/quant_tables.h
CXX     ?= g++

# Given, it is what is compiled for.
SYSTEM  ?= $(shell uname -s)
ifeq ($(SYSTEM),Darwin)
EXT_LINK := -bundle -undefined dynamic_lookup
else
EXT_LINK := -shared
endif

ALL_CFLAGS = $(STRICT) $(SETS:%=-DGLM52_HAVE_%) $(INCLUDE) $(CFLAGS) $(ARCHFLAGS)

include native/metal/metal.mk

ifndef V
.SILENT:
MAKEFLAGS += --no-print-directory
endif

.PHONY: all built ext sim gpu-mutants gpu-mutants-full venv run test test-c test-asan test-neon test-tsan test-vectors test-python tidy clean FORCE \
        fuzz fuzz-replay fuzz-run fuzz-corpus
all: $(LIB) $(TESTER) $(CHECKER)

# ---- the environment that the build's own tools run in ----

$(VENV)/ready: pyproject.toml
	@echo "setting up $(VENV)"
	@python3 -m venv $(VENV)
	@$(VENV)/bin/pip install --quiet --disable-pip-version-check --upgrade pip
	@$(VENV)/bin/pip install --quiet --disable-pip-version-check "cffi>=1.17" "numpy>=1.26" "gguf>=0.18" \
	    "tokenizers>=0.20" "jinja2>=3.1"
	@touch $@
# What tests need beside.
$(VENV)/ready-for-tests: $(VENV)/ready
	@$(VENV)/bin/pip install --quiet --disable-pip-version-check "pytest>=8" "hypothesis>=6" "hatchling>=1.27" \
	    "editables>=0.5" "matplotlib>=3.8" "zstandard>=0.22"
	@touch $@
venv: $(VENV)/ready

# A PYTHON of the caller's (pip's build environment) needs no venv of ours.
ifeq ($(PYTHON),$(VENV)/bin/python)
NEEDS_PYTHON := $(VENV)/ready
endif

# ---- the library ----

$(BUILD)/flags: FORCE
	@mkdir -p $(@D)
	@echo '$(CC) $(ALL_CFLAGS) $(LDFLAGS)' | cmp -s - $@ || echo '$(CC) $(ALL_CFLAGS) $(LDFLAGS)' > $@

$(TABLES): tools/packaging/quant_tables.py | $(NEEDS_PYTHON)
	@mkdir -p $(@D)
	$(PYTHON) $< $@

$(BUILD)/%.o: %.c $(BUILD)/flags | $(TABLES)
	@mkdir -p $(@D)
	@echo "cc $@"
	$(CC) $(ALL_CFLAGS) $(VECTORS) $(EXTRA) -MMD -MP -c -o $@ $<

# Runs are recorded with what made the library.
$(BUILD)/native/core/build.o: EXTRA = -DGLM52_VERSION='"$(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)"' \
    -DGLM52_FLAGS='"$(strip $(subst ",,$(subst \,,$(CFLAGS) $(ARCHFLAGS))))"'

# Encoders hand whole vectors to functions that are inlined: no call of theirs has an ABI to change.
VECTORS = $(if $(findstring /quant/encode_,$@),-Wno-psabi)

define SET_RULE
$(BUILD)/%.$(1).o: %.c $(BUILD)/flags | $(TABLES)
	@mkdir -p $$(@D)
	@echo "cc $$@"
	$$(CC) $$(ALL_CFLAGS) $$(VECTORS) $$(FLAGS_$(1)) -DGLM52_SET=$(1) -MMD -MP -c -o $$@ $$<
endef
$(foreach set,$(SETS),$(eval $(call SET_RULE,$(set))))

$(LIB): $(OBJS)
	@rm -f $@
	$(AR) rcs $@ $^

$(TESTER): $(TESTS:%.c=$(BUILD)/%.o) $(LIB)
	@echo "ld $@"
	$(CC) $(ALL_CFLAGS) $(LDFLAGS) -o $@ $^ $(LDLIBS)

CHECK_OBJS := $(patsubst %,$(BUILD)/tools/%.o,glm52_check check_record check_json)
$(CHECKER): $(CHECK_OBJS) $(LIB)
	@echo "ld $@"
	$(CC) $(ALL_CFLAGS) $(LDFLAGS) -o $@ $^ $(LDLIBS)

# ---- GPU kernels: one source for every target (tools/gpu), and the simulator that runs them here ----

KERNELS        := $(wildcard native/gpu/kernels/*.metal)
KERNEL_HEADERS := $(wildcard native/gpu/kernels/*.h)
GENERATED      := $(BUILD)/generated
KERNEL_INCLUDES := $(GENERATED)/ops_args.h $(GENERATED)/quant_tables_kernels.h

$(GENERATED)/ops_args.h: tools/gpu/ops_args.py native/include/glm52_ops.h native/core/ops.def | $(NEEDS_PYTHON)
	@mkdir -p $(@D)
	$(PYTHON) $< $@ $(wordlist 2,3,$^)

$(GENERATED)/quant_tables_kernels.h: tools/packaging/quant_tables.py | $(NEEDS_PYTHON)
	@mkdir -p $(@D)
	$(PYTHON) $< --kernels $@

$(GENERATED)/msl_swizzles.inc: tools/gpu/swizzles.py | $(NEEDS_PYTHON)
	@mkdir -p $(@D)
	$(PYTHON) $< $@

$(GENERATED)/metal_source.h: tools/gpu/emit_metal.py tools/gpu/msl.py $(KERNELS) $(KERNEL_HEADERS) $(KERNEL_INCLUDES)
	$(PYTHON) $< $@ $(KERNELS) -- $(GENERATED)

SIMS         := $(BUILD)/libglm52_sim.so $(BUILD)/libglm52_simcheck.so
SIM_SRCS     := $(wildcard native/sim/*.cpp)
SIM_CXXFLAGS := -std=c++17 -fPIC -fvisibility=hidden -ffp-contract=off -fno-math-errno -fno-strict-aliasing -fsigned-char \
                -Wall -Wextra -Wno-unknown-pragmas -DGLM52_BUILD -Inative/include -Inative/gpu -Inative/gpu/shim -Inative/sim \
                -I$(GENERATED)
# Kernels have helpers that one of them uses and tags that only choose an overload.
KERNEL_CXXFLAGS := $(SIM_CXXFLAGS) -Wno-unused-function -Wno-unused-parameter -Wno-unused-variable
SIM_KERNELS  := $(KERNELS:native/gpu/kernels/%.metal=%.o)
ifneq ($(findstring clang,$(shell $(CXX) --version 2>/dev/null)),)
KERNEL_CXXFLAGS += -Xclang -ffloat16-excess-precision=none
endif

SIM_COPIES := $(patsubst $(BUILD)/%,$(dir $(EXT))%,$(SIMS))
sim: $(SIM_COPIES)

.PRECIOUS: $(BUILD)/sim/%.cpp
$(BUILD)/sim/%.cpp: native/gpu/kernels/%.metal tools/gpu/emit_host.py tools/gpu/msl.py $(KERNEL_HEADERS) $(KERNEL_INCLUDES)
	@mkdir -p $(@D)
	$(PYTHON) tools/gpu/emit_host.py $@ $< $(GENERATED)

SIM_HEADERS := $(wildcard native/sim/*.hpp native/gpu/shim/*) native/gpu/driver.h native/include/glm52.h

$(BUILD)/sim/%.o: $(BUILD)/sim/%.cpp $(SIM_HEADERS) $(GENERATED)/msl_swizzles.inc
	@echo "c++ $@"
	$(CXX) $(KERNEL_CXXFLAGS) -O2 -g1 -c -o $@ $<

$(BUILD)/sim/check/%.o: $(BUILD)/sim/%.cpp $(SIM_HEADERS) $(GENERATED)/msl_swizzles.inc
	@mkdir -p $(@D)
	@echo "c++ $@"
	$(CXX) $(KERNEL_CXXFLAGS) -O1 -g1 -fno-omit-frame-pointer -fsanitize=thread -c -o $@ $<

$(BUILD)/sim/runtime/%.o: native/sim/%.cpp $(SIM_HEADERS)
	@mkdir -p $(@D)
	@echo "c++ $@"
	$(CXX) $(SIM_CXXFLAGS) -O2 -g1 -c -o $@ $<

$(BUILD)/sim/runtime/check/%.o: native/sim/%.cpp $(SIM_HEADERS)
	@mkdir -p $(@D)
	@echo "c++ $@"
	$(CXX) $(SIM_CXXFLAGS) -DSIM_CHECK -O2 -g1 -c -o $@ $<

$(BUILD)/libglm52_sim.so: $(filter-out %/detector.o,$(SIM_SRCS:native/sim/%.cpp=$(BUILD)/sim/runtime/%.o)) \
                          $(SIM_KERNELS:%=$(BUILD)/sim/%)
	@echo "ld $@"
	$(CXX) $(LDFLAGS) -shared -o $@ $^

# The sanitizer's own library stays out: detector.cpp has its functions.
$(BUILD)/libglm52_simcheck.so: $(SIM_SRCS:native/sim/%.cpp=$(BUILD)/sim/runtime/check/%.o) $(SIM_KERNELS:%=$(BUILD)/sim/check/%)
	@echo "ld $@"
	$(CXX) -shared -o $@ $^ -ldl

# Whole or not at all: somebody may be running the one that is there.
$(dir $(EXT))libglm52_sim%.so: $(BUILD)/libglm52_sim%.so
	cp $< $@.new && mv $@.new $@
$(dir $(EXT))libglm52_sim.so: $(BUILD)/libglm52_sim.so
	cp $< $@.new && mv $@.new $@

include native/cuda/cuda.mk
include tests/metal/metal.mk

# ---- Python: the same library behind the shim that cffi writes from the public headers ----

HEADERS := native/include/glm52.h native/include/glm52_ops.h native/include/glm52_session.h \
           native/include/glm52_stream.h native/include/glm52_encode.h

ext: $(EXT)

$(BUILD)/native_shim.c: tools/packaging/cffi_shim.py $(HEADERS) | $(NEEDS_PYTHON)
	@mkdir -p $(@D)
	$(PYTHON) $< $@ $(HEADERS)
	@touch $@

# The shim is generated code: it is compiled without the warnings that hold for ours.
$(BUILD)/native_shim.o: $(BUILD)/native_shim.c $(BUILD)/flags
	@echo "cc $@"
	$(CC) -fPIC -fvisibility=hidden $(INCLUDE) $(CFLAGS) $(ARCHFLAGS) \
	    -I$(shell $(PYTHON) -c 'import sysconfig; print(sysconfig.get_path("include"))') -c -o $@ $<

$(EXT): $(BUILD)/native_shim.o $(LIB)
	@echo "ld $@"
	$(CC) $(CFLAGS) $(ARCHFLAGS) $(LDFLAGS) $(EXT_LINK) -o $@ $^ $(LDLIBS)

# ---- what the README names ----

MODEL   ?= $(firstword $(wildcard models/glm52-nano-*.gguf) $(BUILD)/models/tiny.gguf)
PROMPT  ?= What is glm52-rt?

run: $(VENV)/ready $(MODEL)
	$(MAKE) -j$(JOBS) ext
	@echo 'glm52 run $(MODEL) --chat "$(PROMPT)" --no-think --temp 0'
	@PYTHONPATH=python $(PYTHON) -m glm52_rt run $(MODEL) --chat "$(PROMPT)" --no-think --temp 0 -n 200

$(BUILD)/models/%.gguf: tools/make_model.py | $(VENV)/ready
	@mkdir -p $(@D)
	$(PYTHON) tools/make_model.py $* -o $@

# Compiles on every processor; tests run one after another.
built: $(VENV)/ready
	$(MAKE) -j$(JOBS) all ext sim

test: built test-c test-asan test-tsan test-neon fuzz-replay test-vectors test-python gpu-mutants tidy
	@echo "every test passed"

test-c: $(TESTER)
	$(TESTER)

# A build under AddressSanitizer and UndefinedBehaviorSanitizer, beside the plain one.
ASAN_MAKE = $(MAKE) -j$(JOBS) BUILD=$(BUILD)/asan VENV=$(VENV) LDFLAGS='-fsanitize=address,undefined' \
            CFLAGS='-O1 -g -fsanitize=address,undefined -fno-sanitize-recover'

# The same C tests there.
test-asan: $(NEEDS_PYTHON)
	$(ASAN_MAKE) test-c

# What is written by hand for 64-bit ARM against the portable operations, under an emulator: Debian's packages
# gcc-aarch64-linux-gnu, libc6-dev-arm64-cross and qemu-user.
CROSS_CC   ?= aarch64-linux-gnu-gcc
EMULATOR   ?= qemu-aarch64
CROSS_ROOT ?= /usr/aarch64-linux-gnu
# gcc 12 for this target gives up on a loop of the tests when it looks for vectors.
NEON_CFLAGS := -O2 -fno-tree-vectorize
NEON_TESTS := every_half every_instruction many_rows dot_ q8_ matmul moe attention index_score kv_store rms_norm swiglu
test-neon: $(NEEDS_PYTHON)
	@if command -v $(CROSS_CC) > /dev/null && command -v $(EMULATOR) > /dev/null; then \
	    $(MAKE) -j$(JOBS) BUILD=$(BUILD)/neon VENV=$(VENV) CC=$(CROSS_CC) CFLAGS='$(NEON_CFLAGS)' $(BUILD)/neon/test_native && \
	    $(EMULATOR) -L $(CROSS_ROOT) $(BUILD)/neon/test_native $(NEON_TESTS); \
	else echo "test-neon: skipped, $(CROSS_CC) or $(EMULATOR) is not installed"; fi

# What runs on several threads, under ThreadSanitizer.
test-tsan: $(VENV)/ready
	$(MAKE) -j$(JOBS) BUILD=$(BUILD)/tsan VENV=$(VENV) SETS= CFLAGS='-O1 -g -fsanitize=thread' LDFLAGS=-fsanitize=thread \
	    $(BUILD)/tsan/test_native
	$(BUILD)/tsan/test_native pool io stream

# Recorded vectors, run from C alone.
test-vectors: $(CHECKER) $(BUILD)/models/tiny.gguf
	$(CHECKER) $(BUILD)/models/tiny.gguf $(wildcard tests/vectors/tiny*.txt)

test-python: $(VENV)/ready-for-tests $(EXT) $(CHECKER) sim
	$(PYTHON) -m pytest -q

# The kernels and the C that feeds them, one thing broken at a time: a few of the mutants, and all of them.
GPU_MUTANTS ?= 6
gpu-mutants: $(VENV)/ready-for-tests $(EXT) sim
	$(PYTHON) tests/msl/mutants.py $(BUILD) $(EXT) --sample $(GPU_MUTANTS)
gpu-mutants-full: $(VENV)/ready-for-tests $(EXT) sim
	$(PYTHON) tests/msl/mutants.py $(BUILD) $(EXT)
test-metal-full: gpu-mutants-full

# ---- fuzzing: the GGUF reader, the hyperparameters and the binding of weights against any bytes ----

FUZZER     := $(BUILD)/fuzz_gguf
FUZZ_OBJS  := $(patsubst %,$(BUILD)/tests/fuzz/%.o,fuzz_gguf mutate driver)
FUZZ_COUNT ?= 200000
FUZZ_SEED  ?= 1
ifneq ($(SYSTEM),Darwin)
FUZZ_LINK  := -Wl,--wrap=mmap,--wrap=mmap64,--wrap=munmap,--wrap=malloc,--wrap=calloc,--wrap=strdup
endif

$(FUZZER): $(FUZZ_OBJS) $(LIB)
	$(CC) $(ALL_CFLAGS) $(LDFLAGS) $(FUZZ_LINK) -o $@ $^ $(LDLIBS)

fuzz: $(NEEDS_PYTHON)
	$(ASAN_MAKE) fuzz-run

# What has been found once stays found: the kept inputs, and few enough mutations for every change.
fuzz-replay: $(NEEDS_PYTHON)
	$(ASAN_MAKE) fuzz-run FUZZ_COUNT=5000

fuzz-run: $(FUZZER)
	$(FUZZER) tests/fuzz/corpus $(FUZZ_COUNT) $(FUZZ_SEED) single
	$(FUZZER) tests/fuzz/corpus $(FUZZ_COUNT) $(FUZZ_SEED) split

# Writes the inputs that are made by hand anew.
MAKE_CORPUS := $(patsubst %,$(BUILD)/tests/%.o,fuzz/make_corpus native/gguf_build native/gguf_tiny \
               native/gguf_colocate)
$(MAKE_CORPUS): INCLUDE += -Itests/native
fuzz-corpus: $(MAKE_CORPUS)
	$(CC) $(ALL_CFLAGS) $(LDFLAGS) -o $(BUILD)/make_corpus $^
	$(BUILD)/make_corpus tests/fuzz/corpus

tidy: $(VENV)/ready
	$(PYTHON) tools/tidy.py

clean:
	rm -rf $(BUILD) $(EXT) $(SIM_COPIES)

-include $(OBJS:.o=.d) $(TESTS:%.c=$(BUILD)/%.d) $(FUZZ_OBJS:.o=.d) $(CHECK_OBJS:.o=.d)
