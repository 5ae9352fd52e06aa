/* load.c - finds a driver: linked in, or in a library beside this one. A machine without the device never needs the
 * libraries that the device does. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "driver.h"

#if defined(__APPLE__)
extern const struct glm52_gpu_driver glm52_gpu_driver_metal;
#endif

/* The folder of the program or extension that this function is in, with its last slash. */
static bool own_folder(char *folder, size_t room) {
    static const char here = 0;
    Dl_info info;
    if (dladdr(&here, &info) == 0 || info.dli_fname == NULL || strlen(info.dli_fname) >= room) return false;
    strcpy(folder, info.dli_fname);
    char *slash = strrchr(folder, '/');
    if (slash == NULL) strcpy(folder, "./");
    else slash[1] = 0;
    return true;
}

/* A library that was opened stays: its driver is in use, or will be. */
static const struct glm52_gpu_driver *load(const char *name) {
    char folder[4096], path[sizeof(folder) + 64], symbol[64];
    if (!own_folder(folder, sizeof(folder))) return NULL;
    snprintf(path, sizeof(path), "%slibglm52_%s.so", folder, name);
    snprintf(symbol, sizeof(symbol), "glm52_gpu_driver_%s", name);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    return library == NULL ? NULL : dlsym(library, symbol);
}

const struct glm52_gpu_driver *glm52_gpu_find(const char *name) {
#if defined(__APPLE__)
    if (strcmp(name, "metal") == 0) return &glm52_gpu_driver_metal;
#endif
#define GLM52_GPU_DRIVER(driver) \
    if (strcmp(name, #driver) == 0) return load(name);
#include "drivers.def"
#undef GLM52_GPU_DRIVER
    return NULL;
}
