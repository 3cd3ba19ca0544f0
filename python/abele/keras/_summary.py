"""The table that print_pipeline_stage_assignment_summary prints. Source: spec keras.md, section 2."""

from ._assignments import leaves

_FUNCTIONAL = (89, (0.4, 0.8, 1.0), ("Layer (type) (node index)", "Input Layers", "Pipeline Stage"))
_SEQUENTIAL = (65, (0.5, 1.0), ("Layer (type)", "Pipeline Stage"))


def _row(fields, ends):
    """Fields cut and padded to the ends of their columns, with at least one space between them."""
    line = ""
    for field, end in zip(fields, ends, strict=True):
        if line:
            line = line[:-1] + " "
        line = (line + str(field))[:end].ljust(end)
    return line


def _functional_rows(assignment):
    layer = assignment.layer
    inputs = [inbound.name for inbound in assignment.inbound_layers] or [""]
    first = f"{layer.name} ({type(layer).__name__}) ({assignment.node_index})"
    yield first, inputs[0], assignment.pipeline_stage
    for name in inputs[1:]:
        yield "", name, ""


def _sequential_rows(assignment):
    layer = assignment.layer
    yield f"{layer.name} ({type(layer).__name__})", assignment.pipeline_stage


def print_summary(name, assignments, *, sequential, line_length=None, print_fn=None):
    """Prints a row per assignment. Further inputs of a layer have their own rows."""
    print_fn = print if print_fn is None else print_fn
    default, shares, header = _SEQUENTIAL if sequential else _FUNCTIONAL
    width = default if line_length is None else line_length
    ends = [int(width * share) for share in shares]
    print_fn(f'Model: "{name}"')
    print_fn("_" * width)
    print_fn(_row(header, ends))
    print_fn("=" * width)
    rows = list(leaves(assignments))
    for index, assignment in enumerate(rows):
        for fields in (_sequential_rows if sequential else _functional_rows)(assignment):
            print_fn(_row(fields, ends))
        print_fn(("=" if index == len(rows) - 1 else "_") * width)
