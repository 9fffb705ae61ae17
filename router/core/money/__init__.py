"""A request's money: what it may cost, what is reserved for it, what its attempts cost. Pure.

Two bounds hold at once. The request's own cap (`max_cost_usd`) is fixed from the start. The budgets of its key are
shared with other requests, so money is reserved there before an attempt starts, and more as the answer grows.

1. `quote`: what a request may cost, before it is known which candidate answers.
2. `reservation`: what is reserved of the key's budgets, and when more is needed.
3. `account`: both bounds and all attempts of one request: what a candidate may cost, what an attempt costs, what
   the request has cost.
4. `meter`: where the answer of one attempt ends because its money ends.
"""
