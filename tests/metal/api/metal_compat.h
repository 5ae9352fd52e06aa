/* metal_compat.h - what the generated Metal.h takes from other headers of Apple's. */
#ifndef GLM52_METAL_COMPAT_H
#define GLM52_METAL_COMPAT_H

#import <Foundation/Foundation.h>

#include <stdbool.h>
#include <stdint.h>

#ifdef __APPLE__
#define METAL_SINCE(version) __attribute__((availability(macos, introduced = version)))
#else
#define METAL_SINCE(version)
typedef double CFTimeInterval;
typedef NSString *NSErrorDomain;
typedef NSString *NSNotificationName;
#endif

typedef uint64_t MTLTimestamp;
typedef uint64_t MTLGPUAddress;
@class MTLComputePipelineReflection;
typedef MTLComputePipelineReflection *MTLAutoreleasedComputePipelineReflection;
typedef void (^dispatch_block_t)(void);

#endif
