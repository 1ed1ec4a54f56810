"""e3nn's equivariant layers and gpytorch's Gaussian processes."""

import copy

import pytest
import torch

from tests.integrations.models import assert_same_parameters, compiled


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_tensor_product_of_e3nn():
    o3 = pytest.importorskip("e3nn.o3")
    model = o3.FullyConnectedTensorProduct("2x0e + 1x1o", "1x0e + 1x1o", "2x0e + 1x1o")
    ours = compiled(copy.deepcopy(model))
    x, y = model.irreps_in1.randn(4, -1), model.irreps_in2.randn(4, -1)
    for each in (model, ours):
        optimizer = torch.optim.SGD(each.parameters(), lr=0.1)
        each(x, y).square().mean().backward()
        optimizer.step()
    torch.testing.assert_close(ours(x, y), model(x, y))
    assert_same_parameters(ours, model)


# Said while TorchDynamo looks whether a tensor has a gradient; torch hides it where warnings are no errors.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace:UserWarning")
def test_gaussian_process_of_gpytorch():
    gpytorch = pytest.importorskip("gpytorch")

    class Process(gpytorch.models.ExactGP):
        def __init__(self, x, y, likelihood):
            super().__init__(x, y, likelihood)
            self.mean_module = gpytorch.means.ConstantMean()
            self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    x = torch.linspace(0, 1, 10)
    y = torch.sin(6 * x)

    def fit(wrap):
        likelihood = gpytorch.likelihoods.GaussianLikelihood()
        model = wrap(Process(x, y, likelihood))
        objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses = []
        for _ in range(3):
            loss = -objective(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses, model

    wanted, model = fit(lambda m: m)
    found, ours = fit(compiled)
    assert found == pytest.approx(wanted, rel=1e-5)
    assert_same_parameters(ours, model)
