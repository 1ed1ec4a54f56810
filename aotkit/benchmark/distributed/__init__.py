"""`bench distributed`: training steps on several ranks, by what wraps the model, next to eager and to torch.compile."""
