"""All ops that libraries may implement."""

from megalite.ops.activation import GLU, GLU_BACKWARD
from megalite.ops.cross_entropy import CROSS_ENTROPY, CROSS_ENTROPY_BACKWARD
from megalite.ops.norm import RMS_NORM, RMS_NORM_BACKWARD

OPS = (RMS_NORM, RMS_NORM_BACKWARD, CROSS_ENTROPY, CROSS_ENTROPY_BACKWARD, GLU, GLU_BACKWARD)
