"""Joint graphs: on which side of the cut nodes can be, parts of them, torch's own partitioners."""

from aotkit.joint.extraction import extract_forward_backward
from aotkit.joint.running import JOINT_TAGS, Joint, are_alike, partition_alone, partition_copy, tangents_of
from aotkit.joint.sides import Sides, classify, simplify
from aotkit.joint.torch_partitioners import default_partition, min_cut_partition

__all__ = [
    "JOINT_TAGS",
    "Joint",
    "Sides",
    "are_alike",
    "classify",
    "default_partition",
    "extract_forward_backward",
    "min_cut_partition",
    "partition_alone",
    "partition_copy",
    "simplify",
    "tangents_of",
]
