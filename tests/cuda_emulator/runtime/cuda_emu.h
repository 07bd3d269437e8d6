// CUDA C++ as far as the kernels use it, for g++: included before every source by the build.
#pragma once
#include "emu/language.h"
#include "emu/numeric.h"
#include "emu/half.h"
#include "emu/warp.h"
#include "emu/tensor.h"
#include "emu/export.h"
