"""Checks for Keras 3 with the torch backend. The first module that this package loads."""

import importlib.util
import sys

_INSTALL = "pip install --no-deps keras absl-py rich namex h5py optree ml_dtypes markdown-it-py mdurl"


def require_keras():
    """Returns: the module keras.

    Raises:
        ImportError: keras is missing, older than version 3, or computes with another library than torch.
    """
    try:
        found = importlib.util.find_spec("keras")
    except ValueError:  # sys.modules has a module of this name without a specification
        found = sys.modules.get("keras")
    if found is None:
        raise ImportError(
            "abele.keras needs Keras 3, which is not installed\n"
            f"  try       {_INSTALL}   (beside an installed torch and numpy)",
            name="keras",
        )
    import keras

    version = getattr(keras, "__version__", "unknown")
    if not version.split(".")[0].isdigit() or int(version.split(".")[0]) < 3:
        raise ImportError(
            f"abele.keras needs Keras 3\n  found     Keras {version}\n  expected  version 3 or newer\n"
            f"  try       {_INSTALL}",
            name="keras",
        )
    backend = keras.config.backend()
    if backend != "torch":
        raise ImportError(
            "abele.keras needs Keras with the torch backend\n"
            f"  found     the backend {backend!r}\n  expected  'torch'\n"
            "  try       set the environment variable KERAS_BACKEND=torch before keras is imported first, e.g.\n"
            "            os.environ['KERAS_BACKEND'] = 'torch'",
            name="keras",
        )
    return keras
