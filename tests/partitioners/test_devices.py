"""Whose speed decides what is recomputed."""

import torch

import aotkit
from aotkit.joint.sides import classify, simplify
from aotkit.partitioners.rematerialization import devices
from aotkit.partitioners.rematerialization.values import values_of


def test_a_network_in_bfloat16_is_fast_although_its_normalisations_compute_in_float32(monkeypatch):
    """Most of its memory is float32; taken for its products' type, it made recomputing look cheap beside them."""
    seen = []

    def noting(joint, joint_inputs, /, *, num_fwd_outputs, **kwargs):
        simplify(joint)
        values = values_of(joint, classify(joint, num_fwd_outputs))
        monkeypatch.setattr(devices, "measured", lambda device, dtype: seen.append((device, dtype)))
        devices.device_of(values)
        return aotkit.get_partitioner("default")(joint, joint_inputs, num_fwd_outputs=num_fwd_outputs, **kwargs)

    norm = torch.nn.LayerNorm(8, dtype=torch.bfloat16)
    linear = torch.nn.Linear(8, 8, dtype=torch.bfloat16)
    backend = aotkit.Backend(lambda gm, inputs: gm, decompositions=aotkit.get_backend("inductor").decompositions)
    network = torch.nn.Sequential(norm, linear, norm)
    aotkit.extract(network, torch.randn(64, 8, dtype=torch.bfloat16), partition=noting, backend=backend)
    assert seen == [(torch.device("cpu"), torch.bfloat16)]
