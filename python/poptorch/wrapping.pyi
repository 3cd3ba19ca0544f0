from abele.wrapping import *
