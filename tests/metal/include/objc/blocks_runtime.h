/* blocks_runtime.h - GNUstep asks for libobjc2's header of this name where blocks are on. Blocks are only declared
 * here, so nothing of it is needed. */
