"""Gaussian processes (gpytorch), equivariant networks (e3nn) and differential equations (torchdiffeq)."""

from typing import Any

import torch
from torch import Tensor, nn

from tests.models.zoo import Training, step


def _regression() -> tuple[Any, Any, Tensor, Tensor]:
    """The model of gpytorch's first tutorial, its likelihood, and what it learns from."""
    import gpytorch

    class Regression(gpytorch.models.ExactGP):
        def __init__(self, x: Tensor, y: Tensor, likelihood: Any) -> None:
            super().__init__(x, y, likelihood)
            self.mean_module = gpytorch.means.ConstantMean()
            self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

        def forward(self, x: Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    x = torch.linspace(0, 1, 20)
    y = torch.sin(x * 6.28) + torch.randn(20) * 0.2
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    return Regression(x, y, likelihood), likelihood, x, y


@step("gpytorch")
def exact_gp() -> Training:
    """The model alone is compiled; the marginal likelihood of what it returns is the user's own code."""
    import gpytorch

    model, likelihood, x, y = _regression()
    likelihood.train()
    mll = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    return Training(model, (x,), loss=lambda output: -mll(output, y))


@step("gpytorch")
def exact_gp_likelihood() -> Training:
    """Model and marginal likelihood in one module."""
    import gpytorch

    class Objective(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            model, likelihood, self.x, self.y = _regression()
            self.mll = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)

        def forward(self) -> Tensor:
            return -self.mll(self.mll.model(self.x), self.y)

    return Training(Objective(), loss=lambda output: output)


@step("e3nn")
def tensor_product() -> Training:
    from e3nn import o3

    model = o3.FullyConnectedTensorProduct("4x0e + 2x1o", "0e + 1o", "4x0e + 2x1o")
    return Training(model, (torch.randn(5, 10), torch.randn(5, 4)))


@step("e3nn")
def gated_convolution() -> Training:
    """A layer of an equivariant network: spherical harmonics, a tensor product with learned weights, and a gate."""
    from e3nn import nn as e3nn
    from e3nn import o3

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            gate = e3nn.Gate("4x0e", [torch.relu], "2x0e", [torch.sigmoid], "2x1o")
            self.harmonics = o3.SphericalHarmonics("0e + 1o", normalize=True, normalization="component")
            self.product = o3.FullyConnectedTensorProduct("4x0e", "0e + 1o", gate.irreps_in, shared_weights=False)
            self.radial = e3nn.FullyConnectedNet([8, 16, self.product.weight_numel], torch.nn.functional.silu)
            self.gate = gate

        def forward(self, nodes: Tensor, lengths: Tensor, edges: Tensor) -> Tensor:
            return self.gate(self.product(nodes, self.harmonics(edges), self.radial(lengths)))

    return Training(Layer(), (torch.randn(6, 4), torch.randn(6, 8), torch.randn(6, 3)))


class Flow(nn.Module):
    """A neural ordinary differential equation."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        from torchdiffeq import odeint

        self.solve = odeint
        self.rate = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))
        self.options = options

    def forward(self, start: Tensor, times: Tensor) -> Tensor:
        return self.solve(lambda t, y: self.rate(y), start, times, **self.options)


@step("torchdiffeq")
def odeint_dopri5() -> Training:
    """Step sizes depend on values."""
    return Training(Flow(method="dopri5"), (torch.randn(4, 2), torch.linspace(0, 1, 5)))


@step("torchdiffeq")
def odeint_rk4() -> Training:
    return Training(Flow(method="rk4"), (torch.randn(4, 2), torch.linspace(0, 1, 5)))
