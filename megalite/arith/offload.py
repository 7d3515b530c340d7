"""Bytes of the optimizer's states where a part of them is kept elsewhere than on the device."""

from fractions import Fraction

from megalite.arith.memory import StateBytes, state_bytes


def offloaded(
    parameters: int, share: float, *, param_bytes: int, moments: int | Fraction, shards: int = 1, grad_shards: int = 1
) -> tuple[StateBytes, StateBytes]:
    """What is on the device, and what is not.

    What is offloaded has main parameters of its own in any precision: with Adam 12 bytes a parameter.
    """
    all_here = state_bytes(parameters, param_bytes=param_bytes, moments=moments, shards=shards, grad_shards=grad_shards)
    owned, main = -(-parameters // shards), max(param_bytes, 4)
    away = round(share * owned)
    here = StateBytes(
        params=all_here.params,
        main_params=(owned - away) * main if param_bytes < main else 0,
        main_grads=all_here.main_grads,
        moments=round((owned - away) * main * moments),
    )
    return here, StateBytes(params=0, main_params=away * main, main_grads=0, moments=round(away * main * moments))
