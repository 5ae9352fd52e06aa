/* encode.c - one instruction set's list of encoders. */
#include "encode.h"

#include "blocks.h"

#define GLM52_ENCODER(name) extern const struct glm52_encoder GLM52_IN_SET(glm52_encoder_##name);
#include "encoders.def"
#undef GLM52_ENCODER

extern const struct glm52_encoder *const GLM52_IN_SET(glm52_encoders)[];
const struct glm52_encoder *const GLM52_IN_SET(glm52_encoders)[] = {
#define GLM52_ENCODER(name) &GLM52_IN_SET(glm52_encoder_##name),
#include "encoders.def"
#undef GLM52_ENCODER
    NULL
};
