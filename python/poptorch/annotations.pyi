from abele.annotations import *
