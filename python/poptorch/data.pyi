from abele.data import *
