"""Other threads use Keras while one captures a model of it."""

import threading

import torch
from keras_models import WIDTH, X, keras, layers, under_strategy


class Meeting(layers.Layer):
    """A layer that runs a function on the way, once."""

    def __init__(self):
        super().__init__()
        self.on_the_way = []

    def call(self, inputs):
        while self.on_the_way:
            self.on_the_way.pop()()
        return inputs


def captured(on_the_way):
    """Predicts, and so captures, on a thread of its own, with a function in the middle of forward."""
    meeting = Meeting()
    model = under_strategy(lambda: keras.Sequential([keras.Input((WIDTH,)), layers.Dense(4), meeting]))
    meeting.on_the_way = [on_the_way]
    return threading.Thread(target=lambda: model.predict(X[:16], batch_size=16, verbose=0))


def seeded():
    """What Keras draws from a seed, and what a condition on values gives."""
    drawn = keras.random.normal((8,), seed=5)
    return drawn, keras.ops.cond(drawn.sum() < 100, lambda: drawn * 2, lambda: drawn)


def test_other_threads_keep_their_functions_of_keras_while_a_model_is_captured():
    expected, inside, done, found = seeded(), threading.Event(), threading.Event(), []

    def meet():
        inside.set()
        assert done.wait(60)

    capture = captured(meet)
    capture.start()
    assert inside.wait(60)
    found += seeded()
    done.set()
    capture.join()
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))
