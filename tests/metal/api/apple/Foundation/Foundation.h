/* Foundation.h - as much of Foundation as the driver uses, in our own words, to compile it for macOS where there is no
 * SDK. What the driver uses of Foundation is checked against the SDK's metadata by check_pyobjc.py. */
#ifndef GLM52_APPLE_FOUNDATION_H
#define GLM52_APPLE_FOUNDATION_H

#pragma GCC system_header

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef bool BOOL;
#define YES ((BOOL)1)
#define NO ((BOOL)0)
#define nil ((id)0)

typedef long NSInteger;
typedef unsigned long NSUInteger;
typedef double CFTimeInterval;
typedef double NSTimeInterval;
typedef double CGFloat;
typedef struct {
    NSUInteger location, length;
} NSRange;
static inline NSRange NSMakeRange(NSUInteger location, NSUInteger length) {
    NSRange range = {location, length};
    return range;
}

@class NSString, NSError, NSDictionary, NSArray, NSData, NSURL, NSBundle, NSSet, NSDate, NSNumber;
typedef NSString *NSErrorDomain;
typedef NSString *NSNotificationName;

@protocol NSObject
- (BOOL)respondsToSelector:(SEL)selector;
- (instancetype)retain;
- (oneway void)release;
- (instancetype)autorelease;
@end
@protocol NSCopying
@end
@protocol NSFastEnumeration
@end

__attribute__((objc_root_class)) @interface NSObject <NSObject>
+ (instancetype)alloc;
- (instancetype)init;
+ (Class)class;
@end
@interface NSString : NSObject
+ (instancetype)stringWithUTF8String:(const char *)text;
- (NSString *)stringByAppendingFormat:(NSString *)format, ...;
@property(readonly) const char *UTF8String;
@property(readonly) const char *fileSystemRepresentation;
@end
@interface NSConstantString : NSString
@end
@interface NSError : NSObject
@property(readonly) NSString *localizedDescription;
@property(readonly) NSInteger code;
@end
@interface NSDictionary <K, V> : NSObject
@end
@interface NSArray <T> : NSObject
+ (instancetype)arrayWithObject:(T)object;
@end
@interface NSURL : NSObject
+ (NSURL *)fileURLWithPath:(NSString *)path;
@end
@interface NSData : NSObject
@end
@interface NSBundle : NSObject
@end
@interface NSSet <T> : NSObject
@end
@interface NSDate : NSObject
@end
@interface NSNumber : NSObject
@end

#endif
