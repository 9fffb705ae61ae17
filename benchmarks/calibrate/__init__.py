"""Fit an engine profile to measured requests and tell the error on load levels that the fit did not see."""
