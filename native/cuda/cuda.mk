# cuda.mk - build/libglm52_cuda.so: the driver and every kernel file, compiled by nvcc for all sizes and for GLM-5.2's.
# Needs CUDA's compiler to build and a device to run. Part of the Makefile.

NVCC      ?= nvcc
CUDA_ARCH ?= -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=sm_90 \
             -gencode arch=compute_90,code=compute_90
CUDA_LIB   := $(BUILD)/libglm52_cuda.so
CUDA_STEMS := $(notdir $(KERNELS:.metal=))
CUDA_OBJS  := $(BUILD)/cuda/cuda.o $(BUILD)/cuda/units.o \
              $(foreach set,generic glm,$(CUDA_STEMS:%=$(BUILD)/cuda/%.$(set).o))
CUDA_HEADERS := $(wildcard native/gpu/shim/*) native/cuda/msl_cuda.cuh native/cuda/launch.h \
                $(GENERATED)/msl_swizzles.inc

# Products are not contracted to multiply-adds, so that sums have the simulator's bits; kernels that want them say fma.
NVCCFLAGS ?= -O3 -lineinfo
NVCC_ALL   = $(NVCC) -std=c++17 $(CUDA_ARCH) --fmad=false --expt-relaxed-constexpr -diag-suppress 177,550,20012 \
             -Inative/gpu/shim -Inative/cuda -I$(GENERATED) -Xcompiler -fPIC,-fvisibility=hidden $(NVCCFLAGS)

.PHONY: cuda gpu-bench test-cuda
cuda: $(CUDA_LIB) $(dir $(EXT))libglm52_cuda.so

$(BUILD)/cuda/%.cu: native/gpu/kernels/%.metal $(KERNEL_HEADERS) $(KERNEL_INCLUDES) tools/gpu/emit_cuda.py \
                    tools/gpu/msl.py
	@mkdir -p $(@D)
	$(PYTHON) tools/gpu/emit_cuda.py $@ $< $(GENERATED)

$(BUILD)/cuda/%.generic.o: $(BUILD)/cuda/%.cu $(CUDA_HEADERS)
	@echo "nvcc $@"
	$(NVCC_ALL) -DMSL_SET=generic -c -o $@ $<

$(BUILD)/cuda/%.glm.o: $(BUILD)/cuda/%.cu $(CUDA_HEADERS)
	@echo "nvcc $@"
	$(NVCC_ALL) -DMSL_SET=glm -c -o $@ $<

$(BUILD)/cuda/units.c: $(KERNELS) tools/gpu/emit_cuda.py | $(NEEDS_PYTHON)
	@mkdir -p $(@D)
	$(PYTHON) tools/gpu/emit_cuda.py --units $@ $(CUDA_STEMS)

$(BUILD)/cuda/units.o: $(BUILD)/cuda/units.c native/cuda/launch.h
	$(CC) $(STRICT) -Inative/cuda $(CFLAGS) -c -o $@ $<

$(BUILD)/cuda/cuda.o: native/cuda/cuda.c native/cuda/launch.h native/gpu/driver.h
	@mkdir -p $(@D)
	@echo "cc $@"
	$(NVCC) -x c -ccbin $(CC) $(INCLUDE) -Inative/gpu -Inative/cuda -Xcompiler '$(STRICT) $(CFLAGS)' -c -o $@ $<

$(CUDA_LIB): $(CUDA_OBJS)
	@echo "ld $@"
	$(NVCC) $(CUDA_ARCH) -shared --cudart static -o $@ $^

$(dir $(EXT))libglm52_cuda.so: $(CUDA_LIB)
	@cp $< $@

# Operations of a GPU at GLM-5.2's sizes; tools/bench/gpu.py runs it.
gpu-bench: $(BUILD)/gpu_ops
$(BUILD)/gpu_ops: $(BUILD)/tools/bench/gpu_ops.o $(LIB)
	@echo "ld $@"
	$(CC) $(ALL_CFLAGS) $(LDFLAGS) -o $@ $^ $(LDLIBS)

# On a machine with a device: every operation, and whole models against the CPU backend.
test-cuda: ext cuda
	$(PYTHON) -m pytest -q tests/test_gpu_ops.py -k cuda
	GLM52_TEST_BACKEND=cuda $(PYTHON) -m pytest -q -s tests/test_gpu_engine.py
