"""Weight updates of Keras' optimizers as programs: with Keras' bits, or by Keras itself where it says so.

Source: spec keras.md, 4.
"""

import gc
import logging
import weakref

import numpy as np
import pytest
from keras_models import (  # noqa: F401
    ROWS,
    WIDTH,
    X,
    Y,
    configure,
    cross_entropy,
    functional,
    ipu,
    keras,
    largest_difference,
    layers,
    plain,
    require_same,
    sequential,
    staged,
    trained,
    under_strategy,
    undisturbed,
)

optimizers, schedules = keras.optimizers, keras.optimizers.schedules
UPDATES = 2 * ROWS // 16
STAGES = [0, 0, 1, 1]


def where(model):
    """ "device", or why the host updated the weights."""
    return ipu.execution_report(model)["update"]


def require_same_state(reference, model):
    """The optimizer's variables, bit for bit, but what Keras' own accumulation needs."""
    kept = {variable.path.partition("/")[2]: variable.numpy() for variable in reference.optimizer.variables}
    own = {variable.path.partition("/")[2]: variable.numpy() for variable in model.optimizer.variables}
    assert own.pop("iteration") == UPDATES and set(own) <= set(kept)
    for path, values in own.items():
        assert np.array_equal(values, kept[path]), path


ON_DEVICE = {
    "SGD": lambda **more: optimizers.SGD(0.1, **more),
    "momentum": lambda **more: optimizers.SGD(0.1, momentum=0.9, **more),
    "nesterov": lambda **more: optimizers.SGD(0.1, momentum=0.9, nesterov=True, weight_decay=0.01, **more),
    "Adam": lambda **more: optimizers.Adam(0.01, **more),
    "amsgrad": lambda **more: optimizers.Adam(0.01, amsgrad=True, weight_decay=0.01, **more),
    "AdamW": lambda **more: optimizers.AdamW(0.01, weight_decay=0.1, **more),
    "RMSprop": lambda **more: optimizers.RMSprop(0.01, centered=True, momentum=0.5, **more),
    "Adamax": lambda **more: optimizers.Adamax(0.01, **more),
    "Adagrad": lambda **more: optimizers.Adagrad(0.1, **more),
    "Adadelta": lambda **more: optimizers.Adadelta(0.1, **more),
    "Lion": lambda **more: optimizers.Lion(0.01, **more),
    "Lamb": lambda **more: optimizers.Lamb(0.01, **more),
    "Ftrl": lambda **more: optimizers.Ftrl(0.1, **more),
    "clipnorm": lambda **more: optimizers.SGD(0.1, clipnorm=0.1, **more),
    "clipvalue": lambda **more: optimizers.Adam(0.01, clipvalue=0.01, **more),
    "global_clipnorm": lambda **more: optimizers.AdamW(0.01, global_clipnorm=0.1, **more),
    "loss_scale_factor": lambda **more: optimizers.SGD(0.1, momentum=0.5, loss_scale_factor=128.0, **more),
}


@pytest.mark.parametrize("name", ON_DEVICE)
def test_a_program_updates_with_the_bits_of_keras(name):
    result = trained(sequential, ON_DEVICE[name], STAGES)
    model = require_same(result)
    require_same_state(result[2], model)
    assert where(model) == "device"


def fitted(optimizer, stages, callbacks=(), make=sequential):
    """A model after two epochs with an update for each batch: of Keras (stages: None), or of a pipeline."""
    if stages is None:
        model = plain(make)
    else:
        model = under_strategy(make)
        model.set_pipeline_stage_assignment(stages)
        model.set_pipelining_options(
            gradient_accumulation_steps_per_replica=1, pipeline_schedule=ipu.PipelineSchedule.Sequential
        )
    model.compile(optimizer(), cross_entropy())
    model.fit(X, Y, batch_size=4, epochs=2, shuffle=False, verbose=0, callbacks=list(callbacks))
    return model


def require_same_fits(optimizer, stages=STAGES, make=sequential):
    """Weights and state of Keras and of a pipeline, bit for bit. Returns the model of the pipeline."""
    reference, model = fitted(optimizer, None, make=make), fitted(optimizer, stages, make=make)
    assert largest_difference(reference, model) == 0
    for one, other in zip(reference.optimizer.variables, model.optimizer.variables, strict=True):
        assert np.array_equal(one.numpy(), other.numpy()), one.path
    return model


SCHEDULES = {
    "exponential": lambda: schedules.ExponentialDecay(0.1, 8, 0.5),
    "inverse time": lambda: schedules.InverseTimeDecay(0.1, 8, 0.5, staircase=True),
    "polynomial": lambda: schedules.PolynomialDecay(0.1, 16),
    "constants": lambda: schedules.PiecewiseConstantDecay([4, 9], [0.1, 0.05, 0.01]),
    "cosine": lambda: schedules.CosineDecay(0.1, 20),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_of_learning_rates(name):
    model = require_same_fits(lambda: optimizers.SGD(SCHEDULES[name](), momentum=0.9))
    assert where(model) == "device"


def test_a_schedule_that_asks_for_values_stays_on_the_host():
    model = require_same_fits(
        lambda: optimizers.Adam(schedules.CosineDecay(0.0, 12, warmup_target=0.1, warmup_steps=8))
    )
    assert where(model).startswith("host: ")


class OwnSGD(optimizers.SGD):
    """An optimizer of the program's own, whose Python code may do anything."""


class Halved(keras.constraints.Constraint):
    def __call__(self, w):
        return w * 0.5


ON_HOST = {
    "Nadam": (lambda **more: optimizers.Nadam(0.01, **more), "cannot be captured"),
    "a subclass": (lambda **more: OwnSGD(0.1, **more), "OwnSGD is not Keras' own"),
    "a function": (lambda **more: optimizers.SGD(lambda: 0.1, **more), "the learning rate is a function"),
}


@pytest.mark.parametrize("name", ON_HOST)
def test_what_cannot_be_captured_runs_on_the_host_and_says_so(name, caplog):
    optimizer, reason = ON_HOST[name]
    with caplog.at_level(logging.INFO, logger="abele.keras"):
        model = require_same(trained(sequential, optimizer, STAGES))
    assert where(model).startswith("host: ") and reason in where(model)
    said = [
        record.getMessage() for record in caplog.records if "updates the weights on the host" in record.getMessage()
    ]
    assert len(said) == 1 and reason in said[0]


@pytest.mark.parametrize("overwrite, expected", [(None, "device"), (2, "host")])
def test_averages_of_weights(overwrite, expected):
    def optimizer():
        return optimizers.Adam(0.01, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=overwrite)

    assert where(require_same_fits(optimizer)).startswith(expected)


def test_an_optimizer_that_accumulates_itself_stays_on_the_host():
    model = require_same_fits(lambda: optimizers.SGD(0.1, momentum=0.9, gradient_accumulation_steps=2))
    assert where(model).startswith("host: ")


def test_a_loss_scale_that_adapts_stays_on_the_host():
    def optimizer():
        return optimizers.LossScaleOptimizer(optimizers.Adam(0.01), initial_scale=64.0, dynamic_growth_steps=3)

    assert where(require_same_fits(optimizer)).startswith("host: ")


@pytest.mark.parametrize("constraint, expected", [(keras.constraints.MaxNorm(0.5), "device"), (Halved(), "host")])
def test_constraints(constraint, expected):
    def make():
        return keras.Sequential(
            [keras.Input((WIDTH,)), layers.Dense(8, kernel_constraint=constraint), layers.Dense(3)], name="bounded"
        )

    model = require_same_fits(ON_DEVICE["nesterov"], [0, 1], make)
    assert where(model).startswith(expected)


def test_learning_rates_and_attributes_that_change_are_followed():
    """By callbacks, from the program, and between two calls of fit."""

    def optimizer():
        return optimizers.SGD(0.1, momentum=0.9)

    models = []
    for stages in (None, STAGES):
        rates = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5)
        model = fitted(optimizer, stages, [rates])
        again = {"batch_size": 4, "epochs": 1, "shuffle": False, "verbose": 0}
        model.optimizer.learning_rate = 0.3
        model.fit(X, Y, **again)
        model.optimizer.momentum, model.optimizer.weight_decay = 0.5, 0.1
        model.fit(X, Y, **again)
        state = model.optimizer.variables
        state[2].assign(np.ones(state[2].shape, "float32"))
        model.set_weights([weights * 0.5 for weights in model.get_weights()])
        model.fit(X, Y, **again)
        models.append(model)
    assert largest_difference(*models) == 0
    assert where(models[1]) == "device"


def test_a_rate_that_becomes_a_function_is_asked():
    models = [fitted(ON_DEVICE["momentum"], stages) for stages in (None, STAGES)]
    assert where(models[1]) == "device"
    for model in models:
        rates = iter(np.linspace(0.2, 0.1, 2 * ROWS))
        model.optimizer.learning_rate = lambda rates=rates: float(next(rates))
        model.fit(X, Y, batch_size=4, shuffle=False, verbose=0)
    assert largest_difference(*models) == 0
    assert where(models[1]) == "host: the learning rate is a function"


def test_attributes_that_change_again_and_again_are_left_to_the_host():
    class Decaying(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            self.model.optimizer.weight_decay = 0.01 * batch

    def optimizer():
        return optimizers.AdamW(0.01)

    models = [fitted(optimizer, stages, [Decaying()]) for stages in (None, STAGES)]
    assert largest_difference(*models) == 0
    assert where(models[1]) == "host: its attributes have changed 8 times"


def test_the_state_is_saved_and_loaded(tmp_path):
    def optimizer():
        return optimizers.AdamW(0.01, weight_decay=0.1)

    again = {"batch_size": 4, "epochs": 1, "shuffle": False, "verbose": 0}
    straight = fitted(optimizer, STAGES)
    straight.save(tmp_path / "model.keras")
    with ipu.IPUStrategy().scope():
        loaded = keras.models.load_model(tmp_path / "model.keras")
    plain = keras.models.load_model(tmp_path / "model.keras")
    for model in (straight, loaded, plain):
        model.fit(X, Y, **again)
    assert largest_difference(straight, loaded) == largest_difference(straight, plain) == 0
    assert where(straight) == where(loaded) == "device"
    for one, other in zip(straight.optimizer.variables, plain.optimizer.variables, strict=True):
        assert np.array_equal(one.numpy(), other.numpy())


@pytest.mark.parametrize("replicas", [1, 2])
def test_replicas_and_other_reductions_have_the_numbers_of_the_host(replicas):
    models = []
    for rate in (0.125, lambda: 0.125):  # a function is asked on the host
        configure(2 * replicas)
        model = under_strategy(functional)
        staged(model, STAGES).set_pipelining_options(
            gradient_accumulation_steps_per_replica=4, gradient_accumulation_reduction_method="sum"
        )
        model.compile(optimizers.SGD(rate, momentum=0.9), cross_entropy(), steps_per_execution=4)
        rows = ROWS // (16 * replicas) * 16 * replicas
        model.fit(X[:rows], Y[:rows], batch_size=4, epochs=2, shuffle=False, verbose=0)
        models.append(model)
    assert largest_difference(*models) == 0
    assert [where(model).partition(":")[0] for model in models] == ["device", "host"]


def test_programs_go_with_their_model():
    model = fitted(ON_DEVICE["Adam"], STAGES)
    execution = weakref.ref(model._abele_keras.executions["train"])
    model.compile(optimizers.SGD(0.1), cross_entropy())
    model.fit(X, Y, batch_size=4, verbose=0)
    gc.collect()
    assert execution() is None and where(model) == "device"


def test_validation_and_predictions_have_the_new_weights():
    model = require_same(trained(sequential, ON_DEVICE["Adam"], STAGES, fit={"validation_data": (X[:16], Y[:16])}))
    before = model.predict(X, batch_size=4, verbose=0)
    model.fit(X, Y, batch_size=4, shuffle=False, verbose=0)
    after = model.predict(X, batch_size=4, verbose=0)
    assert np.abs(after - before).max() > 0
    assert np.allclose(after, model(X).detach().numpy(), atol=1e-6)
