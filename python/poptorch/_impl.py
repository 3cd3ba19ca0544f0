"""Names that existing programs import from here. Source: spec clients.md, point 11."""

from abele import wrapping


def unwrapModelIfNecessary(model):
    """Gives a model wrapped for training its original class back, until rewrapModelIfNecessary."""
    executor = wrapping.executorOf(model)
    if executor is not None:
        executor.copyWeightsToHostIfNeeded()
        model.__dict__["_abele_unwrapped_from"] = wrapping.weakref.ref(executor)
        wrapping.unwrapModel(model)


def rewrapModelIfNecessary(model):
    """Undoes unwrapModelIfNecessary."""
    reference = model.__dict__.pop("_abele_unwrapped_from", None)
    executor = reference() if reference is not None else None
    if executor is not None:
        wrapping.wrapModel(model, executor)
