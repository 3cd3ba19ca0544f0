"""Other threads use Keras while one captures a model of it."""

import threading

import torch
from keras_models import WIDTH, X, keras, layers, staged, under_strategy


class Meeting(layers.Layer):
    """A layer that runs a function on the way, once."""

    def __init__(self, **config):
        super().__init__(**config)
        self.on_the_way = []

    def call(self, inputs):
        while self.on_the_way:
            self.on_the_way.pop()()
        return inputs


def while_captured(function):
    """Calls function(model) while another thread, which predicts, is in the middle of the model's forward, whose layers
    are two stages. Returns: its result.
    """

    def make():
        given = keras.Input((WIDTH,))
        return keras.Model(given, layers.Dense(3)(meeting(layers.Dense(4)(given))))

    def meet():
        inside.set()
        assert done.wait(60)

    meeting, inside, done = Meeting(), threading.Event(), threading.Event()
    model = staged(under_strategy(make), [0, 0, 1])
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=4)
    model.compile(steps_per_execution=4)
    meeting.on_the_way = [meet]
    capture = threading.Thread(target=lambda: model.predict(X[:16], batch_size=4, verbose=0))
    capture.start()
    assert inside.wait(60)
    try:
        return function(model)
    finally:
        done.set()
        capture.join()


def seeded():
    """What Keras draws from a seed, and what a condition on values gives."""
    drawn = keras.random.normal((8,), seed=5)
    return drawn, keras.ops.cond(drawn.sum() < 100, lambda: drawn * 2, lambda: drawn)


def test_other_threads_keep_their_functions_of_keras_while_a_model_is_captured():
    expected, found = seeded(), while_captured(lambda model: seeded())
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


def test_other_threads_clone_a_model_while_its_stages_are_captured():
    called = []

    def call(layer, *args, **kwargs):
        called.append(layer)
        return layer(*args, **kwargs)

    while_captured(lambda model: keras.models.clone_model(model, call_function=call))
    assert len(called) == 3
