"""The device's optimizer state as torch.optim keeps it, so that a checkpoint of a plain torch optimizer is complete.

poptorch's own optimizers have ipu_state instead (_optimizer_spec.readState).
"""

import torch

from ._optimizer_spec import groupNames, kindOf, optimizerRows


def _names(kind):
    """State of the device -> torch's name for it, the number of steps first, as in torch."""
    states = sorted(optimizerRows()[kind].states, key=lambda state: state.name != "step")
    return {state.name: state.name_in_torch for state in states if state.name_in_torch}


def _parametersOf(optimizer, parameters):
    """(parameter as the optimizer holds it, its name in the model), of all groups."""
    grouped, _ = groupNames(optimizer, parameters, ordered=True)
    for names, group in zip(grouped, optimizer.param_groups, strict=True):
        yield from (pair for pair in zip(group["params"], names, strict=True) if pair[1] is not None)


def toTorch(optimizer, native, parameters, updates):
    """Writes the device's state into optimizer.state.

    Args:
        native: of the session: "exp_avg/encoder.weight" -> tensor.
        parameters: name -> parameter of the model.
        updates: how many the device has made; none leave the state as it is.
    """
    if updates == 0:
        return
    names = _names(kindOf(optimizer))
    for parameter, name in _parametersOf(optimizer, parameters):
        found = {ours: native[f"{theirs}/{name}"] for theirs, ours in names.items() if f"{theirs}/{name}" in native}
        if not found:
            continue
        if kindOf(optimizer) == "RMSprop":
            found["step"] = torch.tensor(float(updates))
        steps = native.get(f"step/{name}")
        if steps is not None and steps == 0:
            continue  # no update has reached the parameter
        state = optimizer.state[parameter]
        state.clear()
        state.update({key: value.clone() for key, value in found.items()})


def fromTorch(optimizer, current, parameters):
    """The device's state with what optimizer.state holds; what that lacks starts anew.

    Args:
        current: the session's state, for names and shapes.
        parameters: name -> parameter of the model.
    Returns: (state for the session, number of updates that it comes from).
    """
    result, updates = {}, 0
    names = _names(kindOf(optimizer))
    for parameter, name in _parametersOf(optimizer, parameters):
        state = optimizer.state.get(parameter, {})
        for theirs, ours in names.items():
            key, value = f"{theirs}/{name}", state.get(ours)
            if key in current and value is not None:
                result[key] = torch.as_tensor(value, dtype=current[key].dtype).reshape(current[key].shape)
        if f"step/{name}" in current and f"step/{name}" not in result:
            result[f"step/{name}"] = torch.tensor(float(state.get("momentum_buffer") is not None))
        steps = state.get("step")
        updates = max(updates, int(steps) if steps is not None else int(bool(state)))
    return result, updates
