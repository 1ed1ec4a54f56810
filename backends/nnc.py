"""TorchScript with the NNC fuser, as in functorch's tutorial."""
