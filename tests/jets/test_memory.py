"""When results may be written over."""

from __future__ import annotations

import torch
from torch.func import jacfwd, vmap

from pyg_kpnn.jets.memory import values_only


def test_values_only():
    x, trained = torch.ones(2), torch.nn.Parameter(torch.ones(2))
    assert values_only(x)
    assert not values_only(x, trained)
    with torch.no_grad():
        assert values_only(x, trained)
        seen = []
        for transform in (vmap, jacfwd, torch.func.grad):
            transform(lambda p: (seen.append(values_only(x)), p.sum())[1])(torch.ones(2))
        assert seen == [False, False, False]
        with torch.inference_mode():
            assert values_only(x, trained)


def test_values_only_of_plain_tensors_on_the_cpu():
    class Watched(torch.Tensor):
        pass

    assert not values_only(torch.ones(2), torch.ones(2).as_subclass(Watched))
    assert not values_only(torch.ones(2, device="meta"))


def test_values_only_where_operations_are_watched():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    with Watch():
        assert not values_only(torch.ones(2))

    def look(p):
        return p + 1 if values_only(p) else p - 1

    assert torch.compile(look, backend="eager", fullgraph=True)(torch.ones(1)).item() == 0.0
