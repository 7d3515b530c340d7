"""What stages hand to each other: within a rank the tensor itself, between ranks a message.

Stage s of micro-batch m gets its input from stage s - 1, and the gradient of its output from stage s + 1.
"""

from collections.abc import Sequence

from torch import Tensor

from megalite.comm.collectives import PeerLost, Pending
from megalite.comm.p2p import Link
from megalite.schedule.action import Action, Op

MOST_LEAVING = 4
"""Messages of a rank that may be on their way: gloo does not tell when one has left, unless it is waited for. In a
proven program this waits at most until another rank comes to a RECV, which it surely does."""


class Mail:
    """The tensors under way to and from the stages of one rank. `placement` gives the pipeline rank of each stage."""

    def __init__(self, link: Link, placement: Sequence[int]) -> None:
        self.link, self.placement = link, placement
        self._arriving: dict[tuple[bool, int, int], Pending] = {}
        self._leaving: dict[tuple[bool, int, int], Tensor] = {}
        self._sent: list[tuple[Action, Pending]] = []

    @property
    def last_stage(self) -> int:
        return len(self.placement) - 1

    def post(self, x: Tensor, action: Action, *, backward: bool) -> None:
        """Hand on what an action made: an output to the next stage, or the gradient of an input to the one before."""
        to = action.stage - 1 if backward else action.stage + 1
        if self.placement[to] == self.link.line.rank:
            self._arriving[backward, to, action.microbatch] = Pending(x)
        else:
            self._leaving[backward, action.stage, action.microbatch] = x

    def send(self, action: Action) -> None:
        """Execute SEND_F or SEND_B. Tensors whose messages have left are let go."""
        backward = action.op is Op.SEND_B
        to = action.stage - 1 if backward else action.stage + 1
        x = self._leaving.pop((backward, action.stage, action.microbatch))
        self._sent = [(earlier, message) for earlier, message in self._sent if not message.is_done]
        self._let_go(all_but=MOST_LEAVING - 1)
        tag = self._tag(backward, to, action.microbatch)
        self._sent.append((action, self.link.send(x, to=self.placement[to], tag=tag)))

    def receive(self, action: Action, into: Tensor) -> None:
        """Execute RECV_F or RECV_B, as far as it goes without waiting."""
        backward = action.op is Op.RECV_B
        source = action.stage + 1 if backward else action.stage - 1
        key = (backward, action.stage, action.microbatch)
        self._arriving[key] = self.link.receive(into, source=self.placement[source], tag=self._tag(*key))

    def take(self, action: Action, *, backward: bool) -> Tensor | None:
        """Wait for what an action needs of another stage; None where it needs nothing."""
        arriving = self._arriving.pop((backward, action.stage, action.microbatch), None)
        if arriving is None:
            return None
        source = action.stage + 1 if backward else action.stage - 1
        what = f"the gradient of stage {source}'s input" if backward else f"the output of stage {source}"
        return self._wait(arriving, f"{action} for {what}, from pipeline rank {self.placement[source]}")

    def close(self) -> None:
        """Wait until everything has left."""
        self._let_go(all_but=0)
        assert not self._arriving and not self._leaving, "a program left messages behind"

    def _let_go(self, *, all_but: int) -> None:
        """Wait until at most so many messages are on their way."""
        while len(self._sent) > all_but:
            action, message = self._sent.pop(0)
            self._wait(message, f"{action} to leave")

    def _wait(self, message: Pending, what: str) -> Tensor:
        try:
            return message.wait()
        except PeerLost as error:
            raise PeerLost(f"pipeline rank {self.link.line.rank} waited in {what}: {error}") from error

    def _tag(self, backward: bool, stage: int, microbatch: int) -> int:
        """A number for each message of a program, from where it goes to."""
        return (microbatch * len(self.placement) + stage) * 2 + backward
