class Model(torch.nn.Module):
    def forward(self, x):
        x = poptorch.custom_op([x],
                               "LeakyRelu",
                               "com.acme",
                               1,
                               example_outputs=[x],
                               attributes={"alpha": 0.02})
        return x[0]
