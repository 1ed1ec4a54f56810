"""What a call costs: eager, functorch's aot_function, torch.compile and aotkit on functions of little arithmetic."""
