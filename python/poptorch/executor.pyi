from ._poplar_executor import *
