from abele.options import *
