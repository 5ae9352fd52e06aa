/* device.m - the fake framework's device. */
#include "fake.h"
#include "objects.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

NSString *const MTLLibraryErrorDomain = @"MTLLibraryErrorDomain";
NSString *const MTLCommandBufferErrorDomain = @"MTLCommandBufferErrorDomain";

@interface FMDevice : FMObject
@end

@implementation FMDevice
- (NSString *)name {
    return @"Fake Apple GPU";
}
- (BOOL)hasUnifiedMemory {
    return fm_device.unified;
}
- (BOOL)supportsFamily:(MTLGPUFamily)family {
    return fm_device.apple && family == MTLGPUFamilyApple7;
}
- (uint64_t)recommendedMaxWorkingSetSize {
    return fm_device.working_set;
}
- (NSUInteger)maxBufferLength {
    return fm_device.buffer_max;
}
- (NSUInteger)maxThreadgroupMemoryLength {
    return 32768;
}
- (MTLSize)maxThreadsPerThreadgroup {
    return MTLSizeMake(1024, 1024, 1024);
}
- (id)newCommandQueue {
    return fm_fails("queue") ? nil : fm_new_queue();
}
- (id)newSharedEvent {
    return fm_fails("event") ? nil : [[FMSharedEvent alloc] init];
}
- (id)newLibraryWithSource:(NSString *)source options:(MTLCompileOptions *)options error:(NSError **)error {
    fm_crumb();
    fm_note_source(source, [(FMOptions *)options text]);
    if (!fm_fails("library")) return [[FMLibrary alloc] init];
    *error = fm_error(MTLLibraryErrorDomain, MTLLibraryErrorCompileFailure, @"injected");
    return nil;
}
- (id)newBufferWithLength:(NSUInteger)length options:(MTLResourceOptions)options {
    if (length == 0 || length > fm_device.buffer_max) fm_misuse(@"newBufferWithLength:%lu", (unsigned long)length);
    if (options != MTLResourceStorageModeShared) fm_misuse(@"newBufferWithLength: options %lu", (unsigned long)options);
    fm_crumb();
    if (fm_fails("buffer")) return nil;
    FMBuffer *made = [[FMBuffer alloc] init];
    if (posix_memalign(&made->owned, 4096, length + fm_device.misalign) != 0) abort();
    made->memory = (uint8_t *)made->owned + fm_device.misalign;
    made->bytes = length;
    memset(made->memory, 0, length);
    fm_added(made->memory, length);
    return made;
}
- (id)newBufferWithBytesNoCopy:(void *)memory
                        length:(NSUInteger)length
                       options:(MTLResourceOptions)options
                   deallocator:(void (^)(void *, NSUInteger))deallocator {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if ((uintptr_t)memory % page != 0 || length % page != 0 || length == 0 || length > fm_device.buffer_max ||
        options != MTLResourceStorageModeShared || deallocator != nil) {
        fm_misuse(@"newBufferWithBytesNoCopy:%p length:%lu", memory, (unsigned long)length);
        return nil;
    }
    fm_crumb();
    if (fm_fails("buffer")) return nil;
    FMBuffer *made = [[FMBuffer alloc] init];
    made->memory = memory;
    made->bytes = length;
    fm_added(memory, length);
    return made;
}
- (id)newResidencySetWithDescriptor:(MTLResidencySetDescriptor *)descriptor error:(NSError **)error {
    (void)descriptor, (void)error;
    return fm_fails("residency") ? nil : [[FMResidencySet alloc] init];
}
- (id)newBinaryArchiveWithDescriptor:(MTLBinaryArchiveDescriptor *)descriptor error:(NSError **)error {
    fm_crumb();
    NSURL *url = ((FMArchiveDescriptor *)descriptor)->url;
    NSArray *lines = nil;
    if (url != nil) {
        NSString *text = [NSString stringWithContentsOfFile:url.path encoding:NSUTF8StringEncoding error:NULL];
        lines = [text componentsSeparatedByString:@"\n"];
        if (![[lines objectAtIndex:0] isEqual:@"FMARCHIVE"]) lines = nil;
    }
    if (fm_fails("archive") || (url != nil && lines == nil)) {
        *error = fm_error(@"MTLBinaryArchiveDomain", 1, @"not an archive of this system");
        return nil;
    }
    FMArchive *made = [[FMArchive alloc] init];
    if (lines != nil) [made->keys addObjectsFromArray:lines];
    return made;
}
- (id)newComputePipelineStateWithDescriptor:(MTLComputePipelineDescriptor *)descriptor
                                    options:(MTLPipelineOption)options
                                 reflection:(MTLAutoreleasedComputePipelineReflection *)reflection
                                      error:(NSError **)error {
    (void)reflection;
    const FMPipelineDescriptor *given = (FMPipelineDescriptor *)descriptor;
    FMFunction *function = given->function;
    bool archived = false;
    for (FMArchive *archive in given->archives) archived = archived || [archive->keys containsObject:function->name];
    const bool from_archive = options == MTLPipelineOptionFailOnBinaryArchiveMiss;
    const bool missed = from_archive && !archived;
    if (from_archive && archived) fm_count("archive-hit");
    if (missed || fm_fails("pipeline")) {
        *error = fm_error(@"MTLPipelineDomain", 1, missed ? @"not in the archive" : @"injected");
        return nil;
    }
    FMPipeline *made = [[FMPipeline alloc] init];
    made->function = [function retain];
    return made;
}
@end

id MTLCreateSystemDefaultDevice(void) {
    return fm_executor() == NULL || fm_fails("device") ? nil : [[FMDevice alloc] init];
}

int sysctlbyname(const char *name, void *value, size_t *bytes, void *wanted, size_t wanted_bytes) {
    if (strcmp(name, "iogpu.wired_limit_mb") != 0 || wanted != NULL || wanted_bytes != 0) return -1;
    if (fm_device.wired_limit_mb == 0) return -1;
    const uint32_t megabytes = (uint32_t)fm_device.wired_limit_mb;
    if (*bytes < sizeof(megabytes)) return -1;
    memcpy(value, &megabytes, sizeof(megabytes));
    *bytes = sizeof(megabytes);
    return 0;
}
