"""What only `make sweep` runs, where it is not the same on every machine."""

import pytest
import torch

# For sizes that are one kind to a CPU, and kinds of their own to a GPU: it tests all of them.
GPU_KIND = () if torch.cuda.is_available() else pytest.mark.sweep
