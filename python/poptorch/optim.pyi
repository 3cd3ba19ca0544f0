from abele.optim import *
