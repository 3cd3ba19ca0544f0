from abele.losses import *
