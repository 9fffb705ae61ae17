"""`headway experiment`: how unpredictable and how unlike LLM instances are, and what predictors are worth."""
