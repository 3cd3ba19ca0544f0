from abele.enums import *
