// All formats; -D QUANT=<name> says which one a kernel is compiled for.
#pragma once
#include "codebooks.cuh"
#include "floats.cuh"
#include "iq4_nl.cuh"
#include "iq4_xs.cuh"
#include "mxfp4.cuh"
#include "nvfp4.cuh"
#include "q2_k.cuh"
#include "q3_k.cuh"
#include "q4_0.cuh"
#include "q4_1.cuh"
#include "q4_k.cuh"
#include "q5_0.cuh"
#include "q5_1.cuh"
#include "q5_k.cuh"
#include "q6_k.cuh"
#include "q8_0.cuh"
#include "ternary.cuh"

#ifndef QUANT
#define QUANT Q4_K
#endif
typedef QUANT Format;
typedef Format::Activation Activation;
