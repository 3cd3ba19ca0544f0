"""A Keras model as a pipeline of two devices."""

import os
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras  # type: ignore[import-untyped]
import numpy
from abele import keras as ipu


def train() -> dict[str, Any]:
    config = ipu.IPUConfig()
    config.auto_select_ipus = 2
    config.configure_ipu_system()
    strategy = ipu.IPUStrategy()
    with strategy.scope():
        inputs = keras.Input((4,))
        with ipu.PipelineStage(0):
            hidden = keras.layers.Dense(8)(inputs)
        with ipu.PipelineStage(1):
            outputs = keras.layers.Dense(1)(hidden)
        model: Any = keras.Model(inputs, outputs)
        model.set_pipelining_options(gradient_accumulation_steps_per_replica=4)
        model.compile(loss="mse", optimizer="sgd", steps_per_execution=4)
        model.fit(numpy.ones((16, 4)), numpy.ones((16, 1)), batch_size=2, verbose=0)
    devices: int = strategy.num_ipus
    assert devices == 2 and ipu.PipelineSchedule.Grouped.name == "Grouped"
    report: dict[str, Any] = ipu.execution_report(model)
    ipu.reset_ipu_configuration()
    return report


if __name__ == "__main__":
    print(len(train()["stages"]))
