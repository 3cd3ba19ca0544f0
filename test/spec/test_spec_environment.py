"""spec environment.md, sections 1 to 3: import, logging, variables."""

import json
import logging
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import poptorch
import pytest
import torch
from support import warm

PYTHON = Path(poptorch.__file__).parents[1]
MODEL = """
    import poptorch, torch
    model = poptorch.inferenceModel(torch.nn.Linear(2, 3))
    model(torch.ones(1, 2))
"""


def run(program, check=True, python=(sys.executable,), **variables):
    done = subprocess.run(
        [*python, "-c", textwrap.dedent(program)],
        env={**os.environ, "PYTHONPATH": str(PYTHON), **variables},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert not check or done.returncode == 0, done.stderr
    return done


def small():
    return poptorch.inferenceModel(torch.nn.Linear(2, 3))


def run_small():
    # Lines that other tests of the process repeated are shown all the same.
    options = poptorch.Options().maxRepeatLogs(None)
    return poptorch.inferenceModel(torch.nn.Linear(2, 3), options)(torch.ones(1, 2))


# Import ---------------------------------------------------------------------------------------------------------------
@pytest.mark.spec("environment/1", names=["poptorch.__version__"])
def test_what_an_import_does_to_the_process(tmp_path):
    done = run(
        """
        import os, signal, sys
        before = set(sys.modules)
        import torch
        with_torch = set(sys.modules)
        import poptorch
        heavy = {"tqdm", "pandas", "matplotlib", "torchvision", "transformers", "asyncio", "http", "xml"}
        print(sorted(heavy & (set(sys.modules) - with_torch)))
        for name in ("options", "enums", "ops", "optim", "profiling", "poptorch_core"):
            assert hasattr(poptorch, name), name
        assert not hasattr(poptorch, "experimental") and not hasattr(poptorch, "functional")
        assert "poptorch.testing" not in sys.modules
        from poptorch import poptorch_core
        assert poptorch_core.Error is poptorch.Error and not poptorch_core.isCompilingWithDispatcher()
        """
    )
    assert done.stdout == "[]\n"
    assert (Path(poptorch.__file__).parent / "py.typed").exists()
    assert re.fullmatch(r"\d+\.\d+\.\d+-\S+", poptorch.__version__)


@pytest.mark.spec("environment/1")
def test_a_missing_native_part_is_told(tmp_path):
    package = tmp_path / "abele"
    package.mkdir()
    for file in (PYTHON / "abele").glob("*.py*"):
        (package / file.name).write_text(file.read_text())
    os.symlink(PYTHON / "poptorch", tmp_path / "poptorch")
    done = run(
        f"""
        import sys
        sys.path[:] = [{str(tmp_path)!r}] + [p for p in sys.path if p != {str(PYTHON)!r}]
        try:
            import poptorch
        except ImportError as error:
            print("told:", error)
        """,
    )
    assert "told:" in done.stdout and "wheel" in done.stdout


@pytest.mark.spec("environment/1")
def test_another_torch_is_refused():
    done = run(
        """
        import torch
        torch.__version__ = "9.9.0"
        try:
            import poptorch
        except AssertionError as error:
            print("told:", error)
        """,
    )
    assert "told:" in done.stdout and "9.9.0" in done.stdout


@pytest.mark.spec("environment/1")
def test_options_as_the_backend_takes_them_are_checked():
    from poptorch import poptorch_core

    values = poptorch.Options().outputMode(poptorch.OutputMode.All).toDict()
    poptorch_core._validateOptions(values)
    for wrong in ({"no_such_option": 1}, {"logDir": 3}):
        with pytest.raises(poptorch.Error):
            poptorch_core._validateOptions({**values, **wrong})
    with pytest.raises(poptorch.RecoverableError) as caught:
        poptorch_core._throwTestError(poptorch_core.TestErrorType.PoplarRecoverableFullReset)
    assert caught.value.recovery_action == "FULL_RESET"
    assert caught.value.type == "poplar_recoverable_runtime_error"
    with pytest.raises(poptorch.Error) as caught:
        poptorch_core._throwTestError(poptorch_core.TestErrorType.Popart)
    assert caught.value.type == "popart_exception" and caught.value.message


# Logging --------------------------------------------------------------------------------------------------------------
@pytest.fixture
def level():
    before = poptorch.logger.level
    yield
    poptorch.setLogLevel("WARN")
    poptorch.logger.setLevel(before)


LEVELS = {"TRACE": (0, 10), "DEBUG": (1, 10), "INFO": (2, 20), "WARN": (3, 30), "ERR": (4, 40), "OFF": (6, 50)}


@pytest.mark.spec(*(f"environment/2/{name}" for name in LEVELS), names=["poptorch.setLogLevel", "poptorch.logger"])
def test_log_levels(level):
    for name, (number, python) in LEVELS.items():
        for given in (name, number):
            poptorch.setLogLevel(given)
            assert poptorch.logger.level == python
    for internal in ("TRACE_ALL", "DEBUG_IR"):
        poptorch.setLogLevel(internal)
        assert poptorch.logger.level == logging.DEBUG
    for wrong in ("LOUD", "warn", 5, -1, None, 2.5, True):
        with pytest.raises(ValueError) as caught:
            poptorch.setLogLevel(wrong)
        assert all(name in str(caught.value) for name in LEVELS) and "TRACE_ALL" not in str(caught.value)
    poptorch.setLogLevel("ERR")
    poptorch._logging.setPopartLogLevel("DEBUG")
    assert poptorch.logger.level == logging.ERROR
    for wrong in (1, "LOUD"):
        with pytest.raises(ValueError):
            poptorch._logging.setPopartLogLevel(wrong)


@pytest.mark.spec("environment/2/WARN", names=["poptorch.logger"])
def test_the_form_of_a_line(level, capsys):
    poptorch.setLogLevel("INFO")
    poptorch.logger.info("seen %d", 3)
    poptorch.logger.debug("not seen")
    poptorch.logger.error("bad")
    lines = capsys.readouterr().err.splitlines()
    assert [re.sub(r"\d", "0", line) for line in lines] == [
        "[00:00:00.000] [poptorch::python] [info] seen 0",
        "[00:00:00.000] [poptorch::python] [error] bad",
    ]
    assert poptorch.logger.name == "poptorch::python" and poptorch.logger.propagate


NATIVE = r"\[\d\d:\d\d:\d\d\.\d{3}\] \[poptorch:cpp\] \[(\w+)\] (.*)"


def native_lines(text):
    return re.findall(NATIVE, text)


@pytest.mark.spec(
    "environment/2/TRACE",
    "environment/2/DEBUG",
    "environment/2/OFF",
    "environment/3/POPTORCH_MAX_GRAPH_LEN",
    names=["variables.POPTORCH_MAX_GRAPH_LEN"],
)
def test_what_the_native_log_shows(level, capfd, monkeypatch):
    def shown(name):
        poptorch.setLogLevel(name)
        run_small()
        return capfd.readouterr().err

    assert not native_lines(shown("WARN")) and not native_lines(shown("OFF"))
    debug = native_lines(shown("DEBUG"))
    assert {kind for kind, _ in debug} == {"debug"} and any("assign-stages" in text for _, text in debug)
    text = shown("TRACE")
    assert "trace" in {kind for kind, _ in native_lines(text)} and "Session::run" not in text
    (captured,) = re.findall(r"captured graph:\n((?:.*\n)*?)\.\.\. and \d+ lines", text)
    assert captured.count("\n") == 10
    monkeypatch.setenv("POPTORCH_MAX_GRAPH_LEN", "2")
    assert "addmm" not in shown("TRACE")
    monkeypatch.setenv("POPTORCH_MAX_GRAPH_LEN", "0")
    text = shown("TRACE")
    assert "addmm" in text and not re.search(r"\.\.\. and \d+ lines", text)
    text = shown("DEBUG_IR")
    assert "addmm" in text and "Session::run" not in text
    assert "Session::run begins" in shown("TRACE_ALL")
    monkeypatch.setenv("POPTORCH_MAX_GRAPH_LEN", "many")
    with pytest.raises(poptorch.Error, match="POPTORCH_MAX_GRAPH_LEN"):
        run_small()


@pytest.mark.spec("environment/2/DEBUG", names=["Options.maxRepeatLogs"])
def test_repeated_lines_stop(level, capfd):
    def count(limit):
        poptorch.setLogLevel("DEBUG")
        for _ in range(3):
            poptorch.inferenceModel(torch.nn.Linear(2, 3), poptorch.Options().maxRepeatLogs(limit))(torch.ones(1, 2))
        return sum("pass dce" in text for _, text in native_lines(capfd.readouterr().err))

    assert count(None) == 3 and count(0) == 0


@pytest.mark.spec(
    "environment/3/POPTORCH_LOG_LEVEL",
    "environment/3/POPTORCH_LOG_DEST",
    names=["variables.POPTORCH_LOG_LEVEL", "variables.POPTORCH_LOG_DEST"],
)
def test_the_log_of_the_environment(tmp_path):
    log = tmp_path / "log.txt"
    log.write_text("of an earlier run\n")
    done = run(MODEL, python=warm.python(), POPTORCH_LOG_LEVEL="DEBUG", POPTORCH_LOG_DEST=str(log))
    assert native_lines(log.read_text()) and "earlier" not in log.read_text()
    assert "poptorch:cpp" not in done.stderr and "[poptorch::python] [debug]" in done.stderr
    assert "device_iterations=1" in done.stderr  # option values
    assert native_lines(run(MODEL, python=warm.python(), POPTORCH_LOG_LEVEL="DEBUG", POPTORCH_LOG_DEST="stdout").stdout)
    for wrong in ({"POPTORCH_LOG_LEVEL": "LOUD"}, {"POPTORCH_LOG_DEST": str(log / "inside.txt")}):
        done = run("import poptorch", check=False, python=warm.python(), **wrong)
        assert done.returncode == 1 and "Error" in done.stderr and list(wrong.values())[0] in done.stderr


# Variables ------------------------------------------------------------------------------------------------------------
@pytest.mark.spec(
    "environment/3/POPTORCH_IPU_MODEL",
    "environment/3/POPTORCH_SMALL_IPU_MODEL",
    "environment/3/POPTORCH_IPU_MODEL_VERSION",
    names=[
        "variables.POPTORCH_IPU_MODEL",
        "variables.POPTORCH_SMALL_IPU_MODEL",
        "variables.POPTORCH_IPU_MODEL_VERSION",
    ],
)
def test_the_modelled_device(monkeypatch, caplog):
    caplog.set_level(logging.INFO, poptorch.logger.name)

    def modelled(opts=None):
        caplog.clear()
        result = poptorch.inferenceModel(torch.nn.Linear(2, 3), opts)(torch.ones(1, 2))
        assert result.shape == (1, 3)
        return [r.getMessage() for r in caplog.records if "modelled" in r.getMessage()]

    assert not modelled()
    for name in ("POPTORCH_IPU_MODEL", "POPTORCH_SMALL_IPU_MODEL"):
        monkeypatch.setenv(name, "1")
        assert "ipu2" in modelled()[0] and not poptorch.ipuHardwareIsAvailable()
        assert not modelled(poptorch.Options().useIpuModel(False))
        monkeypatch.setenv(name, "0")
        assert not modelled() and poptorch.ipuHardwareIsAvailable()
        monkeypatch.setenv(name, "yes")
        with pytest.raises(poptorch.Error, match=name):
            modelled()
        monkeypatch.delenv(name)
    monkeypatch.setenv("POPTORCH_IPU_MODEL_VERSION", "ipu21")
    assert "ipu21" in modelled(poptorch.Options().useIpuModel(True))[0] and not modelled()
    monkeypatch.setenv("POPTORCH_IPU_MODEL_VERSION", "ipu3")
    with pytest.raises(poptorch.Error, match="ipu3"):
        modelled(poptorch.Options().useIpuModel(True))


@pytest.mark.spec(
    "environment/3/POPTORCH_WAIT_FOR_IPU",
    names=["variables.POPTORCH_WAIT_FOR_IPU"],
    no_effect="emulated devices are shared unless ABELE_EXCLUSIVE_DEVICES is set: test/client/test_monitor.py",
)
def test_waiting_for_devices(monkeypatch):
    for value in ("0", "1", ""):
        monkeypatch.setenv("POPTORCH_WAIT_FOR_IPU", value)
        assert run_small().shape == (1, 3)
    monkeypatch.setenv("ABELE_EMULATED_DEVICES", "0")  # none will ever be free
    with pytest.raises(poptorch.Error, match="devices"):
        run_small()
    monkeypatch.delenv("ABELE_EMULATED_DEVICES")
    monkeypatch.setenv("POPTORCH_WAIT_FOR_IPU", "soon")
    with pytest.raises(poptorch.Error, match="POPTORCH_WAIT_FOR_IPU"):
        run_small()


@pytest.mark.spec("environment/3/POPTORCH_CACHE_DIR", names=["variables.POPTORCH_CACHE_DIR"])
def test_the_cache_folder_of_the_environment(monkeypatch, caplog, tmp_path):
    caplog.set_level(logging.INFO, poptorch.logger.name)
    monkeypatch.setenv("POPTORCH_CACHE_DIR", str(tmp_path))
    assert poptorch.Options()._Popart.options["cachePath"] == str(tmp_path)
    assert str(tmp_path) in caplog.text
    monkeypatch.delenv("POPTORCH_CACHE_DIR")
    assert "cachePath" not in poptorch.Options()._Popart.options


@pytest.mark.spec("environment/3/POPTORCH_DEFAULT_OPTIONS", names=["variables.POPTORCH_DEFAULT_OPTIONS"])
def test_default_options_of_the_environment(monkeypatch):
    monkeypatch.setenv(
        "POPTORCH_DEFAULT_OPTIONS", json.dumps({"deviceIterations": 3, "Training.gradientAccumulation": 2})
    )
    opts = poptorch.Options()
    assert (opts.device_iterations, opts.Training.gradient_accumulation) == (3, 2)
    monkeypatch.setenv("POPTORCH_DEFAULT_OPTIONS", json.dumps({"deviceIterations": 4}))
    assert poptorch.Options().device_iterations == 4


@pytest.mark.spec(
    "environment/3/POPTORCH_EXPORT_PROTO_FILE",
    "environment/3/POPTORCH_EXPORT_PROTO_AS_BINARY",
    names=["variables.POPTORCH_EXPORT_PROTO_FILE", "variables.POPTORCH_EXPORT_PROTO_AS_BINARY"],
)
def test_graphs_are_exported(monkeypatch, tmp_path):
    monkeypatch.setenv("POPTORCH_EXPORT_PROTO_FILE", str(tmp_path / "deep" / "graph.txt"))
    run_small()
    text = (tmp_path / "deep" / "graph.txt").read_text()
    assert text.startswith("graph ") and "addmm" in text
    monkeypatch.setenv("POPTORCH_EXPORT_PROTO_FILE", str(tmp_path))
    monkeypatch.setenv("POPTORCH_EXPORT_PROTO_AS_BINARY", "1")
    run_small()
    assert b"graph @" not in (tmp_path / "model.proto").read_bytes()[:8]
    monkeypatch.setenv("POPTORCH_EXPORT_PROTO_AS_BINARY", "0")
    run_small()
    assert (tmp_path / "model.proto").read_text() == text
    monkeypatch.setenv("POPTORCH_EXPORT_PROTO_AS_BINARY", "on")
    with pytest.raises(poptorch.Error, match="POPTORCH_EXPORT_PROTO_AS_BINARY"):
        run_small()
    monkeypatch.delenv("POPTORCH_EXPORT_PROTO_AS_BINARY")
    monkeypatch.setenv("POPTORCH_EXPORT_PROTO_FILE", str(tmp_path / "model.proto" / "inside" / "file"))
    with pytest.raises(poptorch.Error, match="POPTORCH_EXPORT_PROTO_FILE"):
        run_small()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    monkeypatch.setenv("POPTORCH_EXPORT_PROTO_FILE", str(tmp_path / "loop" / "file"))
    with pytest.raises(poptorch.Error, match="POPTORCH_EXPORT_PROTO_FILE"):
        run_small()


@pytest.mark.spec(
    "environment/3/OMPI_COMM_WORLD_SIZE",
    "environment/9",
    names=["variables.OMPI_COMM_WORLD_SIZE", "variables.OMPI_COMM_WORLD_RANK", "Distributed.setEnvVarNames"],
)
def test_processes_of_mpi(monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "2")
    opts = poptorch.Options()
    assert (opts.Distributed.numProcesses, opts.Distributed.processId) == (4, 2)
    loader = poptorch.DataLoader(opts, torch.utils.data.TensorDataset(torch.arange(8)), 1)
    assert [int(batch[0]) for batch in loader] == [4, 5]
    opts = poptorch.Options()
    opts.Distributed.disable()
    assert opts.Distributed.numProcesses == 1
    monkeypatch.setenv("MY_SIZE", "3")
    monkeypatch.setenv("MY_RANK", "1")
    opts.Distributed.setEnvVarNames("MY_SIZE", "MY_RANK")
    assert (opts.Distributed.numProcesses, opts.Distributed.processId) == (3, 1)
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "first")
    with pytest.raises(poptorch.Error, match="OMPI_COMM_WORLD_RANK"):
        poptorch.Options()
    for size, rank, name in [("-1", "0", "OMPI_COMM_WORLD_SIZE is -1"), ("4", "4", "OMPI_COMM_WORLD_RANK is 4")]:
        monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", size)
        monkeypatch.setenv("OMPI_COMM_WORLD_RANK", rank)
        with pytest.raises(poptorch.Error, match=f"(?s)E0702.*{name}.*expected"):
            poptorch.Options()


@pytest.mark.spec("environment/3/POPLAR_ENGINE_OPTIONS", names=["variables.POPLAR_ENGINE_OPTIONS"])
def test_engine_options_are_read_when_a_model_is_compiled(monkeypatch, caplog, tmp_path):
    monkeypatch.chdir(tmp_path)
    model = poptorch.inferenceModel(torch.nn.Linear(2, 3), poptorch.Options().enableProfiling(str(tmp_path)))
    monkeypatch.setenv("POPLAR_ENGINE_OPTIONS", '{"autoReport.directory":"elsewhere"}')
    caplog.set_level(logging.WARNING, poptorch.logger.name)
    assert model(torch.ones(1, 2)).shape == (1, 3)
    assert "autoReport.directory" in caplog.text and "wins" in caplog.text
    monkeypatch.setenv("POPLAR_ENGINE_OPTIONS", "autoReport.all=true")
    with pytest.raises(poptorch.Error, match="POPLAR_ENGINE_OPTIONS"):
        run_small()


@pytest.mark.spec("environment/3/POPLAR_LOG_LEVEL")
def test_variables_of_lower_layers_are_ignored(monkeypatch):
    for name in ("POPLAR_LOG_LEVEL", "POPART_LOG_LEVEL", "POPLAR_TARGET_OPTIONS"):
        monkeypatch.setenv(name, "anything")
    assert run_small().shape == (1, 3)


@pytest.mark.spec("environment/1")
def test_a_program_without_standard_error():
    done = run("""
        import sys
        sys.stderr = None
        import torch, poptorch
        model = poptorch.inferenceModel(torch.nn.Linear(2, 2))
        model(torch.ones(1, 2))
        poptorch.logger.warning("nobody reads this")
        model.compile(torch.ones(1, 2))
        print("done")
    """)
    assert done.stdout == "done\n"
