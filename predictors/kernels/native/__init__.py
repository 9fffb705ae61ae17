"""The kernels in Cython. `predictors.kernels` chooses between them and NumPy's."""
