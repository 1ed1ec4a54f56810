"""What tests of `fuse` do with models of the zoo."""

import copy
import io
import pickle

import torch

from tests.models import zoo

STEPS = zoo.steps()


def config(**options):
    return {"kernel_fusion": {"backend": "nop", **options}}


def built(name):
    """A step of the zoo without dropout."""
    training = STEPS[name].build()
    zoo.without_dropout(training.model)
    return training


def loss_of(model, training):
    zoo.set_seed(1)  # some models draw, as MAE its masks
    return training.loss(model(*training.args, **training.kwargs))


def gradients(model, training):
    """The loss and all gradients of one step."""
    loss = loss_of(model, training)
    loss.backward()
    found = {name: p.grad for name, p in model.named_parameters()}
    model.zero_grad()
    return loss.detach(), found


def facts(model):
    """What `unfuse` has to give back: classes, and the names of attributes, of all modules."""
    return {name: (type(module), sorted(vars(module))) for name, module in model.named_modules()}


def pickled(model):
    return pickle.loads(pickle.dumps(model))


def can_be_pickled(model):
    try:
        pickle.dumps(model)
    except (AttributeError, RuntimeError):  # it has hooks that are local functions, or is parametrized
        return False
    return True


def saved(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES = {"deepcopy": copy.deepcopy, "pickle": pickled, "torch.save": saved}
