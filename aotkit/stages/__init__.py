"""The stages of a compilation: joint graph -> joint pass -> cut -> regions -> compiled forward and backward graphs."""
