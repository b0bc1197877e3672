"""Keeping autocast out of sums that have to run in float32."""

from __future__ import annotations

import contextlib

import torch

__all__ = ["autocast_active", "without_autocast"]


def autocast_active(device_type: str) -> bool:
    """Whether autocast is on for a kind of device; False for kinds that know no autocast (meta)."""
    return torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type)


def without_autocast(device_type: str) -> contextlib.AbstractContextManager[object]:
    """Context in which operations keep the dtype of their inputs."""
    if autocast_active(device_type):
        return torch.autocast(device_type, enabled=False)
    return contextlib.nullcontext()
