"""Text-only estimators: the methods of published routers of models, which use only the prompt (NumPy only).

One artifact of kind "text" holds a local encoder of prompts (TF-IDF of hashed words and pairs, projected) and six
estimators on its vectors: nearest neighbours, clusters, logistic regression, ECCOS' two heads and its retrieval,
RouteLLM's matrix factorisation. They are baselines for `predictors.learned.relevance` and the policies built on it.
They see only `PromptFeatures`, never text.
"""
