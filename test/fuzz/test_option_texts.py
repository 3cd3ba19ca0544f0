"""Whatever a file or a JSON text of options holds: it applies, or it is one of the documented errors."""

import json
import string

import poptorch
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

QUICK = settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)
SETTERS = [
    name
    for name in dir(poptorch.Options)
    if name[0] in string.ascii_lowercase and name not in ("loadFromFile", "clone", "update")
]
GROUPS = {
    group: [name for name in dir(getattr(poptorch.Options(), group)) if name[0] in string.ascii_lowercase]
    for group in ("Training", "Precision", "Jit", "Distributed", "TensorLocations", "_Popart")
}
# What setters raise for wrong arguments (spec options.md); everything else is a bug.
DOCUMENTED = (poptorch.Error, poptorch.ConfigFileError, AssertionError, AttributeError, TypeError, ValueError)

accessors = st.one_of(
    st.sampled_from(SETTERS),
    st.sampled_from([f"{group}.{name}" for group, names in GROUPS.items() for name in names]),
    st.text(string.ascii_letters + "._0", max_size=20),
)
members = st.sampled_from(
    [f"{name}.{member}" for name in poptorch.enums.__all__ for member in getattr(poptorch.enums, name).__members__]
)
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=10), members, st.just("IPU0")
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.one_of(st.just("IPU0"), st.text(max_size=5)), inner, max_size=3)
    ),
    max_leaves=6,
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "options.conf"


def require_usable(opts):
    """The object is whole, whatever happened."""
    repr(opts)
    opts.clone()
    opts.set(device_iterations=opts.device_iterations)


@QUICK
@given(table=st.dictionaries(accessors, values, max_size=4))
def test_json_objects(table):
    opts = poptorch.Options()
    try:
        opts.from_json(json.dumps(table))
    except DOCUMENTED:
        pass
    require_usable(opts)


@QUICK
@given(text=st.one_of(st.text(max_size=60), values.map(json.dumps)))
def test_json_texts(text):
    opts = poptorch.Options()
    try:
        opts.from_json(text)
    except DOCUMENTED:
        pass
    require_usable(opts)


calls = st.builds(
    lambda accessor, arguments: f"{accessor}({', '.join(map(repr, arguments))})",
    accessors,
    st.lists(values, max_size=3),
)
enum_calls = st.builds(lambda accessor, member: f"{accessor}(poptorch.{member})", accessors, members)
noise = st.text(string.punctuation + " \t'\"\\", max_size=20)  # no letters: it must not run anything
lines = st.lists(
    st.one_of(
        calls,
        enum_calls,
        noise,
        st.just("# comment"),
        st.just(""),
        st.builds(lambda call, n: call[:n], calls, st.integers(0, 30)),
        st.builds(lambda call, tail: f"  {call}  # {tail}", calls, noise),
    ),
    max_size=5,
)


@QUICK
@given(lines=lines)
def test_files(lines, path):
    path.write_text("\n".join(lines), encoding="utf-8", errors="replace")
    opts = poptorch.Options()
    before = repr(opts)
    try:
        opts.loadFromFile(str(path))
    except poptorch.ConfigFileError as error:
        assert "options.conf" in str(error) and repr(opts) == before  # nothing was applied
    except (*DOCUMENTED, NameError):
        pass
    require_usable(opts)


@QUICK
@given(data=st.binary(max_size=60))
def test_files_of_bytes(data, path):
    path.write_bytes(b"".join(byte.to_bytes(1, "little") for byte in data if not chr(byte).isalpha()))
    opts = poptorch.Options()
    try:
        opts.loadFromFile(str(path))
    except (*DOCUMENTED, NameError):
        pass
    require_usable(opts)
