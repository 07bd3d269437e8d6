/* Activations rounded to 8 bits, in units of 256 columns with all tokens of a unit together: [units][tokens]. A tile of weights is as
 * wide as a unit and reads the tokens in order. */
#ifndef HEADRACE_INT_ACTIVATIONS_H
#define HEADRACE_INT_ACTIVATIONS_H

#include <stdint.h>

typedef struct { /* one scale */
    _Alignas(64) int8_t q[256];
    int16_t sums16[16], sums32[8]; /* of 16 and of 32 values */
    float d;
} block256;

typedef struct { /* a scale for every 32; a last unit may be shorter */
    _Alignas(64) int8_t q[256];
    int32_t sums[8];
    float d[8];
} blocks32;

#endif
