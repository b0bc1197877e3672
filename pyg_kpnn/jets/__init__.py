"""Exact derivatives in the inputs: truncated Taylor series in several variables, batched over any axes."""

from .algebra import compose, exp, log, power, product, reciprocal, sqrt
from .indices import JetSpace
from .layers import affine, edge_softmax, layer_norm, ridge, softmax
from .network import AttentionNet
from .towers import ACTIVATIONS, Activation, activation
from .variables import constant, gradient, hessian, partials, variables

__all__ = [
    "ACTIVATIONS",
    "Activation",
    "AttentionNet",
    "JetSpace",
    "activation",
    "affine",
    "compose",
    "constant",
    "edge_softmax",
    "exp",
    "gradient",
    "hessian",
    "layer_norm",
    "log",
    "partials",
    "power",
    "product",
    "reciprocal",
    "ridge",
    "softmax",
    "sqrt",
    "variables",
]
