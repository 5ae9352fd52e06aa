/* build.c - what made this library, and which of its loops run here: for records of runs. */
#include "engine.h"
#include "quant.h"

#ifndef GLM52_FLAGS
#define GLM52_FLAGS "flags unknown"
#endif
#ifndef GLM52_VERSION
#define GLM52_VERSION "version unknown"
#endif
#if defined(__clang__)
#define COMPILER "clang " __clang_version__
#elif defined(__GNUC__)
#define COMPILER "gcc " __VERSION__
#else
#define COMPILER "compiler unknown"
#endif

const char *glm52_build(void) {
    return GLM52_VERSION "; " COMPILER "; " GLM52_FLAGS
#ifdef GLM52_HAVE_avx2
           "; avx2"
#endif
#ifdef GLM52_HAVE_avx512
           " avx512"
#endif
#ifdef GLM52_HAVE_avx512vnni
           " avx512vnni"
#endif
        ;
}

const char *glm52_engine_kernels(const glm52_engine *engine) {
    if (engine == NULL) return "";
    if (engine->ops != &glm52_cpu_ops) return engine->ops->name;
    const struct glm52_quant_set *set = glm52_quant_set_at(0);
    for (uint32_t i = 1; glm52_quant_set_at(i) != NULL; i++) set = glm52_quant_set_at(i);
    return set->name;
}
