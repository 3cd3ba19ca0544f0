"""PopTorch's DataLoader: torch's workers persist by default. Source: spec data.md, section 2."""

import abele.data


class DataLoader(abele.data.DataLoader):
    __doc__ = abele.data.DataLoader.__doc__

    _workers_persist = True
