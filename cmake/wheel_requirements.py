"""Which torch a wheel takes, for scikit-build-core: the release that it is built with, whose C++ interface it has."""

from importlib.metadata import version


def dynamic_metadata(settings, project):
    """Source: dynamic-metadata 0.3. Returns: what is added to the project's table."""
    major, minor = version("torch").split(".")[:2]
    return {"dependencies": [f"torch=={major}.{minor}.*"]}


def dynamic_wheel(settings):
    """A source distribution does not know it yet."""
    return {"dependencies": True}
