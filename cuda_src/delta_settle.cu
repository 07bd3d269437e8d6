// Takes live rows forward by replaying their journals (journal.cuh): S = decay S + key delta^T with the operations of delta_decode.cu, so the
// same bits. A thread has four neighbouring numbers of a value column, which it reads and writes once however many tokens there are.
//
// Grid [blocks, layers + 1, settles]: per layer its states and, in the last threads, its convolution rows; the last "layer" is the hidden row.
//
// Variant: KEY_DIM=128 VALUE_DIM=128 GROUPED=1
// Variant: KEY_DIM=48 VALUE_DIM=48
#include "delta.cuh"
#include "journal.cuh"

constexpr int THREADS = 256;

// rows [n][state_elements], journal [n][length][elements]; settles [n][3]: (row, start, end). `layer_elements`: of an entry.
extern "C" __global__ void __launch_bounds__(THREADS)
delta_settle(float* rows, float* journal, const int* __restrict__ settles, i64 state_elements, i64 elements, i64 layer_elements, int length,
             int num_layers, int num_key_heads, int num_value_heads, int kept_rows, int hidden_size) {
  const int layer = blockIdx.y, row = settles[3 * blockIdx.z], start = settles[3 * blockIdx.z + 1], end = settles[3 * blockIdx.z + 2];
  const int keys = num_key_heads * KEY_DIM, values = num_value_heads * VALUE_DIM, channels = 2 * keys + values, vectors = values * KEY_DIM / 4;
  const i64 layer_state = (i64)values * KEY_DIM + (i64)kept_rows * channels;
  float* const live = rows + row * state_elements + layer * layer_state;
  const int job = blockIdx.x * THREADS + threadIdx.x;
  if (layer == num_layers) {
    const float* const from = journal_entry(journal + num_layers * layer_elements, length, elements, row, end - 1);
    for (int i = job; i < hidden_size; i += gridDim.x * THREADS) live[i] = from[i];
    return;
  }
  journal += layer * layer_elements;
  if (job < vectors) {
    const int column = job / (KEY_DIM / 4), k = job % (KEY_DIM / 4) * 4, head = column / VALUE_DIM;
    const int key = key_head_of(head, num_key_heads, num_value_heads) * KEY_DIM + k;
    float4 state = load4(live + (i64)column * KEY_DIM + k);
    for (int position = start; position < end; position++) {
      const float* const entry = journal_entry(journal, length, elements, row, position);
      state = blend4(state, entry[keys + values + channels + head], load4(entry + key), entry[keys + column]);
    }
    store4(live + (i64)column * KEY_DIM + k, state);
    return;
  }
  const int channel = job - vectors, count = end - start;
  if (channel >= channels) return;
  float* const conv = live + (i64)values * KEY_DIM + channel;
  for (int i = 0; i < kept_rows; i++) {  // shifts down in place: reads ahead of writing
    const int index = count - kept_rows + i;  // of a token after `start`; negative: of a row kept from before
    conv[(i64)i * channels] = index < 0 ? conv[(i64)(kept_rows + index) * channels]
                                        : journal_entry(journal, length, elements, row, start + index)[keys + values + channel];
  }
}
