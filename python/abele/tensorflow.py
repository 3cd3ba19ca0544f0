"""Runs programs for TensorFlow's Keras on IPUs unchanged, if they use only Keras.

    python -m abele.tensorflow program.py arguments...

or `import abele.tensorflow` as the first line of a program. From then on these imports of the process find:

    tensorflow.keras, and its modules    keras, and its modules
    tensorflow.python.ipu                abele.keras
    tensorflow                           keras, python.ipu, random.set_seed, names of types (float32)

Other names of TensorFlow raise AttributeError or ImportError. Keras itself continues without TensorFlow. No module of
abele imports this module.

Raises, at import:
    ImportError: TensorFlow itself was imported before, or abele.keras raised it.
"""

import importlib
import importlib.abc
import importlib.machinery
import os
import runpy
import sys
import types

if "tensorflow" in sys.modules and not hasattr(sys.modules["tensorflow"], "_is_abeles"):
    raise ImportError("abele.tensorflow stands for TensorFlow, which has been imported already", name="tensorflow")
os.environ.setdefault("KERAS_BACKEND", "torch")

from . import keras as _ipu  # first, because it explains a missing Keras

# isort: split
import keras
import numpy
from keras.src.utils import module_utils

_VERSION = "0.0.0+abele"
_ALIASES = {"tensorflow.keras": "keras", "tensorflow.python.keras": "keras", "tensorflow.python.ipu": "keras.ipu"}
_NAMES = ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8")


def _missing(name):
    return (
        f"{name} is not there: abele.tensorflow stands for TensorFlow's Keras only. Use keras, numpy or torch for it."
    )


class _LookAlike(types.ModuleType):
    """A module of TensorFlow with only some of its names."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(_missing(f"{self.__name__}.{name}"))


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """tensorflow.keras.layers is the module keras.layers, and so on."""

    def find_spec(self, fullname, path=None, target=None):
        """The specification of a module that replaces TensorFlow's; None for other modules."""
        if self._real(fullname):
            return importlib.machinery.ModuleSpec(fullname, self)
        if fullname.startswith("tensorflow."):
            raise ModuleNotFoundError(_missing(fullname), name=fullname)
        return None

    @staticmethod
    def _real(fullname):
        for alias, real in _ALIASES.items():
            if fullname == alias or fullname.startswith(f"{alias}."):
                return real + fullname[len(alias) :]
        return None

    def create_module(self, spec):
        """The module that replaces the name."""
        module = importlib.import_module(self._real(spec.name))
        self._spec = module.__spec__
        return module

    def exec_module(self, module):
        """Restores the module's own specification, because import gave it the one of its other name."""
        module.__spec__ = self._spec


def _module(name, **values):
    module = _LookAlike(name)
    module.__path__ = []
    module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    module._is_abeles = True
    vars(module).update(values)
    sys.modules[name] = module
    return module


def _publish():
    module_utils.tensorflow._available = False  # tells Keras that TensorFlow is absent
    sys.meta_path.insert(0, _Finder())
    python = _module("tensorflow.python", ipu=_ipu, keras=keras)
    random = types.SimpleNamespace(set_seed=keras.utils.set_random_seed)
    types_of_numpy = {name: numpy.dtype(name).name for name in _NAMES}
    _module("tensorflow", __version__=_VERSION, keras=keras, python=python, random=random, **types_of_numpy)


_publish()


def main(arguments):
    """Runs a program: its path, then its arguments."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print("Usage: python -m abele.tensorflow program.py [arguments...]")
        return 0 if arguments else 2
    sys.argv[:] = arguments
    sys.path[0] = os.path.dirname(os.path.abspath(arguments[0]))
    runpy.run_path(arguments[0], run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
