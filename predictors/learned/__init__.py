"""Trained models as they serve (NumPy only), and the artifacts that hold them."""
