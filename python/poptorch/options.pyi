from abele.options import *
from abele.strategies import *
