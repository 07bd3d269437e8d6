"""Model files: the GGUF reader, the tensors an architecture takes from it, and a writer of small files.

The only package that imports `gguf`. Nothing is imported here: `quant` imports the grids from this package, and the reader imports
the block types from `quant`.
"""
