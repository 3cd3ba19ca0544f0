class Network(torch.nn.Module):
    def forward(self, x, y):
        if poptorch.isRunningOnIpu():
            # IPU path
            return my_custom_operator(x, y)
        else:
            # CPU path
            return my_torch_implementation(x,y)
