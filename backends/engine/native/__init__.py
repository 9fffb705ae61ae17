"""The model of engines in Cython: the modules `batching`, `decoding`, `kv` and `series` of `backends.engine`, with types."""
