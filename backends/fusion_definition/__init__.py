"""From a graph of ATen operators to nvFuser's FusionDefinition, and from there to a callable."""
