/* thread.h - threads of the library's own. */
#ifndef GLM52_THREAD_H
#define GLM52_THREAD_H

#include <pthread.h>

/* Starts a thread that leaves the process's signals to its other threads: all are blocked in it but faults, which
 * belong to the thread that makes them, and the profiler's clock. Returns 0 or pthread_create's error. */
int glm52_thread_start(pthread_t *thread_out, void *(*run)(void *), void *argument);

#endif
