"""Fit an engine profile to measured requests and report the error on load levels that the fit did not see."""
