"""The loss scale: what backward is seeded with, so that small gradients do not vanish in fp16."""

from typing import Any


class ConstantScale:
    """A scale that stays; 1 where nothing needs to be scaled."""

    def __init__(self, value: float) -> None:
        self.value = value

    @property
    def may_fall(self) -> bool:
        """Whether an overflow now is nothing to worry about: a lower scale is still to be tried."""
        return False

    def update(self, *, overflow: bool) -> None:
        """Take note of a step, and of whether its gradient was not finite."""

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from there."""


class DynamicScale(ConstantScale):
    """A scale that looks for the highest that does not overflow, as Megatron does.

    The overflow that uses up `hysteresis` halves it, and so does each further one, until `window` steps in a row were
    without: then it doubles, and the hysteresis is full again. It never falls below `minimum`.
    """

    def __init__(self, initial: float, *, minimum: float, window: int, hysteresis: int) -> None:
        super().__init__(initial)
        self.minimum, self.window, self.hysteresis = minimum, window, hysteresis
        self._clean = 0
        """Steps in a row without overflow."""
        self._spare = hysteresis
        """Overflows until the scale falls."""

    @property
    def may_fall(self) -> bool:
        return self.value > self.minimum or self._spare > 1

    def update(self, *, overflow: bool) -> None:
        if overflow:
            self._clean = 0
            self._spare = max(self._spare - 1, 0)
            if self._spare == 0:
                self.value = max(self.value / 2, self.minimum)
            return
        self._clean += 1
        if self._clean == self.window:
            self._clean, self._spare, self.value = 0, self.hysteresis, self.value * 2

    def state(self) -> dict[str, Any]:
        return {"value": self.value, "clean": self._clean, "spare": self._spare}

    def load(self, state: dict[str, Any]) -> None:
        if state:
            self.value, self._clean = state["value"], state["clean"]
            self._spare = min(state["spare"], self.hysteresis)
