/* sysctl.h - macOS's call for system settings, which Linux doesn't have; the fake framework answers it. */
#ifndef GLM52_FAKE_SYSCTL_H
#define GLM52_FAKE_SYSCTL_H

#include <stddef.h>

int sysctlbyname(const char *name, void *value, size_t *bytes, void *wanted, size_t wanted_bytes);

#endif
