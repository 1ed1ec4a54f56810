"""Models of torch_geometric: graphs of nodes and edges, and molecules."""

import functools

import torch

from tests.models.zoo import Training, add, step


def network(name: str) -> Training:
    from torch_geometric.nn import models

    options = {"hidden_channels": 16, "num_layers": 2, "out_channels": 4, "dropout": 0.5}
    model = getattr(models, name)(8, **options, **({"heads": 2} if name == "GAT" else {}))
    nodes, edges = torch.randn(12, 8), torch.randint(0, 12, (2, 30))
    targets, trained_on = torch.randint(0, 4, (12,)), torch.arange(12) < 8
    cross_entropy = torch.nn.functional.cross_entropy
    return Training(model, (nodes, edges), loss=lambda output: cross_entropy(output[trained_on], targets[trained_on]))


for name, library_name in {
    "gcn": "GCN",
    "gat": "GAT",
    "sage": "GraphSAGE",
    "gin": "GIN",
    "edge_cnn": "EdgeCNN",
}.items():
    add(name, "torch_geometric", functools.partial(network, library_name))


class GraphClassifier(torch.nn.Module):
    """Classifies graphs of one batch, as the library's tutorial does."""

    def __init__(self) -> None:
        super().__init__()
        from torch_geometric.nn import GraphConv, global_mean_pool

        self.pool = global_mean_pool
        self.first, self.second, self.head = GraphConv(8, 16), GraphConv(16, 16), torch.nn.Linear(16, 2)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
        x = self.second(self.first(x, edge_index).relu(), edge_index)
        x = torch.nn.functional.dropout(self.pool(x, batch), p=0.5, training=self.training)
        return self.head(x)


@step("torch_geometric")
def graph_classifier() -> Training:
    batch = torch.tensor([0] * 5 + [1] * 7)
    edges = torch.cat([torch.randint(0, 5, (2, 12)), torch.randint(5, 12, (2, 15))], dim=1)
    return Training(GraphClassifier(), (torch.randn(12, 8), edges, batch))


def neighbours(positions: torch.Tensor, batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Pairs of atoms of one molecule that are near each other, and how near; the library's own needs pyg-lib."""
    distances = torch.cdist(positions, positions)
    near = (distances < 4.0) & (batch[:, None] == batch) & ~torch.eye(len(batch), dtype=torch.bool)
    edges = near.nonzero().T
    return edges, (positions[edges[0]] - positions[edges[1]]).norm(dim=-1)


@step("torch_geometric")
def schnet() -> Training:
    """Energies of two molecules: each atom interacts with those nearby."""
    from torch_geometric.nn import SchNet

    model = SchNet(16, 16, num_interactions=2, num_gaussians=10, interaction_graph=neighbours)
    positions, numbers = torch.randn(10, 3) * 2, torch.randint(1, 10, (10,))
    return Training(model, (numbers, positions, torch.tensor([0] * 5 + [1] * 5)))
