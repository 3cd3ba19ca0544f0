from abele.strategies import *
