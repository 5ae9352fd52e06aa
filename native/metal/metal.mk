# metal.mk - on macOS the Metal driver is part of the library: the kernels are compiled where they run, from their text.
# Part of the Makefile.

ifeq ($(SYSTEM),Darwin)
OBJS   += $(patsubst %.m,$(BUILD)/%.o,$(wildcard native/metal/*.m))
# CoreGraphics: without it programs that draw nothing are not given the system's device.
LDLIBS += -framework Metal -framework Foundation -framework CoreGraphics -lobjc
endif

$(BUILD)/native/metal/%.o: native/metal/%.m $(BUILD)/flags $(BUILD)/generated/metal_source.h
	@mkdir -p $(@D)
	@echo "objc $@"
	$(CC) $(ALL_CFLAGS) -fno-objc-arc -MMD -MP -c -o $@ $<
