"""`headway train`: a data set in, an artifact out, with what made it and how good it is."""
