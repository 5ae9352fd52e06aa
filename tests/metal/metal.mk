# metal.mk - `make test-metal`: the Metal driver where there is no Mac. Part of the Makefile.
#
#   metal-driver   its tests on a fake framework: plain, under sanitizers, and as an older system sees it
#   metal-operations  every operation's tests through it, kernels run by the simulator
#   metal-logits   small models through it, kernels run by the simulator, against the CPU backend
#   metal-api      what it uses of Metal against two descriptions of Apple's API
#   metal-link     compiled and linked for macOS on arm64, with the whole library
#   metal-msl      the kernels' address spaces and subset of the language
#   metal-mutants  the driver with one thing broken at a time; all of them: make test-metal-full
#
# tests/metal/packages.txt has what it needs of Debian's packages; the rest comes from the Python package index.

METAL      := $(BUILD)/metal
METAL_CC   := clang-22
METAL_PY    = $(METAL)/venv/bin/python
METAL_ZIG   = $(METAL)/venv/zig
METAL_SDK   = $(METAL)/sdk/pyobjc_framework_metal-12.2.2/metadata/raw/arm64-26.5.fwinfo
COCOA_SDK   = $(METAL)/sdk/pyobjc_framework_cocoa-12.2.2/metadata/raw.Foundation/arm64-26.5.fwinfo
METAL_H    := $(METAL)/include/Metal/Metal.h
METAL_NATIVE := -Inative/include -Inative/core -Inative/gpu -I$(BUILD)/generated
METAL_STRICT := -D_GNU_SOURCE -Wall -Wextra -Wshadow -Werror -fPIC -fno-omit-frame-pointer -g -O1
# Of GCC's headers only objc/: the others are not clang's.
METAL_OBJC   = -x objective-c -std=gnu11 -fblocks -fobjc-runtime=gcc -Itests/metal/include -Itests/metal/api \
               -I$(METAL)/include -isystem $(METAL)/objc -isystem /usr/include/GNUstep -DGNUSTEP -DGNU_RUNTIME=1 \
               -DGNUSTEP_BASE_LIBRARY=1 -D_NATIVE_OBJC_EXCEPTIONS -fconstant-string-class=NSConstantString \
               -fexceptions -fobjc-exceptions -Wno-deprecated-declarations
METAL_FAKE  := -Itests/metal/fake -Wno-incomplete-implementation -Wno-protocol -Wno-objc-property-implementation
METAL_LIBS   = -lgnustep-base -L$(dir $(shell gcc -print-file-name=libobjc.so)) -lobjc -lpthread -ldl -lm
METAL_M     := $(wildcard native/metal/*.m)
METAL_HEADERS = $(METAL_H) $(GENERATED)/metal_source.h $(wildcard native/metal/*.h native/gpu/*.h) \
                $(wildcard tests/metal/*.h tests/metal/*.def tests/metal/*/*.h)

.PHONY: test-metal test-metal-full metal-driver metal-logits metal-api metal-link metal-msl metal-mutants \
        metal-mutants-full metal-package metal-operations
METAL_PARTS := metal-driver metal-api metal-link metal-msl metal-operations metal-logits

test-metal: $(NEEDS_PYTHON)
	@tests/metal/tools.sh; case $$? in \
	    0) $(MAKE) -j$(JOBS) $(METAL)/ready && $(MAKE) $(METAL_PARTS) metal-mutants;; \
	    75) ;; *) exit 1;; esac

test-metal-full: $(NEEDS_PYTHON)
	tests/metal/tools.sh
	$(MAKE) -j$(JOBS) $(METAL)/ready
	$(MAKE) $(METAL_PARTS) metal-mutants-full

$(METAL)/venv/ready: tests/metal/requirements.txt
	@echo "setting up $(METAL)/venv"
	@python3 -m venv $(METAL)/venv
	@$(METAL)/venv/bin/pip install --quiet --disable-pip-version-check -r $<
	@printf '#!/bin/sh\nexec $(abspath $(METAL_PY)) -m ziglang "$$@"\n' > $(METAL_ZIG) && chmod +x $(METAL_ZIG)
	@touch $@

$(METAL)/sdk/ready: tests/metal/sdk.txt $(METAL)/venv/ready
	@echo "fetching the descriptions of Metal's API"
	@PYTHONPATH=$(abspath tests/metal/api/site) $(METAL)/venv/bin/pip download --quiet \
	    --disable-pip-version-check --no-deps --no-build-isolation --no-binary :all: --require-hashes -d $(METAL)/sdk -r $<
	@for archive in $(METAL)/sdk/*.tar.gz; do tar xzf $$archive -C $(METAL)/sdk; done
	@touch $@

$(METAL_H): tests/metal/api/metal_header.py $(METAL)/sdk/ready
	@$(METAL_PY) $< $(METAL_SDK) $@
	@mkdir -p $(METAL)/objc && ln -sfn $$(dirname $$(gcc -print-file-name=include/objc/objc.h)) $(METAL)/objc/objc

# $(1): a folder; $(2): flags of its own
define METAL_VARIANT
$(METAL)/$(1)/%.o: $(METAL)/$(1)/source/%.m $$(METAL_HEADERS)
	@echo "objc $$@"
	$(METAL_CC) $(METAL_STRICT) $$(METAL_OBJC) $(METAL_NATIVE) -Inative/metal $(2) -c -o $$@ $$<
$(METAL)/$(1)/fake_%.o: tests/metal/fake/%.m $$(METAL_HEADERS)
	@mkdir -p $$(@D)
	@echo "objc $$@"
	$(METAL_CC) $(METAL_STRICT) $$(METAL_OBJC) $(METAL_FAKE) $(2) -c -o $$@ $$<
$(METAL)/$(1)/%.o: tests/metal/%.c $$(METAL_HEADERS)
	@mkdir -p $$(@D)
	@echo "cc $$@"
	$(METAL_CC) -std=c11 $(METAL_STRICT) $(METAL_NATIVE) -Itests/metal/fake $(2) -c -o $$@ $$<
$(METAL)/$(1)/error.o: native/core/error.c
	@mkdir -p $$(@D)
	$(METAL_CC) -std=c11 $(METAL_STRICT) $(METAL_NATIVE) $(2) -c -o $$@ $$<
$(METAL)/$(1)/driver_tests: $(METAL_M:native/metal/%.m=$(METAL)/$(1)/%.o) $(METAL_TEST_OBJS:%=$(METAL)/$(1)/%)
	@echo "ld $$@"
	$(METAL_CC) $(2) $(METAL_WRAP) -o $$@ $$^ $$(METAL_LIBS)
endef
METAL_TEST_OBJS := $(patsubst tests/metal/fake/%.m,fake_%.o,$(wildcard tests/metal/fake/*.m)) \
                   $(patsubst tests/metal/%.c,%.o,$(wildcard tests/metal/*.c)) error.o
METAL_WRAP := -Wl,--wrap=calloc,--wrap=realloc,--wrap=strdup
METAL_ASAN := -fsanitize=address,undefined -fno-sanitize-recover=undefined
$(eval $(call METAL_VARIANT,plain,))
$(eval $(call METAL_VARIANT,asan,$(METAL_ASAN)))
$(eval $(call METAL_VARIANT,older,$(METAL_ASAN) -DOLDER_SYSTEM))

# The driver as it is, and as a system before macOS 15 runs it: what is behind @available is not there.
.PRECIOUS: $(METAL)/%.m
$(METAL)/plain/source/%.m: native/metal/%.m
	@mkdir -p $(@D)
	@cp $< $@
$(METAL)/asan/source/%.m: native/metal/%.m
	@mkdir -p $(@D)
	@cp $< $@
$(METAL)/older/source/%.m: native/metal/%.m
	@mkdir -p $(@D)
	@sed 's/@available(macOS 15.0, \*)/false/' $< > $@

METAL_TESTERS := $(foreach variant,plain asan older,$(METAL)/$(variant)/driver_tests)
# Objective-C's own tables are never given back.
METAL_LSAN := ASAN_OPTIONS=symbolize=0:fast_unwind_on_malloc=0 \
              LSAN_OPTIONS=suppressions=tests/metal/leaks.txt:print_suppressions=0
$(METAL)/ready: $(METAL_TESTERS) $(METAL)/sdk/ready

metal-driver: $(METAL_TESTERS)
	@for tester in $^; do $(METAL_LSAN) timeout 120 $$tester > $$tester.log 2>&1 || { cat $$tester.log; exit 1; }; \
	    echo "driver, $$(basename $$(dirname $$tester)): $$(grep passed $$tester.log)"; done

# What a driver takes for launches, fences and the adoption of a file.
GPU_PROBE = $(BUILD)/gpu-probe
$(GPU_PROBE): $(BUILD)/tools/gpu_probe.o $(LIB)
	@echo "ld $@"
	$(CC) $(ALL_CFLAGS) $(LDFLAGS) -o $@ $^ $(LDLIBS)

# ---- Apple's API ----

metal-api: $(METAL_H) $(GENERATED)/metal_source.h
	@$(METAL_PY) tests/metal/api/check_pyobjc.py 13.0 $(METAL_SDK) $(COCOA_SDK) $(METAL)/uses.json $(METAL_M) -- \
	    -resource-dir $$($(METAL_CC) -print-resource-dir) $(filter-out -x objective-c,$(METAL_OBJC)) $(METAL_NATIVE)
	@$(METAL_PY) tests/metal/api/check_metal_cpp.py $(METAL)/uses.json \
	    $(METAL)/sdk/pymetal_cpp-0.1.5/thirdparty/metal-cpp
	@tests/metal/api/macos_syntax.sh $(METAL_CC) $(METAL)/venv $(METAL_NATIVE) -I$(METAL)/include -- $(METAL_M)

# The Makefile's macOS part, compiled by zig, which has macOS's C headers, and linked with stubs of the frameworks.
metal-link: $(METAL_H)
	$(MAKE) -j$(JOBS) BUILD=$(METAL)/macos SYSTEM=Darwin SETS= CC='$(abspath $(METAL_ZIG)) cc -target aarch64-macos.13.0' \
	    AR='$(abspath $(METAL_ZIG)) ar' LDFLAGS='-Ftests/metal/api/stubs -Ltests/metal/api/stubs/lib' \
	    CFLAGS='-O0 -Werror -Wno-unused-function -Itests/metal/api -Itests/metal/api/apple -I$(METAL)/include' \
	    PYTHON=$(PYTHON) $(METAL)/macos/glm52-check > $(METAL)/link.log 2>&1 || { cat $(METAL)/link.log; exit 1; }
	@file -b $(METAL)/macos/glm52-check | grep 'Mach-O 64-bit arm64 executable'

metal-msl: $(KERNEL_INCLUDES)
	@$(PYTHON) tools/gpu/check_msl.py --compiler $(METAL_CC) $(GENERATED) $(KERNELS)
	@$(PYTHON) tests/metal/msl_rejects.py $(GENERATED)

# ---- mutants ----

METAL_MUTANTS = $(METAL_LSAN) $(PYTHON) tests/metal/mutants.py $(METAL)/asan
METAL_MUTANT_FLAGS = -- $(METAL_CC) $(METAL_STRICT) -Wno-error $(METAL_OBJC) $(METAL_NATIVE) -Inative/metal \
                     $(METAL_ASAN) -- $(METAL_ASAN) $(METAL_WRAP) $(METAL_LIBS)
METAL_SAMPLE ?= 12

metal-mutants: $(METAL)/asan/driver_tests
	@$(METAL_MUTANTS) --sample $(METAL_SAMPLE) $(METAL_MUTANT_FLAGS)

metal-mutants-full: $(METAL)/asan/driver_tests
	@$(METAL_MUTANTS) $(METAL_MUTANT_FLAGS)

# ---- the backend: a package of its own, since a backend that lies beside the extension is one to choose ----

METAL_PACKAGE := $(METAL)/python/glm52_rt
METAL_EXT     := $(METAL_PACKAGE)/_native.abi3.so
METAL_FAKES   := $(filter fake_%,$(METAL_TEST_OBJS)) sim_executor.o

$(METAL)/plain/sim_executor.o: tests/metal/fake/sim_executor.c $(METAL_HEADERS)
	@mkdir -p $(@D)
	$(METAL_CC) -std=c11 $(METAL_STRICT) $(METAL_NATIVE) -Itests/metal/fake -c -o $@ $<

$(METAL_PACKAGE)/libglm52_metal.so: $(METAL_M:native/metal/%.m=$(METAL)/plain/%.o) $(METAL_FAKES:%=$(METAL)/plain/%)
	@mkdir -p $(@D)
	@echo "ld $@"
	$(METAL_CC) -shared -Wl,-Bsymbolic -o $@ $^ $(METAL_LIBS)

metal-package: $(METAL_PACKAGE)/libglm52_metal.so
	@cp python/glm52_rt/*.py python/glm52_rt/*.jinja $(METAL_PACKAGE)
	$(MAKE) EXT=$(METAL_EXT) PYTHON=$(PYTHON) ext $(METAL_PACKAGE)/libglm52_sim.so

metal-operations: metal-package $(if $(NEEDS_PYTHON),$(VENV)/ready-for-tests)
	@$(PYTHON) -m pytest -q -p no:cacheprovider -o pythonpath="$(METAL)/python tools tools/packaging tests" \
	    tests/test_gpu_ops.py -k metal-

metal-logits: metal-package $(BUILD)/models/micro.gguf $(BUILD)/models/tiny.gguf
	@PYTHONPATH=$(METAL)/python $(PYTHON) tests/metal/logits.py $(wordlist 2,3,$^)
