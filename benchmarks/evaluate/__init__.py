"""`headway evaluate`: how good an artifact is on a data set, beside the simple baselines."""
