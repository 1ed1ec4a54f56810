"""`aotkit bench backends`: backends, eager, torch.compile and autotune on workloads of all kinds."""
