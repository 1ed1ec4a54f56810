"""Which values of a forward pass to save and which to recompute: the problem, its exact solution, budgets."""
