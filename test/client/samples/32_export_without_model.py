poptorch_model.compileAndExport(filename, input, target, export_model=False)
