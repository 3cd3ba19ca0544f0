opts = poptorch.Options()
opts.loadFromFile("tmp/poptorch.conf")
