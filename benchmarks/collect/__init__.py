"""`headway collect`: prompts to every candidate of a fleet at chosen loads, kept as one data set.

1. `prompts` reads the prompts, `engines` opens the engines (and starts emulated ones).
2. `drive` sends: each engine goes through the levels at its own pace, one of its models after another.
   `clients` does one request by the engine's own client library, always streamed.
3. `results` turns what was seen into the tables of `predictors.training.dataset`; `benchmarks.judging` may score the
   answers.
"""
