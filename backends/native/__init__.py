"""The reading of an engine's stream in Cython: the modules `backends.sse` and `backends.assemble` with types, and a faster
loop over events that are alike. `backends.scanning` chooses between them and Python's."""
