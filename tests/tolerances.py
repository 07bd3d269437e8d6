"""Every tolerance of the tests, with its reason. Nothing else may say how equal is equal."""

# Logits (in the order of 10) against transformers' float32: two correct float32 engines differ by up to 4e-4 on these models.
LOGITS_GOLDEN = 2e-3
# Mean KL divergence of tiny-qwen35-hd128 from its float32 original with weights in Q8_0 (5e-3 by themselves) and activations
# rounded to 8 bits in blocks of 32 (5e-3 more, as between two other engines).
KL_8_BIT = 1.5e-2
# Per-layer values of the same models, in the order of 1.
LAYER_GOLDEN = 2e-4
# The reference against itself, batched, chunked or resumed otherwise: numpy's matrix products round by the number of rows.
LOGITS_REFERENCE_SELF = 1e-4
# The same for the models with 32-dimensional heads and experts, whose random weights amplify rounding 5 to 20 times.
LOGITS_REFERENCE_SELF_AMPLIFIED = 5e-4

# One op against float64 on random inputs in the order of 1, absolute and relative: float32 sums of some hundred terms.
KERNEL = 2e-5
# The same on CUDA, against float64 that rounds activations to 8 bits as the backend does: chunks of 64 tokens add up more before
# they are written, attention multiplies in split halves.
KERNEL_CUDA = 1e-4
# The same with K and V stored as float16 (11 bits): half a unit in the last place of each key and value.
KERNEL_F16_PAGES = 3e-3

# cos and sin of rotary angles, computed in float64 and stored as float32: twice half a unit in the last place of 1.5.
ROPE = 2e-7

# Perplexity over 3315 tokens, relative, against llama-perplexity's own figure for the float32 original of the same weights.
PERPLEXITY_FLOAT = 1e-5
# The same where llama.cpp rounds activations to 8 bits and we do not; random weights, whose experts amplify rounding.
PERPLEXITY_8_BIT = 1e-2

# The same of real models in Q4, where both round activations to 8 bits.
PERPLEXITY_REAL = 5e-3
# Nats by which the best token is ahead of the second where rounding may not change an answer: several times what 8-bit activations
# move logits of models in Q4 by.
CLEAR_MARGIN = 0.5

# A product in integers with activations rounded to 8 bits, against float64 that rounds them alike, as a share of the largest.
INT8_PRODUCT = 1e-5

# Logits of a decode step beside those of the same step with padding sequences, of the largest: other kernels may take the rows.
GRAPH_PADDING = 1e-5

# Share of the bytes of quantized keys and values that may differ from another quantizer's: their inputs differ by rounding, which
# turns a number that lies between two levels, and halves are rounded up there, to even here.
QUANTIZED_PAGES = 5e-3
