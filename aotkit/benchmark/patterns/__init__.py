"""Fused patterns of transformers: time, memory and share of the roofline of eager, torch.compile and ours."""
