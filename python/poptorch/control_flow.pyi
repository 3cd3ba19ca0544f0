from abele.control_flow import *
