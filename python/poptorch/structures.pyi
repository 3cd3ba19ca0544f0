from abele.structures import *
