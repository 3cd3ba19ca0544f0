"""Models and data for the tests of abele.keras. Importing it skips the test module where Keras is missing."""

import os

os.environ.setdefault("KERAS_BACKEND", "torch")

import pytest

keras = pytest.importorskip("keras", reason="Keras is not installed (requirements-keras.txt)")

import numpy as np  # noqa: E402
import torch  # noqa: E402
from abele import keras as ipu  # noqa: E402

layers = keras.layers
ROWS, WIDTH, CLASSES = 48, 6, 3


def data():
    """(inputs, labels)."""
    numbers = np.random.default_rng(0)
    return numbers.standard_normal((ROWS, WIDTH)).astype("float32"), numbers.integers(0, CLASSES, ROWS)


def cross_entropy():
    """A loss from logits."""
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def functional(name="net"):
    """Four layers and an addition."""
    given = keras.Input((WIDTH,), name="given")
    first = layers.Dense(8, activation="relu", name="first")(given)
    second = layers.Dense(8, name="second")(first)
    both = layers.Add(name="both")([first, second])
    return keras.Model(given, layers.Dense(CLASSES, name="last")(both), name=name)


def sequential(name="stack"):
    """Four layers."""
    return keras.Sequential(
        [
            keras.Input((WIDTH,)),
            layers.Dense(8, activation="relu", name="s0"),
            layers.BatchNormalization(name="s1"),
            layers.Dense(8, activation="tanh", name="s2"),
            layers.Dense(CLASSES, name="s3"),
        ],
        name=name,
    )


def under_strategy(make, seed=1):
    """A model with reproducible weights that a strategy made."""
    keras.utils.set_random_seed(seed)
    with ipu.IPUStrategy().scope():
        return make()


def plain(make, seed=1):
    """The same model as Keras makes it."""
    keras.utils.set_random_seed(seed)
    return make()


def staged(model, stages):
    """Gives the invocations of a model their stages, in post-order. Returns the model."""
    assignments = model.get_pipeline_stage_assignment()
    for assignment, stage in zip(assignments, stages, strict=True):
        assignment.pipeline_stage = stage
    model.set_pipeline_stage_assignment(assignments)
    return model


def configure(devices):
    """Configures this process for so many devices."""
    config = ipu.IPUConfig()
    config.auto_select_ipus = devices
    config.configure_ipu_system()


def largest_difference(one, other):
    """Of two models' weights."""
    pairs = zip(one.get_weights(), other.get_weights(), strict=True)
    return max(float(np.abs(a - b).max()) for a, b in pairs)


X, Y = data()


def trained(make, optimizer, stages, *, accumulation=4, x=X, y=Y, loss=None, options=None, fit=None, compiled=None):
    """(history of Keras, history of the pipeline, model of Keras, model of the pipeline) after two epochs."""
    loss = loss or cross_entropy()
    reference = plain(make)
    reference.compile(optimizer(gradient_accumulation_steps=accumulation), loss, **(compiled or {}))
    model = under_strategy(make)
    if stages is None:
        model.set_gradient_accumulation_options(accumulation)
    else:
        staged(model, stages).set_pipelining_options(
            gradient_accumulation_steps_per_replica=accumulation, **(options or {})
        )
    model.compile(optimizer(), loss, steps_per_execution=accumulation, **(compiled or {}))
    histories = [
        each.fit(x, y, batch_size=4, epochs=2, shuffle=False, verbose=0, **(fit or {})).history
        for each in (reference, model)
    ]
    return *histories, reference, model


def require_same(result):
    """Histories and weights, bit for bit. Returns the model of the pipeline."""
    expected, found, reference, model = result
    assert found == expected
    assert largest_difference(reference, model) == 0
    return model


@pytest.fixture(autouse=True)
def undisturbed():
    """One thread, so that eager and device sum alike; no configuration is left behind."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    keras.utils.clear_session()
    yield
    ipu.reset_ipu_configuration()
    torch.set_num_threads(threads)
