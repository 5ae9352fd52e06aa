/* objects.h - the fake framework's things that the device makes. */
#ifndef GLM52_FAKE_OBJECTS_H
#define GLM52_FAKE_OBJECTS_H

#include "fake.h"

@interface FMConstants : MTLFunctionConstantValues {
@public
    uint32_t values[FM_CONSTANTS];
    NSUInteger given_count;
}
@end

@interface FMOptions : MTLCompileOptions {
@public
    MTLLanguageVersion language;
    MTLMathMode math;
    MTLMathFloatingPointFunctions functions;
    BOOL fast;
}
- (NSString *)text;
@end

@interface FMResidencySetDescriptor : MTLResidencySetDescriptor {
@public
    NSUInteger capacity;
}
@end

@interface FMPipelineDescriptor : MTLComputePipelineDescriptor {
@public
    id function;
    NSArray *archives;
}
@end

@interface FMArchiveDescriptor : MTLBinaryArchiveDescriptor {
@public
    NSURL *url;
}
@end

@interface FMLibrary : FMObject
@end

@interface FMArchive : FMObject {
@public
    NSMutableSet *keys;
}
@end

@interface FMResidencySet (Has)
- (BOOL)has:(id)allocation;
@end

/* commands.m: whether a command buffer hangs, so that waiting is no use. */
bool fm_is_hung(void);
void fm_end_hangs(void);

#endif
