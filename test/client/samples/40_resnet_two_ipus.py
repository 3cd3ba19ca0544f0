opts = poptorch.Options()
opts.Training.gradientAccumulation(3)
opts.replicationFactor(2)

model = torchvision.models.resnet50()
model.layer4 = poptorch.BeginBlock(model.layer4, ipu_id=1)
