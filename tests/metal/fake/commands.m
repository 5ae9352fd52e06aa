/* commands.m - the fake framework's queues: command buffers that run in order, each on a thread of its own. */
#include "fake.h"
#include "objects.h"

#import <Foundation/NSThread.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- command buffers that hang ---- */

static pthread_mutex_t hang_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t hang_over = PTHREAD_COND_INITIALIZER;
static int hanging;
static unsigned long hangs_ended;

bool fm_is_hung(void) {
    return __atomic_load_n(&hanging, __ATOMIC_SEQ_CST) > 0;
}

static void hang(void) {
    pthread_mutex_lock(&hang_lock);
    const unsigned long now = hangs_ended;
    __atomic_add_fetch(&hanging, 1, __ATOMIC_SEQ_CST);
    while (hangs_ended == now) pthread_cond_wait(&hang_over, &hang_lock);
    __atomic_sub_fetch(&hanging, 1, __ATOMIC_SEQ_CST);
    pthread_mutex_unlock(&hang_lock);
}

void fm_end_hangs(void) {
    pthread_mutex_lock(&hang_lock);
    hangs_ended++;
    pthread_cond_broadcast(&hang_over);
    pthread_mutex_unlock(&hang_lock);
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

@implementation FMItem
- (void)dealloc {
    [pipeline release];
    [kept release];
    [used release];
    [event release];
    [super dealloc];
}
@end

@interface FMEncoder : FMObject {
@public
    FMCommandBuffer *commands;
    bool ended;
}
- (id)initIn:(FMCommandBuffer *)given;
- (bool)mayEncode:(SEL)selector;
@end

@interface FMComputeEncoder : FMEncoder {
    FMPipeline *pipeline;
    id bound[FM_BINDINGS];        /* FMBuffer or NSData */
    NSUInteger offsets[FM_BINDINGS];
    NSUInteger threadgroup_bytes;
    uint32_t bound_now;           /* since the pipeline was set: what was bound for another kernel is not this one's */
    NSMutableSet *used;
}
@end

@interface FMBlitEncoder : FMEncoder
@end

@interface FMCommandBuffer (Execute)
- (void)execute;
@end

/* ---- queues and command buffers ---- */

@implementation FMQueue
- (id)init {
    self = [super init];
    turn = [[NSCondition alloc] init];
    sets = [[NSMutableArray alloc] init];
    return self;
}
- (void)dealloc {
    [turn release];
    [sets release];
    [super dealloc];
}
- (id)commandBuffer {
    if (fm_fails("command-buffer")) return nil;
    FMCommandBuffer *made = [[[FMCommandBuffer alloc] init] autorelease];
    made->queue = [self retain];
    [turn lock];
    if (next - now >= 64) fm_misuse(@"commandBuffer: 64 are on their way: Metal would block here");
    [turn unlock];
    return made;
}
- (void)addResidencySet:(id)set {
    [sets addObject:set];
}
- (void)removeResidencySet:(id)set {
    if (![sets containsObject:set]) fm_misuse(@"removeResidencySet: is not one of the queue's");
    [sets removeObject:set];
}
@end

id fm_new_queue(void) {
    return [[FMQueue alloc] init];
}

/* ---- running ---- */

/* The buffers that a dispatch may reach: bound, used, or in a set of its queue that was committed. */
static NSMutableSet *resident_of(FMItem *item) {
    NSMutableSet *resident = [NSMutableSet setWithSet:item->used];
    for (FMResidencySet *set in [item->kept objectAtIndex:0]) {
        @synchronized(set) {
            [resident unionSet:set->committed];
        }
    }
    return resident;
}

void *fm_resolve(const struct fm_run *run, uint64_t address, size_t bytes) {
    uint8_t *memory = (uint8_t *)(uintptr_t)(address ^ fm_device.address_tag);
    for (FMBuffer *buffer in resident_of(run->commands)) {
        if (memory >= buffer->memory && memory + bytes <= buffer->memory + buffer->bytes) return memory;
    }
    fm_misuse(@"a kernel reached %lu bytes at device address %llx, which are in no buffer that is resident",
              (unsigned long)bytes, (unsigned long long)address);
    return NULL;
}

static NSString *run_dispatch(FMItem *item) {
    NSArray *resident = [resident_of(item) allObjects];
    const void *beginnings[resident.count + 1];
    for (NSUInteger i = 0; i < resident.count; i++) beginnings[i] = ((FMBuffer *)[resident objectAtIndex:i])->memory;
    item->run.resident = beginnings;
    item->run.resident_count = (uint32_t)resident.count;
    item->run.commands = item;
    const char *words = fm_executor()->run(&item->run);
    return words == NULL ? nil : [NSString stringWithUTF8String:words];
}

/* The thread of a command buffer; it gives up its reference before it counts as ended. */
static void *execute(void *commands) {
    GSRegisterCurrentThread();
    NSAutoreleasePool *pool = [[NSAutoreleasePool alloc] init];
    [(FMCommandBuffer *)commands execute];
    [(FMCommandBuffer *)commands release];
    [pool drain];
    GSUnregisterCurrentThread();
    fm_ended();
    return NULL;
}

@implementation FMCommandBuffer
- (id)init {
    self = [super init];
    items = [[NSMutableArray alloc] init];
    changed = [[NSCondition alloc] init];
    return self;
}
- (void)dealloc {
    if (encoder != nil) fm_misuse(@"command buffer released with an open encoder");
    [queue release];
    [items release];
    [changed release];
    [failure release];
    [super dealloc];
}
- (bool)mayEncode:(SEL)selector {
    if (encoder != nil) fm_misuse(@"%s while an encoder is open", sel_getName(selector));
    if (status != MTLCommandBufferStatusNotEnqueued) fm_misuse(@"%s after commit", sel_getName(selector));
    return encoder == nil && status == MTLCommandBufferStatusNotEnqueued;
}
- (id)computeCommandEncoder {
    if (![self mayEncode:_cmd] || fm_fails("compute-encoder")) return nil;
    return [[[FMComputeEncoder alloc] initIn:self] autorelease];
}
- (id)blitCommandEncoder {
    if (![self mayEncode:_cmd] || fm_fails("blit-encoder")) return nil;
    return [[[FMBlitEncoder alloc] initIn:self] autorelease];
}
- (void)add:(enum fm_kind)kind event:(id)event value:(uint64_t)value {
    fm_crumb();
    FMItem *item = [[FMItem alloc] init];
    item->kind = kind;
    item->event = [event retain];
    item->value = value;
    [items addObject:item];
    [item release];
}
- (void)encodeSignalEvent:(id)event value:(uint64_t)value {
    if ([self mayEncode:_cmd]) [self add:FM_SIGNAL event:event value:value];
}
- (void)encodeWaitForEvent:(id)event value:(uint64_t)value {
    if ([self mayEncode:_cmd]) [self add:FM_WAIT event:event value:value];
}
- (void)commit {
    if (![self mayEncode:_cmd]) return;
    fm_crumb();
    fm_count("commit");
    status = MTLCommandBufferStatusCommitted;
    [queue->turn lock];
    ticket = queue->next++;
    [queue->turn unlock];
    fm_started();
    pthread_t thread;
    if (pthread_create(&thread, NULL, execute, [self retain]) != 0) abort();
    pthread_detach(thread);
}
- (NSString *)runItem:(FMItem *)item {
    switch (item->kind) {
    case FM_COPY: memcpy(item->to, item->from, item->bytes); break;
    case FM_FILL: memset(item->to, item->fill, item->bytes); break;
    case FM_SIGNAL: [item->event setSignaledValue:item->value]; break;
    case FM_WAIT:
        while ([item->event signaledValue] < item->value && !queue->hung) {
            (void)[item->event waitUntilSignaledValue:item->value timeoutMS:20];
        }
        break;
    case FM_DISPATCH: return run_dispatch(item);
    }
    return nil;
}
- (void)runItems {
    NSString *why = fm_fails("command") ? @"injected" : nil;
    if (fm_fails("hang")) {
        hang();
        queue->hung = true;
    }
    if (queue->hung) why = @"abandoned";
    if (fm_device.delay_us > 0) usleep(fm_device.delay_us);
    started = seconds();
    for (FMItem *item in items) {
        if (why == nil) why = [self runItem:item];
    }
    finished = seconds();
    if (fm_device.delay_us > 0) usleep(fm_device.delay_us);
    [changed lock];
    if (why != nil) failure = [fm_error(MTLCommandBufferErrorDomain, fm_command_error, why) retain];
    status = why != nil ? MTLCommandBufferStatusError : MTLCommandBufferStatusCompleted;
    [changed broadcast];
    [changed unlock];
}
- (void)execute {
    [queue->turn lock];
    while (queue->now != ticket) [queue->turn wait];
    [queue->turn unlock];
    [self runItems];
    [queue->turn lock];
    queue->now++;
    [queue->turn broadcast];
    [queue->turn unlock];
}
- (void)waitUntilCompleted {
    if (status == MTLCommandBufferStatusNotEnqueued) {
        fm_misuse(@"waitUntilCompleted before commit");
        return;
    }
    [changed lock];
    while (status < (int)MTLCommandBufferStatusCompleted) [changed wait];
    [changed unlock];
}
- (MTLCommandBufferStatus)status {
    [changed lock];
    const int now = status;
    [changed unlock];
    return (MTLCommandBufferStatus)now;
}
- (NSError *)error {
    return failure;
}
- (CFTimeInterval)GPUStartTime {
    return started;
}
- (CFTimeInterval)GPUEndTime {
    return finished;
}
@end

/* ---- encoders ---- */

@implementation FMEncoder
- (id)initIn:(FMCommandBuffer *)given {
    self = [super init];
    commands = [given retain];
    commands->encoder = self;
    return self;
}
- (void)dealloc {
    if (!ended) fm_misuse(@"encoder released without endEncoding");
    if (commands->encoder == self) commands->encoder = nil;
    [commands release];
    [super dealloc];
}
- (bool)mayEncode:(SEL)selector {
    if (ended) fm_misuse(@"%s after endEncoding", sel_getName(selector));
    return !ended;
}
- (void)endEncoding {
    if (![self mayEncode:_cmd]) return;
    ended = true;
    commands->encoder = nil;
}
@end

@implementation FMComputeEncoder
- (id)initIn:(FMCommandBuffer *)given {
    self = [super initIn:given];
    used = [[NSMutableSet alloc] init];
    return self;
}
- (void)dealloc {
    for (int i = 0; i < FM_BINDINGS; i++) [bound[i] release];
    [used release];
    [pipeline release];
    [super dealloc];
}
- (void)setComputePipelineState:(id)given {
    if (![self mayEncode:_cmd]) return;
    [given retain];
    [pipeline release];
    pipeline = given;
    bound_now = 0;
    threadgroup_bytes = 0;
}
- (void)bind:(id)given offset:(NSUInteger)offset at:(NSUInteger)index {
    if (index >= FM_BINDINGS) {
        fm_misuse(@"buffer index %lu", (unsigned long)index);
        return;
    }
    [given retain];
    [bound[index] release];
    bound[index] = given;
    offsets[index] = offset;
    bound_now |= 1u << index;
}
- (void)setBuffer:(id)buffer offset:(NSUInteger)offset atIndex:(NSUInteger)index {
    if (![self mayEncode:_cmd]) return;
    if (buffer != nil && offset >= [buffer length]) {
        fm_misuse(@"setBuffer: offset %lu is behind the buffer", (unsigned long)offset);
    }
    [self bind:buffer offset:offset at:index];
}
- (void)setBytes:(const void *)bytes length:(NSUInteger)length atIndex:(NSUInteger)index {
    if (![self mayEncode:_cmd]) return;
    if (length == 0 || length > 4096) fm_misuse(@"setBytes: %lu bytes", (unsigned long)length);
    [self bind:[NSData dataWithBytes:bytes length:length] offset:0 at:index];
}
- (void)setThreadgroupMemoryLength:(NSUInteger)length atIndex:(NSUInteger)index {
    if (![self mayEncode:_cmd]) return;
    if (length == 0 || length % 16 != 0 || length > 32768 || index != 0) {
        fm_misuse(@"setThreadgroupMemoryLength:%lu", (unsigned long)length);
    }
    threadgroup_bytes = length;
}
- (void)useResource:(id)resource usage:(MTLResourceUsage)usage {
    if (![self mayEncode:_cmd]) return;
    if ((usage & (MTLResourceUsageRead | MTLResourceUsageWrite)) == 0) {
        fm_misuse(@"useResource: usage %lu", (unsigned long)usage);
    }
    fm_count("use-resource");
    [used addObject:resource];
}
- (void)dispatchThreadgroups:(MTLSize)groups threadsPerThreadgroup:(MTLSize)threads {
    if (![self mayEncode:_cmd]) return;
    const NSUInteger count = threads.width * threads.height * threads.depth;
    if (pipeline == nil) fm_misuse(@"dispatch without a pipeline");
    if (count == 0 || count > fm_device.pipeline_threads) {
        fm_misuse(@"dispatch: %lu threads in a threadgroup", (unsigned long)count);
    }
    if (groups.width * groups.height * groups.depth == 0) fm_misuse(@"dispatch: no threadgroups");
    if (pipeline == nil || count == 0) return;
    fm_count("dispatch");
    FMItem *item = [[FMItem alloc] init];
    item->kind = FM_DISPATCH;
    item->pipeline = [pipeline retain];
    item->kept = [[NSMutableArray alloc] initWithObjects:commands->queue->sets, nil];
    item->used = [used mutableCopy];
    struct fm_run *run = &item->run;
    run->kernel = pipeline->function->kernel;
    const MTLSize sizes[2] = {groups, threads};
    uint32_t *const counts[2] = {run->groups, run->threads};
    for (int i = 0; i < 2; i++) {
        counts[i][0] = (uint32_t)sizes[i].width;
        counts[i][1] = (uint32_t)sizes[i].height;
        counts[i][2] = (uint32_t)sizes[i].depth;
    }
    run->threadgroup_bytes = threadgroup_bytes;
    for (int i = 0; i < FM_BINDINGS; i++) {
        if (bound[i] == nil || (bound_now >> i & 1) == 0) continue;
        [item->kept addObject:bound[i]];
        const bool is_buffer = [bound[i] isKindOfClass:[FMBuffer class]];
        const void *memory = is_buffer ? [bound[i] contents] : [bound[i] bytes];
        run->buffers[i].memory = (uint8_t *)memory + offsets[i];
        run->buffers[i].bytes = [bound[i] length] - offsets[i];
        if (is_buffer) [item->used addObject:bound[i]];
    }
    [commands->items addObject:item];
    [item release];
}
@end

@implementation FMBlitEncoder
- (FMItem *)item:(enum fm_kind)kind to:(FMBuffer *)to offset:(NSUInteger)offset bytes:(NSUInteger)bytes {
    if (offset % 4 != 0 || bytes % 4 != 0 || bytes == 0) {
        fm_misuse(@"blit of %lu bytes to %lu", (unsigned long)bytes, (unsigned long)offset);
    }
    if (offset + bytes > to->bytes) fm_misuse(@"blit to behind a buffer");
    FMItem *item = [[[FMItem alloc] init] autorelease];
    item->kind = kind;
    item->to = to->memory + offset;
    item->bytes = bytes;
    item->kept = [[NSMutableArray alloc] initWithObjects:to, nil];
    [commands->items addObject:item];
    return item;
}
- (void)copyFromBuffer:(FMBuffer *)from
          sourceOffset:(NSUInteger)at
              toBuffer:(id)to
     destinationOffset:(NSUInteger)offset
                  size:(NSUInteger)bytes {
    if (![self mayEncode:_cmd]) return;
    FMItem *item = [self item:FM_COPY to:to offset:offset bytes:bytes];
    if (at % 4 != 0 || at + bytes > from->bytes) fm_misuse(@"blit from %lu", (unsigned long)at);
    item->from = from->memory + at;
    [item->kept addObject:from];
}
- (void)fillBuffer:(id)buffer range:(NSRange)range value:(uint8_t)value {
    if (![self mayEncode:_cmd]) return;
    [self item:FM_FILL to:buffer offset:range.location bytes:range.length]->fill = value;
}
@end
