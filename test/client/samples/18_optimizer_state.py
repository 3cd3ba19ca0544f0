optimizer = poptorch.optim.Adam(model.parameters())
poptorch_model = poptorch.trainingModel(model, optimizer=optimizer)
poptorch_model(input, target)
# Saving the optimizer state
torch.save({'optimizer_state_dict': optimizer.state_dict()}, PATH)
# Destroy original model to prevent an error when wrapping the model again
poptorch_model.destroy()
new_optimizer = poptorch.optim.Adam(model.parameters())
# Loading the optimizer state back
checkpoint = torch.load(PATH)
new_optimizer.load_state_dict(checkpoint['optimizer_state_dict'])
# The new training model will use the loaded optimizer state
new_poptorch_model = poptorch.trainingModel(model, optimizer=optimizer)
