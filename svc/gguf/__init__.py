"""Model files: the GGUF reader, the tensors an architecture takes from it, and a writer of small files.

The only room that imports `gguf`. Nothing is imported here, because `quant` takes the grids from this room and the
reader takes the block types from `quant`.
"""
