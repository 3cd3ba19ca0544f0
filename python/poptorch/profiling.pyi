from abele.profiling import *
