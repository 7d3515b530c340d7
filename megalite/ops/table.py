"""All ops that libraries may implement."""

from megalite.ops.norm import RMS_NORM, RMS_NORM_BACKWARD

OPS = (RMS_NORM, RMS_NORM_BACKWARD)
