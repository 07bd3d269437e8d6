"""Contents and sizes of one KV page, one state row and one snapshot, in elements and bytes. Numbers only.

Three slabs, laid out alike for every backend:

- KV slab `[num_pages, page_elements]`, element type `kv_type`. Inside a page: attention layer, then K before V, then KV head,
  then the row in the page, then the head dimension: `[L_attn, 2, H_kv, P, D]`. One page is one contiguous block, so that copying,
  moving or saving a page is one memory copy. Of the types q8_0 and q4_0 an element is a byte: a row of D numbers is D / 32 blocks
  as in GGUF files, a float16 scale and 32 bytes or 16 (two numbers each) behind it.
- state rows `[num_rows, state_elements]`, float32. Inside: for each DeltaNet layer the recurrent state `[H_v, D_k * D_v]` (its
  inner order belongs to the backend: `state_order`), then the `[conv_rows, channels]` raw convolution rows (oldest first); after
  all layers the final hidden row `[C]` (after the output norm) of the last token.
- snapshots `[num_snapshots, snapshot_elements]`: the same parts in the same order, counted in words of four bytes. With the type
  f32 a snapshot is a copy of a row. The others round the recurrent states and nothing else:
  - bf16: the upper two bytes of each number, rounded to the nearest, ties to even;
  - q8: one signed byte for each number, all of a layer; then `[H_v, D_v]` float32 scales. A value column (the D_k numbers that
    one value dimension of a head has) shares the scale `largest magnitude / 127`.

A fourth slab, the journal `[num_rows, journal_tokens, journal_elements]`, float32, lets a row go back or catch up (MemoryPlan has
its length). The entry of the token at position p is number `p % journal_tokens`. Inside: for each DeltaNet layer the key
`[H_k * D_k]` as the delta rule uses it, the correction `delta [H_v * D_v]`, the raw convolution row `[channels]`, the decays
`[H_v]` (padded to 16); after all layers the final hidden row `[C]`. Its token advances a state by `S = decay S + key delta^T`.
"""

from dataclasses import dataclass

KV_TYPE_BYTES = {"f32": 4, "f16": 2}  # of a number
KV_BLOCK = 32  # numbers of a block
KV_BLOCK_BYTES = {"q8_0": 34, "q4_0": 18}
STATE_BYTES = 4  # of a number in a state row, and of a word of a snapshot


@dataclass(frozen=True, slots=True)
class MemoryLayout:
    """Sizes of a model's caches. Without DeltaNet layers `num_delta_layers` is 0 and a snapshot holds only the hidden row."""

    hidden_size: int
    num_attention_layers: int
    num_kv_heads: int
    head_dim: int
    num_delta_layers: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    conv_channels: int
    conv_rows: int
    page_tokens: int
    kv_type: str = "f16"
    snapshot_type: str = "f32"  # f32, bf16 or q8
    even_tokens: float = 32_768.0  # the position at which attention over all before it costs as much as the rest of a token's work

    @property
    def hybrid(self) -> bool:
        """Whether a resume needs a snapshot (recurrent layers exist) rather than only pages."""
        return self.num_delta_layers > 0

    # -- KV pages -------------------------------------------------------------------------------------------------------------
    @property
    def kv_block_elements(self) -> int:
        """Elements of one K (or V) block: one layer, one page, all KV heads."""
        return self.num_kv_heads * self.page_tokens * self.kv_row_elements

    @property
    def kv_row_elements(self) -> int:
        """Elements of one key (or value) of one head."""
        if self.kv_type in KV_BLOCK_BYTES:
            return self.head_dim // KV_BLOCK * KV_BLOCK_BYTES[self.kv_type]
        return self.head_dim

    @property
    def page_elements(self) -> int:
        return self.num_attention_layers * 2 * self.kv_block_elements

    @property
    def page_bytes(self) -> int:
        return self.page_elements * KV_TYPE_BYTES.get(self.kv_type, 1)

    @property
    def kv_bytes_per_token(self) -> int:
        return self.page_bytes // self.page_tokens

    def key_offset(self, attention_layer: int) -> int:
        """Element offset of a layer's K block inside a page; its V block follows at `+ kv_block_elements`."""
        return attention_layer * 2 * self.kv_block_elements

    # -- states ---------------------------------------------------------------------------------------------------------------
    @property
    def recurrent_elements(self) -> int:
        return self.num_value_heads * self.key_dim * self.value_dim

    @property
    def conv_elements(self) -> int:
        return self.conv_rows * self.conv_channels

    @property
    def state_elements(self) -> int:
        return self.num_delta_layers * (self.recurrent_elements + self.conv_elements) + self.hidden_size

    @property
    def state_bytes(self) -> int:
        """Bytes of one state row."""
        return self.state_elements * STATE_BYTES

    def recurrent_offset(self, delta_layer: int) -> int:
        """Element offset of a DeltaNet layer's recurrent state inside a row."""
        return delta_layer * (self.recurrent_elements + self.conv_elements)

    def conv_offset(self, delta_layer: int) -> int:
        return self.recurrent_offset(delta_layer) + self.recurrent_elements

    @property
    def hidden_offset(self) -> int:
        return self.num_delta_layers * (self.recurrent_elements + self.conv_elements)

    # -- the journal ----------------------------------------------------------------------------------------------------------
    @property
    def journal_key_elements(self) -> int:
        return (self.conv_channels - self.num_value_heads * self.value_dim) // 2

    @property
    def journal_layer_elements(self) -> int:
        """Of one DeltaNet layer: key, delta, raw convolution row, decays."""
        values = self.num_value_heads * self.value_dim
        return self.journal_key_elements + values + self.conv_channels + -(-self.num_value_heads // 16) * 16

    @property
    def journal_elements(self) -> int:
        """Of one token."""
        return self.num_delta_layers * self.journal_layer_elements + self.hidden_size

    @property
    def journal_bytes(self) -> int:
        """Bytes of one token."""
        return self.journal_elements * STATE_BYTES

    # -- snapshots --------------------------------------------------------------------------------------------------------------
    @property
    def lossy_snapshots(self) -> bool:
        """Whether a restored state differs from the one that was saved."""
        return self.hybrid and self.snapshot_type != "f32"

    @property
    def snapshot_recurrent_words(self) -> int:
        """Words of one layer's recurrent state in a snapshot, without its scales; whole 16 bytes unless it is a copy."""
        match self.snapshot_type:
            case "f32":
                return self.recurrent_elements
            case "bf16":
                return 4 * -(-self.recurrent_elements // 8)
            case _:
                return 4 * -(-self.recurrent_elements // 16)

    @property
    def snapshot_scale_words(self) -> int:
        return self.num_value_heads * self.value_dim if self.snapshot_type == "q8" else 0

    @property
    def snapshot_layer_words(self) -> int:
        """Words of one DeltaNet layer: recurrent state, scales, convolution rows."""
        return self.snapshot_recurrent_words + self.snapshot_scale_words + self.conv_elements

    @property
    def snapshot_elements(self) -> int:
        return self.num_delta_layers * self.snapshot_layer_words + self.hidden_size

    @property
    def snapshot_bytes(self) -> int:
        """Bytes of one snapshot."""
        return self.snapshot_elements * STATE_BYTES

    def snapshot_recurrent_offset(self, delta_layer: int) -> int:
        """Word offset of a DeltaNet layer's recurrent state inside a snapshot; its scales follow."""
        return delta_layer * self.snapshot_layer_words

    def snapshot_conv_offset(self, delta_layer: int) -> int:
        return self.snapshot_recurrent_offset(delta_layer) + self.snapshot_recurrent_words + self.snapshot_scale_words

    @property
    def snapshot_hidden_offset(self) -> int:
        return self.num_delta_layers * self.snapshot_layer_words
