/* state.m - the fake framework's books: what is alive, what was misused, which call is to fail. */
#include "fake.h"
#include "objects.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NAMES_MAX 32

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int live, running;
static char misuses[16384], options_text[256];
static char *source_text;
static struct {
    char name[24];
    int calls;
} counts[NAMES_MAX];
static char injected[24];
static int injected_after;
static bool was_hit;
static const struct fm_executor *executor;

long fm_command_error;
struct fm_device fm_device;

void fm_misuse(NSString *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    NSString *text = [[[NSString alloc] initWithFormat:format arguments:arguments] autorelease];
    va_end(arguments);
    pthread_mutex_lock(&lock);
    const size_t used = strlen(misuses);
    snprintf(misuses + used, sizeof(misuses) - used, "%s\n", text.UTF8String);
    pthread_mutex_unlock(&lock);
}

const char *fm_misuses(void) {
    return misuses;
}

void fm_forget_misuses(void) {
    misuses[0] = 0;
}

static int *calls_of(const char *name) {
    for (int i = 0; i < NAMES_MAX; i++) {
        if (counts[i].name[0] == 0) snprintf(counts[i].name, sizeof(counts[i].name), "%s", name);
        if (strcmp(counts[i].name, name) == 0) return &counts[i].calls;
    }
    abort();
}

bool fm_fails(const char *name) {
    pthread_mutex_lock(&lock);
    ++*calls_of(name);
    const bool fails = strcmp(injected, name) == 0 && injected_after-- == 0;
    if (fails) {
        injected[0] = 0;
        was_hit = true;
    }
    pthread_mutex_unlock(&lock);
    return fails;
}

void fm_count(const char *name) {
    (void)fm_fails(name);
}

int fm_calls(const char *name) {
    pthread_mutex_lock(&lock);
    const int calls = *calls_of(name);
    pthread_mutex_unlock(&lock);
    return calls;
}

void fm_inject(const char *name, int after) {
    pthread_mutex_lock(&lock);
    snprintf(injected, sizeof(injected), "%s", name);
    injected_after = after;
    was_hit = false;
    pthread_mutex_unlock(&lock);
}

bool fm_was_hit(void) {
    return was_hit;
}

void fm_born(void) {
    __atomic_add_fetch(&live, 1, __ATOMIC_SEQ_CST);
}

void fm_died(void) {
    __atomic_sub_fetch(&live, 1, __ATOMIC_SEQ_CST);
}

void fm_started(void) {
    __atomic_add_fetch(&running, 1, __ATOMIC_SEQ_CST);
}

void fm_ended(void) {
    __atomic_sub_fetch(&running, 1, __ATOMIC_SEQ_CST);
}

int fm_live(void) {
    for (int i = 0; i < 2000 && __atomic_load_n(&running, __ATOMIC_SEQ_CST) > 0; i++) usleep(1000);
    return __atomic_load_n(&live, __ATOMIC_SEQ_CST);
}

void fm_reset(void) {
    fm_end_hangs();
    (void)fm_live();
    pthread_mutex_lock(&lock);
    misuses[0] = 0;
    injected[0] = 0;
    was_hit = false;
    memset(counts, 0, sizeof(counts));
    fm_command_error = MTLCommandBufferErrorPageFault;
    fm_device = (struct fm_device){
        .unified = true,
        .apple = true,
        .buffer_max = (size_t)4 << 30,
        .working_set = (uint64_t)8 << 30,
        .simd_width = 32,
        .pipeline_threads = 1024,
        .address_tag = FM_ADDRESS_TAG,
    };
    pthread_mutex_unlock(&lock);
}

void fm_use(const struct fm_executor *used) {
    executor = used;
}

const struct fm_executor *fm_executor(void) {
    return executor;
}

void fm_added(void *memory, size_t bytes) {
    if (executor->mapped != NULL) executor->mapped(memory, bytes);
}

void fm_removed(void *memory, size_t bytes) {
    if (executor->unmapped != NULL) executor->unmapped(memory, bytes);
}

void fm_note_source(NSString *source, NSString *options) {
    free(source_text);
    source_text = strdup(source.UTF8String);
    snprintf(options_text, sizeof(options_text), "%s", options.UTF8String);
}

const char *fm_source(void) {
    return source_text;
}

const char *fm_options(void) {
    return options_text;
}

NSError *fm_error(NSString *domain, long code, NSString *words) {
    return [NSError errorWithDomain:domain code:code userInfo:@{NSLocalizedDescriptionKey : words}];
}

void fm_crumb(void) {
    (void)[[[FMObject alloc] init] autorelease];
}

@implementation FMObject
- (id)init {
    self = [super init];
    if (self != nil) fm_born();
    return self;
}
- (void)dealloc {
    fm_died();
    [super dealloc];
}
@end
