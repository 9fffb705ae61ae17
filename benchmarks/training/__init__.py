"""`headway train`: a data set in, an artifact out that says what made it and how good it is."""
