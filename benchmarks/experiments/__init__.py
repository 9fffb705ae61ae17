"""`headway experiment`: how unpredictable and how different LLM instances are, and what predictors are worth."""
