"""`headway judge`: scores answers by a judge model, and compares them in pairs.

1. `answers` reads prompts, answers and stored grades.
2. `judge` asks the judge (`router.judging` has the form). `headway collect` uses it too.
3. `agreement` compares what it said with the stored grades; `command` is the command.
"""
