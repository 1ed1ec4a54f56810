"""Triton kernels of our own in the code that Inductor writes."""

from collections.abc import Sequence
from typing import Any

from torch._inductor.codegen.triton import TritonKernel
from torch._inductor.runtime.hints import AttrsDescriptorWrapper, DeviceProperties
from torch._inductor.virtualized import V

from aotkit.torch_private.kernel_changes.dependent_launches import beginning, is_supported
from aotkit.torch_private.kernel_changes.partial_sums import SumKernel

WARPS = 4
_kernels: Any = TritonKernel
_aligned: Any = AttrsDescriptorWrapper


def launch(kernel: SumKernel, args: Sequence[str]) -> list[str]:
    """The statements that launch a kernel, which is defined above the call.

    Args:
        args: names of tensors that begin aligned, and the number of elements, a multiple of 16.
    """
    wrapper, device = V.graph.wrapper_code, V.graph.get_current_device_or_throw()
    key = f"{device}{kernel.code}"
    if (name := wrapper.src_to_kernel.get(key)) is None:
        name = f"triton_added_up_{wrapper.next_kernel_suffix()}"
        wrapper.src_to_kernel[key] = name
        wrapper.define_kernel(
            name, f"async_compile.triton({name!r}, '''\n{_source(name, kernel)}''', device_str={device.type!r})"
        )
    wrapper.write_get_raw_stream_header_once()
    stream = f"stream{device.index}"
    return [f"{stream} = get_raw_stream({device.index})", f"{name}.run({', '.join(args)}, stream={stream})"]


def _source(name: str, kernel: SumKernel) -> str:
    is_early = is_supported()  # these are short
    aligned = _aligned(tuple(range(len(kernel.signature))), ())
    triton_meta = {
        "signature": {**kernel.signature, "XBLOCK": "constexpr"},
        "device": DeviceProperties.create(V.graph.get_current_device_or_throw()),
        "constants": {},
        "configs": [aligned],
        **_kernels.triton_meta_common(),
        "launch_pdl": is_early,
    }
    inductor_meta = {
        "grid_type": "Grid1D",
        "autotune_hints": set(),
        "kernel_name": name,
        "mutated_arg_names": [],
        "no_x_dim": False,
        "num_load": 1,
        "num_reduction": 1,
        **_kernels.inductor_meta_common(),
    }
    first = "".join(f"    {statement}\n" for statement in beginning(waits=is_early, is_followed=is_early))
    return f"""{_kernels.gen_common_triton_imports()}
triton_helpers.set_driver_to_gpu()

@triton_heuristics.fixed_config(
    config={{'XBLOCK': {kernel.block}, 'num_warps': {WARPS}}},
    filename=__file__,
    triton_meta={triton_meta!r},
    inductor_meta={inductor_meta!r},
)
@triton.jit{kernel.code.format(name=name, beginning=first)}"""
