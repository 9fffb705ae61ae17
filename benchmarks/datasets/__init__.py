"""Training data from published sets, from the gateway's records and from emulated fleets, in the one form of
`predictors.training.dataset`."""
