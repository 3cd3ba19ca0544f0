try:
    m = PytorchModel(model_param)
    inference_model = poptorch.inferenceModel(m)
    t1 = torch.tensor([1.])
    t2 = torch.tensor([2.])
    assert inference_model(t1, t2) == 3.0
except poptorch.RecoverableError as e:
    print(e)
    if e.recovery_action == "FULL_RESET":
        reboot_server()
    elif e.recovery_action == "IPU_RESET":
        print("Need to reset the IPU")
    elif e.recovery_action == "PARITION_RESET":
        print("Need to reset the partition")
except poptorch.UnrecoverableError as e:
    print(f"Unrecoverable error: machine needs to be taken offline: {e}")
    shutdown_system()
except poptorch.Error as e:
    print(f"Received {e.message} from component {e.type}, "
          f"location: {e.location}")
    # Or you could just print all the information at once:
    print(e)
except Exception as e:
    print(e)
