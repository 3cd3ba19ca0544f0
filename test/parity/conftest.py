import pytest
import torch


@pytest.fixture
def one_thread():
    """Eager runs with as many threads as a device has."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
