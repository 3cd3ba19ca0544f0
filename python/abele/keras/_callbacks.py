"""Callbacks for every micro-batch of an execution, if set_asynchronous_callbacks() asks for them."""

import contextlib
import inspect

from keras.src.backend.torch.trainer import TorchTrainer
from keras.src.callbacks import CallbackList


class EachBatch(CallbackList):
    """The callbacks of a call of fit, evaluate or predict. Keras' loop reports executions, which are not passed on. The
    Execution reports each of their batches."""

    _step = 0

    def on_train_batch_begin(self, batch, logs=None):
        """An execution begins with this batch."""
        self._step = batch

    def on_train_batch_end(self, batch, logs=None):
        """An execution has ended. All its batches were reported."""

    on_test_batch_begin = on_predict_batch_begin = on_train_batch_begin
    on_test_batch_end = on_predict_batch_end = on_train_batch_end

    def tell(self, mode, logs):
        """Reports the results of the execution's next batch."""
        getattr(super(), f"on_{mode}_batch_begin")(self._step)
        getattr(super(), f"on_{mode}_batch_end")(self._step, logs)
        self._step += 1


@contextlib.contextmanager
def telling_each_batch(model, state, method, args, kwargs, batches):
    """The arguments for a method of Keras' trainer. While the method runs, state.each_batch gets every batch.

    batches: of an epoch; None: unknown.
    """
    bound = inspect.signature(getattr(TorchTrainer, method)).bind(model, *args, **kwargs)
    callbacks = bound.arguments.get("callbacks")
    if not state.asynchronous_callbacks or isinstance(callbacks, CallbackList):
        yield args, kwargs
        return
    verbose = bound.arguments.get("verbose", "auto")
    previous = state.each_batch
    state.each_batch = bound.arguments["callbacks"] = EachBatch(
        callbacks,
        add_history=method == "fit",
        add_progbar=verbose != 0,
        verbose=verbose,
        epochs=bound.arguments.get("epochs", 1),
        steps=batches,
        model=model,
    )
    try:
        yield bound.args[1:], bound.kwargs
    finally:
        state.each_batch = previous
