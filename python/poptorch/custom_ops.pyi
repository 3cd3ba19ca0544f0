from abele.custom_ops import *
