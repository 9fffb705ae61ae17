"""The kernels in NumPy: what serves without compiled kernels, and what these are compared with."""
