/* objects.m - the fake framework's things: descriptors, buffers, functions, pipelines, archives, sets, events. */
#include "fake.h"
#include "objects.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Classes that the API has by name: alloc gives a subclass that has what they hold. */
#define CONCRETE(name, subclass)                                                                              \
    @implementation name                                                                                      \
    +(id)allocWithZone : (NSZone *)zone {                                                                     \
        return self == [name class] ? [subclass allocWithZone:zone] : [super allocWithZone:zone];             \
    }                                                                                                         \
    -(id)init {                                                                                               \
        self = [super init];                                                                                  \
        if (self != nil) fm_born();                                                                           \
        return self;                                                                                          \
    }                                                                                                         \
    -(void)dealloc {                                                                                          \
        fm_died();                                                                                            \
        [super dealloc];                                                                                      \
    }                                                                                                         \
    @end

CONCRETE(MTLFunctionConstantValues, FMConstants)
CONCRETE(MTLCompileOptions, FMOptions)
CONCRETE(MTLResidencySetDescriptor, FMResidencySetDescriptor)
CONCRETE(MTLComputePipelineDescriptor, FMPipelineDescriptor)
CONCRETE(MTLBinaryArchiveDescriptor, FMArchiveDescriptor)

@implementation FMConstants
- (void)setConstantValues:(const void *)given type:(MTLDataType)type withRange:(NSRange)range {
    if (type != MTLDataTypeUInt) fm_misuse(@"function constants of type %lu, not uint", (unsigned long)type);
    if (range.location + range.length > FM_CONSTANTS) {
        fm_misuse(@"function constants up to %lu", (unsigned long)(range.location + range.length));
        return;
    }
    memcpy(values + range.location, given, range.length * sizeof(values[0]));
    given_count = range.location + range.length;
}
@end

@implementation FMOptions
- (id)init {
    self = [super init];
    fast = YES;   /* as Metal's */
    math = MTLMathModeFast;
    return self;
}
- (void)setLanguageVersion:(MTLLanguageVersion)version {
    language = version;
}
- (void)setMathMode:(MTLMathMode)mode {
    math = mode;
}
- (void)setMathFloatingPointFunctions:(MTLMathFloatingPointFunctions)which {
    functions = which;
}
- (void)setFastMathEnabled:(BOOL)enabled {
    fast = enabled;
}
- (NSString *)text {
    return [NSString stringWithFormat:@"language %lx math %ld functions %ld fast %d", (unsigned long)language,
                                      (long)math, (long)functions, fast];
}
@end

@implementation FMResidencySetDescriptor
- (void)setInitialCapacity:(NSUInteger)count {
    capacity = count;
}
@end

@implementation FMPipelineDescriptor
- (void)dealloc {
    [function release];
    [archives release];
    [super dealloc];
}
- (void)setComputeFunction:(id)given {
    [given retain];
    [function release];
    function = given;
}
- (void)setBinaryArchives:(NSArray *)given {
    [given retain];
    [archives release];
    archives = given;
}
@end

@implementation FMArchiveDescriptor
- (void)dealloc {
    [url release];
    [super dealloc];
}
- (void)setUrl:(NSURL *)given {
    [given retain];
    [url release];
    url = given;
}
@end

@implementation FMBuffer
- (void)dealloc {
    fm_removed(memory, bytes);
    if (owned != NULL) memset(memory, 0xDD, bytes);
    free(owned);
    [super dealloc];
}
- (void *)contents {
    return memory;
}
- (NSUInteger)length {
    return bytes;
}
- (MTLGPUAddress)gpuAddress {
    fm_crumb();
    return (uint64_t)(uintptr_t)memory ^ fm_device.address_tag;
}
@end

@implementation FMFunction
- (void)dealloc {
    [name release];
    [super dealloc];
}
@end

@implementation FMPipeline
- (void)dealloc {
    [function release];
    [super dealloc];
}
- (NSUInteger)maxTotalThreadsPerThreadgroup {
    return fm_device.pipeline_threads;
}
- (NSUInteger)threadExecutionWidth {
    return fm_device.simd_width;
}
- (NSUInteger)staticThreadgroupMemoryLength {
    return fm_device.static_threadgroup_bytes;
}
@end

@implementation FMLibrary
- (id)newFunctionWithName:(NSString *)name constantValues:(MTLFunctionConstantValues *)given error:(NSError **)error {
    const char *why = "injected";
    const FMConstants *constants = (FMConstants *)given;
    const bool fails = fm_fails("function");
    const void *kernel = fails ? NULL : fm_executor()->find(name.UTF8String, constants->values, &why);
    if (kernel == NULL) {
        *error = fm_error(MTLLibraryErrorDomain, MTLLibraryErrorFunctionNotFound, [NSString stringWithUTF8String:why]);
        return nil;
    }
    FMFunction *function = [[FMFunction alloc] init];
    function->kernel = kernel;
    NSMutableString *key = [NSMutableString stringWithString:name];
    for (NSUInteger i = 0; i < constants->given_count; i++) [key appendFormat:@" %u", constants->values[i]];
    function->name = [key copy];
    return function;
}
@end

@implementation FMArchive
- (id)init {
    self = [super init];
    keys = [[NSMutableSet alloc] init];
    return self;
}
- (void)dealloc {
    [keys release];
    [super dealloc];
}
- (BOOL)addComputePipelineFunctionsWithDescriptor:(MTLComputePipelineDescriptor *)descriptor error:(NSError **)error {
    if (fm_fails("archive-add")) {
        *error = fm_error(@"MTLBinaryArchiveDomain", 1, @"injected");
        return NO;
    }
    const FMPipelineDescriptor *given = (FMPipelineDescriptor *)descriptor;
    [keys addObject:((FMFunction *)given->function)->name];
    return YES;
}
- (BOOL)serializeToURL:(NSURL *)url error:(NSError **)error {
    (void)error;
    NSString *text = [@"FMARCHIVE\n" stringByAppendingString:[[keys allObjects] componentsJoinedByString:@"\n"]];
    FILE *file = fopen(url.path.UTF8String, "w");
    if (file == NULL) return NO;
    fputs(text.UTF8String, file);
    (void)fclose(file);
    return !fm_fails("archive-store");   /* what fails may leave something behind */
}
@end

@implementation FMResidencySet
- (id)init {
    self = [super init];
    pending = [[NSMutableSet alloc] init];
    committed = [[NSMutableSet alloc] init];
    return self;
}
- (void)dealloc {
    [pending release];
    [committed release];
    [super dealloc];
}
- (void)addAllocation:(id)allocation {
    @synchronized(self) {
        if ([pending containsObject:allocation]) fm_misuse(@"addAllocation: is in the residency set already");
        [pending addObject:allocation];
    }
}
- (void)removeAllocation:(id)allocation {
    fm_crumb();
    @synchronized(self) {
        if (![pending containsObject:allocation]) fm_misuse(@"removeAllocation: is not in the residency set");
        [pending removeObject:allocation];
    }
}
- (void)commit {
    @synchronized(self) {
        [committed setSet:pending];
    }
}
- (void)requestResidency {
    fm_count("request-residency");
}
- (BOOL)has:(id)allocation {
    @synchronized(self) {
        return [committed containsObject:allocation];
    }
}
@end

@implementation FMSharedEvent
- (id)init {
    self = [super init];
    changed = [[NSCondition alloc] init];
    return self;
}
- (void)dealloc {
    [changed release];
    [super dealloc];
}
- (uint64_t)signaledValue {
    fm_crumb();
    [changed lock];
    const uint64_t now = value;
    [changed unlock];
    return now;
}
- (void)setSignaledValue:(uint64_t)given {
    fm_crumb();
    [changed lock];
    if (given < value) fm_misuse(@"shared event: back to %llu", (unsigned long long)given);
    value = given;
    [changed broadcast];
    [changed unlock];
}
- (BOOL)waitUntilSignaledValue:(uint64_t)wanted timeoutMS:(uint64_t)milliseconds {
    fm_crumb();
    fm_count("event-wait");
    NSDate *end = [NSDate dateWithTimeIntervalSinceNow:(double)milliseconds / 1e3];
    [changed lock];
    while (value < wanted && !fm_is_hung()) {
        if (![changed waitUntilDate:end]) break;
    }
    const BOOL reached = value >= wanted;
    [changed unlock];
    return reached;
}
@end
