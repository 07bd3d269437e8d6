"""Choosing tokens from logits."""
