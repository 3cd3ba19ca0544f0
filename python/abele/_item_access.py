"""Replacing members of classes and modules for a while, with nothing left behind.

CPython gives a class whose __getitem__ is assigned the sequence protocol as well, and keeps it when the assignment is
deleted. torch.tensor([one, other]) would then ask tensors without dimensions for their length. itemAccess() takes it
away from Tensor again.
"""

import contextlib

import torch

from ._native import core


def _subclasses(cls):
    yield cls
    for subclass in type.__subclasses__(cls):
        yield from _subclasses(subclass)


def _leaveSequenceProtocol():
    """For Tensor and what inherits its __getitem__; a subclass with one of its own keeps what that gave it."""
    for cls in _subclasses(torch.Tensor):
        if cls.__getitem__ is torch.Tensor.__getitem__:
            core().leaveSequenceProtocol(cls)


@contextlib.contextmanager
def replaced(name, replacement, owner=torch.Tensor):
    """A context in which Tensor, or another owner, has this member of its own; contexts nest."""
    before = vars(owner).get(name)
    setattr(owner, name, replacement)
    try:
        yield
    finally:
        if before is None:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


@contextlib.contextmanager
def exchanged(*places):
    """A context in which owner.name is make(what it was), for each of these (owner, name, make)."""
    with contextlib.ExitStack() as stack:
        for owner, name, make in places:
            stack.enter_context(replaced(name, make(getattr(owner, name)), owner))
        yield


@contextlib.contextmanager
def itemAccess(replacement):
    """A context in which tensor[index] calls replacement(tensor, index)."""
    try:
        with replaced("__getitem__", replacement):
            _leaveSequenceProtocol()
            yield
    finally:
        _leaveSequenceProtocol()
