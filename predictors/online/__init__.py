"""The predictor as it serves, and what it learns from requests."""
