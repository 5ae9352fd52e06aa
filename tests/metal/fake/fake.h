/* fake.h - what the files of the fake framework share. */
#ifndef GLM52_FAKE_H
#define GLM52_FAKE_H

#import <Foundation/Foundation.h>
#import <Metal/Metal.h>

#include "fake_metal.h"

/* state.m: the books. */
void fm_misuse(NSString *format, ...);
bool fm_fails(const char *name);          /* counts a call; whether it is the one to fail */
void fm_count(const char *name);
void fm_crumb(void);                      /* something for the caller's pool, as Metal may leave there */
void fm_born(void);
void fm_died(void);
void fm_started(void);                    /* a thread that runs a command buffer */
void fm_ended(void);
NSError *fm_error(NSString *domain, long code, NSString *words);
const struct fm_executor *fm_executor(void);
void fm_note_source(NSString *source, NSString *options);
void fm_added(void *memory, size_t bytes); /* mapped or made: refuses nothing, tells the executor */
void fm_removed(void *memory, size_t bytes);

@interface FMObject : NSObject
@end

@interface FMBuffer : FMObject {
@public
    uint8_t *memory;
    size_t bytes;
    void *owned;
}
@end

@interface FMFunction : FMObject {
@public
    const void *kernel;
    NSString *name;
}
@end

@interface FMPipeline : FMObject {
@public
    FMFunction *function;
}
@end

@interface FMResidencySet : FMObject {
@public
    NSMutableSet *pending, *committed;
    bool requested;
}
@end

@interface FMSharedEvent : FMObject {
@public
    NSCondition *changed;
    uint64_t value;
}
- (uint64_t)signaledValue;
- (void)setSignaledValue:(uint64_t)given;
- (BOOL)waitUntilSignaledValue:(uint64_t)wanted timeoutMS:(uint64_t)milliseconds;
@end

@interface FMQueue : FMObject {
@public
    NSCondition *turn;
    unsigned long next, now;              /* tickets of committed command buffers */
    NSMutableArray *sets;
    bool hung;
}
@end

@interface FMCommandBuffer : FMObject {
@public
    FMQueue *queue;
    NSMutableArray *items;                /* FMItem */
    NSCondition *changed;
    int status;
    NSError *failure;
    unsigned long ticket;
    id encoder;                           /* the open one, not retained */
    double started, finished;
}
@end

enum fm_kind { FM_DISPATCH, FM_COPY, FM_FILL, FM_SIGNAL, FM_WAIT };

@interface FMItem : NSObject {
@public
    enum fm_kind kind;
    struct fm_run run;
    FMPipeline *pipeline;
    NSMutableArray *kept;                 /* what the command buffer keeps alive */
    NSMutableSet *used;                   /* resident by useResource */
    uint8_t *to;
    const uint8_t *from;
    size_t bytes;
    uint8_t fill;
    FMSharedEvent *event;
    uint64_t value;
}
@end

/* commands.m: a queue of a device. */
id fm_new_queue(void);

#endif
