/* shape.h - limits of a model's hyperparameters. They are far above the real values and low enough that every
 * product of two of them fits 32 bits and every count of bytes 64. */
#ifndef GLM52_SHAPE_H
#define GLM52_SHAPE_H

#define GLM52_SHAPE_CONTEXT_MAX 1073741824u  /* positions are int32 */
#define GLM52_SHAPE_NEXTN_MAX 8u
#define GLM52_SHAPE_HIDDEN_MAX 131072u
#define GLM52_SHAPE_VOCAB_MAX 4194304u
#define GLM52_SHAPE_HEADS_MAX 1024u
#define GLM52_SHAPE_LORA_MAX 65536u
#define GLM52_SHAPE_ROPE_MAX 4096u
#define GLM52_SHAPE_HEAD_SIZE_MAX 8192u      /* of a query, value or index head */
#define GLM52_SHAPE_DENSE_FF_MAX 1048576u
#define GLM52_SHAPE_EXPERTS_MAX 4096u
#define GLM52_SHAPE_EXPERT_FF_MAX 262144u
#define GLM52_SHAPE_SHARED_MAX 64u           /* shared experts of a layer */
#define GLM52_SHAPE_INDEX_HEADS_MAX 256u
#define GLM52_SHAPE_TOP_K_MAX 16777216u
#define GLM52_SHAPE_EPSILON_MIN 1e-20f
#define GLM52_SHAPE_EPSILON_MAX 0.1f
#define GLM52_SHAPE_ROPE_BASE_MIN 1.0f
#define GLM52_SHAPE_ROPE_BASE_MAX 1e12f
#define GLM52_SHAPE_EXPERT_SCALE_MAX 1e4f

/* The context from which a file without attention.indexer.types is a GLM-5.2 and not a GLM-5 or 5.1. */
#define GLM52_SHAPE_INDEX_SHARE_CONTEXT 1048576u

#endif
