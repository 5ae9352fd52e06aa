/* model.h - a model: its file, its hyperparameters and where each weight lies. */
#ifndef GLM52_MODEL_H
#define GLM52_MODEL_H

#include <stdatomic.h>

#include "gguf.h"

/* A matrix of the file: group_count blocks of out_count rows of in_count values. */
struct glm52_matrix {
    const void *data;            /* in the mapping; NULL: the model has none */
    const glm52_tensor_info *tensor;
    uint32_t type, in_count, out_count, group_count;
    uint64_t group_bytes;        /* from one block (one expert, one head) to the next */
    uint64_t slice_bytes;        /* of one block; less than group_bytes where others lie between (colocated files) */
};

/* One block of the model. Norms are float32 vectors in the mapping. */
struct glm52_layer {
    const float *attn_norm;      /* [hidden] */
    const float *q_a_norm;       /* [q_lora] */
    const float *kv_a_norm;      /* [kv_lora] */
    const float *ffn_norm;       /* [hidden] */
    struct glm52_matrix q_a;     /* hidden -> q_lora */
    struct glm52_matrix q_b;     /* q_lora -> heads * key_mla */
    struct glm52_matrix kv_a;    /* hidden -> kv_lora + rope */
    struct glm52_matrix k_b;     /* per head: key_mla - rope -> kv_lora */
    struct glm52_matrix v_b;     /* per head: kv_lora -> value_mla */
    struct glm52_matrix attn_out; /* heads * value_mla -> hidden */

    bool index_full;             /* runs its own indexer; then the five below are there */
    struct glm52_matrix index_q; /* q_lora -> index_heads * index_key */
    struct glm52_matrix index_k; /* hidden -> index_key */
    struct glm52_matrix index_w; /* hidden -> index_heads */
    const float *index_norm;     /* [index_key] */
    const float *index_norm_bias; /* [index_key] */

    bool dense;                  /* gate, up, down are the dense network; else the shared expert */
    struct glm52_matrix gate;    /* hidden -> dense_ff or shared_ff */
    struct glm52_matrix up;
    struct glm52_matrix down;
    struct glm52_matrix router;  /* hidden -> experts, F32 */
    const float *router_bias;    /* [experts] */
    struct glm52_matrix experts_gate; /* per expert: hidden -> expert_ff */
    struct glm52_matrix experts_up;
    struct glm52_matrix experts_down; /* per expert: expert_ff -> hidden */
};

/* What an MTP block has beside its layer. embed and head fall back to the trunk's. */
struct glm52_nextn {
    struct glm52_layer layer;
    struct glm52_matrix eh_proj; /* 2 hidden -> hidden: embedding half first */
    const float *embed_norm;     /* [hidden] */
    const float *hidden_norm;    /* [hidden] */
    const float *head_norm;      /* [hidden] */
    struct glm52_matrix embed;   /* vocab rows of hidden */
    struct glm52_matrix head;    /* hidden -> vocab */
};

struct glm52_model {
    atomic_uint references;      /* the caller's and one per engine */
    struct glm52_gguf *gguf;
    glm52_shape shape;
    struct glm52_matrix embed;   /* vocab rows of hidden */
    struct glm52_matrix output;  /* hidden -> vocab; embed if tied */
    const float *output_norm;    /* [hidden] */
    struct glm52_layer *layers;  /* [shape.layers] */
    struct glm52_nextn *nextn;   /* [shape.nextn_layers] */
};

/* Reads and checks the hyperparameters (spec: glm-dsa.* keys). Errors: MODEL, SHAPE, UNSUPPORTED. */
glm52_status glm52_shape_read(const struct glm52_gguf *gguf, glm52_shape *shape_out);

/* Binds every weight of model by name and checks its type and dimensions against model->shape.
 * Errors: MODEL for a missing tensor, SHAPE, MEMORY. model->layers and nextn are the caller's to free. */
glm52_status glm52_weights_bind(struct glm52_model *model);

void glm52_model_retain(struct glm52_model *model);

#endif
