"""Contents and sizes of one KV page, one state row and one snapshot, in elements and bytes. Numbers only.

Two slabs, laid out alike for every backend:

- KV slab `[num_pages, page_elements]`, element type `kv_type`. Inside a page: attention layer, then K before V, then KV head,
  then the row in the page, then the head dimension: `[L_attn, 2, H_kv, P, D]`. One page is one contiguous block, so that copying,
  moving or saving a page is one memory copy.
- state slabs `[num_rows, state_elements]` (state rows) and `[num_snapshots, state_elements]` (snapshots), float32, with the same
  inner layout, so that saving or restoring is one memory copy. Inside: for each DeltaNet layer the recurrent state
  `[H_v, D_k * D_v]` (its inner order belongs to the backend: `state_order`), then the `[conv_rows, channels]` raw convolution rows
  (oldest first); after all layers the final hidden row `[C]` (after the output norm) of the last token.
"""

from dataclasses import dataclass

KV_TYPE_BYTES = {"f32": 4, "f16": 2}
STATE_BYTES = 4


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

    @property
    def hybrid(self) -> bool:
        """Whether a resume needs a snapshot (recurrent layers exist) rather than only pages."""
        return self.num_delta_layers > 0

    # -- KV pages -------------------------------------------------------------------------------------------------------------
    @property
    def kv_block_elements(self) -> int:
        """Elements of one K (or V) block: one layer, one page, all KV heads."""
        return self.num_kv_heads * self.page_tokens * self.head_dim

    @property
    def page_elements(self) -> int:
        return self.num_attention_layers * 2 * self.kv_block_elements

    @property
    def page_bytes(self) -> int:
        return self.page_elements * KV_TYPE_BYTES[self.kv_type]

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
        """Bytes of one state row, and of one snapshot."""
        return self.state_elements * STATE_BYTES

    def recurrent_offset(self, delta_layer: int) -> int:
        """Element offset of a DeltaNet layer's recurrent state inside a row or snapshot."""
        return delta_layer * (self.recurrent_elements + self.conv_elements)

    def conv_offset(self, delta_layer: int) -> int:
        return self.recurrent_offset(delta_layer) + self.recurrent_elements

    @property
    def hidden_offset(self) -> int:
        return self.num_delta_layers * (self.recurrent_elements + self.conv_elements)
