"""Text-only estimators: the methods of published routers of models, which use only the prompt (NumPy only).

They are baselines for `predictors.learned.relevance` and the policies built on it. They see only `PromptFeatures`, never text.
"""
