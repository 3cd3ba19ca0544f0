from abele.multi_conv import *
