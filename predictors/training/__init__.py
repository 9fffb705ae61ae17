"""Training: data sets in, artifacts out. Needs the extra `train`; nothing that serves imports this package."""
