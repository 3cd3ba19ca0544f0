"""Mistakes that type checkers find: each line that ends in a comment `wrong`, and no other."""

import abele
import libpvti
import popdist
import popdist.poptorch
import poptorch
import pva
import torch
from abele import ipu_config, pipeline

net = torch.nn.Linear(2, 2)
options = poptorch.Options()
options.deviceIterationz(2)  # wrong
options.deviceIterations("two")  # wrong
options.Training.gradientAcumulation(4)  # wrong
options.Training.gradientAccumulation(4).gradientAcumulation(4)  # wrong
options.gradient_accumulatoin = 4  # wrong
options.outputMode("all")  # wrong
options.outputMode(poptorch.OutputMode.Everything)  # wrong
options.setExecutionStrategy("pipelined")  # wrong
options.TensorLocations.setWeightLocation("off chip")  # wrong
poptorch.BeginBlock(net, "first", ipu=1)  # wrong
poptorch.Stage("first").ipu("0")  # wrong
poptorch.identity_loss(1.0, "mean")  # wrong
poptorch.noSuchName()  # wrong
poptorch.trainingModel(net, options, "sgd")  # wrong
poptorch.optim.SGD(net.parameters(), lr="fast")  # wrong
poptorch.trainingModel(net, options).compileAndExport()  # wrong
abele.inferenceModel(net).trace("step.json", steps="many")  # wrong
abele.Options().loadFromFile()  # wrong
abele.simulate([], "1f1b", micro_batch=1)  # wrong
ipu_config.IPUConfig(layers_per_ipu="2, 3")  # wrong
ipu_config.IPUConfig().to_options(training=True)  # wrong
ipu_config.IPUConfig().replication_facter + 1  # wrong
ipu_config.get_layer_ipu([1, 2], 3)  # wrong
pipeline.parallelize_pipeline(net, {"": 1.5})  # wrong
pipeline.parallelize_modul(net, "ipu:0")  # wrong
popdist.getNumInstance()  # wrong
popdist.poptorch.Options(ipus_per_replica="two")  # wrong
libpvti.Tracepoint("channel", "label")  # wrong
libpvti.Graph("loss").addSeries("training").add("high")  # wrong
pva.openReport("profile.pop").compilation.graph.numComputeSet + 1  # wrong
pva.openTrace(4711)  # wrong
