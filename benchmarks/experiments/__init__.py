"""`headway experiment`: how unpredictable and how unlike LLM instances are, measured on what is at hand."""
