// out[t] = table[tokens[t]], dequantized exactly; [T, C] float32 from a matrix of any format. Zeros for a negative token. Without
// `tokens`, out[t] = table[t], which dequantizes a whole matrix.
//
// A thread per group of a row (32 values of a block format, 4 of floats), grid-stride.
// Variant: QUANT=Q6_K
// Variant: QUANT=IQ3_S
// Variant: QUANT=F16
#include "quant/formats.cuh"

extern "C" __global__ void __launch_bounds__(256)
embed(const u8* __restrict__ table, const u8* __restrict__ grid, const int* __restrict__ tokens, float* __restrict__ out, i64 num_rows,
      int columns) {
  const int pieces = (int)ceil_div(columns, Format::GROUP);
  for (i64 i = global_thread(); i < num_rows * pieces; i += global_threads()) {
    const i64 t = i / pieces;
    const int index = (int)(i % pieces);
    const i64 row = tokens ? tokens[t] : t;
    Format::Piece piece;
    if (row >= 0) Format::load(piece, table + row * Format::row_bytes(columns), index, columns, grid);
    float* to = out + t * columns + index * Format::GROUP;
#pragma unroll
    for (int j = 0; j < Format::GROUP; j++)
      if (index * Format::GROUP + j < columns) to[j] = row >= 0 ? Format::value(piece, j) : 0.f;
  }
}
