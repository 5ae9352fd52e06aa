# cuda.mk - build/libglm52_cuda.so: the driver and every kernel file, compiled by nvcc for all sizes and for GLM-5.2's.
# Needs CUDA's compiler to build, and a device to run; included by the Makefile.

NVCC      ?= nvcc
CUDA_ARCH ?= -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=sm_90 \
             -gencode arch=compute_90,code=compute_90
CUDA_HOME ?= $(patsubst %/bin/,%,$(dir $(realpath $(shell command -v $(NVCC)))))
CUDA_LIB  := $(BUILD)/libglm52_cuda.so
KERNELS   := $(sort $(wildcard native/gpu/kernels/*.metal))
CUDA_STEMS := $(notdir $(KERNELS:.metal=))
CUDA_OBJS := $(BUILD)/cuda/cuda.o $(BUILD)/cuda/units.o \
             $(foreach set,generic glm,$(CUDA_STEMS:%=$(BUILD)/cuda/%.$(set).o))
KERNEL_HEADERS := $(wildcard native/gpu/kernels/*.h native/gpu/shim/*) native/cuda/msl_cuda.cuh native/cuda/launch.h

# Products are not contracted to multiply-adds, so that sums have the simulator's bits; kernels that want them say fma.
NVCCFLAGS ?= -O3 -lineinfo
NVCC_ALL   = $(NVCC) -std=c++17 $(CUDA_ARCH) --fmad=false --expt-relaxed-constexpr -diag-suppress 177,550,20012 \
             -Inative/gpu/shim -Inative/cuda -I$(BUILD)/generated -Xcompiler -fPIC,-fvisibility=hidden $(NVCCFLAGS)

.PHONY: cuda
cuda: $(CUDA_LIB) python/glm52_rt/libglm52_cuda.so

$(BUILD)/cuda/%.cu: native/gpu/kernels/%.metal $(KERNEL_HEADERS) $(GPU_GENERATED) tools/gpu/emit_cuda.py tools/gpu/msl.py
	@mkdir -p $(@D)
	$(PYTHON) tools/gpu/emit_cuda.py $@ $< native/gpu/kernels $(BUILD)/generated

$(BUILD)/cuda/%.generic.o: $(BUILD)/cuda/%.cu
	@echo "nvcc $@"
	$(NVCC_ALL) -DMSL_SET=generic -c -o $@ $<

$(BUILD)/cuda/%.glm.o: $(BUILD)/cuda/%.cu
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
	$(CC) $(STRICT) -isystem $(CUDA_HOME)/include $(INCLUDE) -Inative/gpu -Inative/cuda $(CFLAGS) -c -o $@ $<

$(CUDA_LIB): $(CUDA_OBJS)
	@echo "ld $@"
	$(NVCC) $(CUDA_ARCH) -shared --cudart static -o $@ $^

python/glm52_rt/libglm52_cuda.so: $(CUDA_LIB)
	@cp $< $@
