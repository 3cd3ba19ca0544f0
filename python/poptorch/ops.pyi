from abele.ops import *
