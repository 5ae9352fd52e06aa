/* thread.c - threads of the library's own. */
#include "thread.h"

#include <signal.h>
#include <stddef.h>

int glm52_thread_start(pthread_t *thread_out, void *(*run)(void *), void *argument) {
    static const int kept[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGPROF};
    sigset_t blocked, before;
    sigfillset(&blocked);
    for (size_t i = 0; i < sizeof(kept) / sizeof(kept[0]); i++) sigdelset(&blocked, kept[i]);
    pthread_sigmask(SIG_SETMASK, &blocked, &before);      /* a thread inherits it */
    const int error = pthread_create(thread_out, NULL, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}
