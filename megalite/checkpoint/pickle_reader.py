"""Reading pickles without running them: an interpreter of their opcodes that can build data and nothing else.

A pickle is a program, and the names in it may be any function of any module. Here no module is imported: a name stands
for an entry of a table of ours, and one that is in no table ends the reading.
"""

import pickletools
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import IO, Any

_VALUES = frozenset({
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT",
    "STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8",
    "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8",
})  # fmt: skip
"""Opcodes that push the value beside them."""


@dataclass(kw_only=True, eq=False)
class Inert:
    """An object of a class that we do not have, or such a class: what was said of it, as data."""

    name: str
    arguments: tuple[Any, ...] = ()
    state: Any = None


Make = Callable[..., Any]
"""What calling a name gives; it must be a function of ours that only puts data together."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Name:
    """A name that the table knows."""

    name: str
    make: Make


def read_pickle(source: IO[bytes], known: Callable[[str], Make | None], stored: Callable[[Any], Any]) -> Any:
    """The data of one pickle, read up to its end and no further.

    `known` gives for `module.name` what a call of it makes, or None to refuse it; `stored` makes of a reference to
    something outside the pickle what stands for it. Raises ValueError for anything but data.
    """
    machine = _Machine(known=known, stored=stored)
    try:
        for opcode, argument, _ in pickletools.genops(source):
            if opcode.name == "STOP":
                return machine.stack.pop()
            machine.do(opcode.name, argument)
    except (LookupError, TypeError, AttributeError, OverflowError, struct.error) as error:
        raise ValueError(f"its pickle is damaged: {type(error).__name__}: {error}") from error
    raise ValueError("its pickle has no end")


@dataclass(kw_only=True)
class _Machine:
    """The stack of a pickle, the stacks below its marks, and what it remembers."""

    known: Callable[[str], Make | None]
    stored: Callable[[Any], Any]
    stack: list[Any] = field(default_factory=list)
    below: list[list[Any]] = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)

    def do(self, opcode: str, argument: Any) -> None:
        if opcode in _VALUES:
            self.push(argument)
        elif opcode in _RULES:
            _RULES[opcode](self, argument)
        else:
            raise ValueError(f"its pickle uses {opcode}, which no data need")

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def since_mark(self) -> list[Any]:
        items, self.stack = self.stack, self.below.pop()
        return items

    def mark(self) -> None:
        self.below.append(self.stack)
        self.stack = []

    def take(self, count: int) -> list[Any]:
        """The last values, in their order."""
        if count > len(self.stack):
            raise IndexError("the stack is empty")
        items = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        return items

    def name(self, module: str, attribute: str) -> None:
        full = f"{module}.{attribute}"
        make = self.known(full)
        if make is None:
            raise ValueError(
                f"its pickle names {full}, which is neither a tensor nor plain data: unpickling could run code. "
                "Nothing of it was run."
            )
        self.push(Name(name=full, make=make))

    def call(self, called: Any, arguments: Any) -> None:
        if not isinstance(called, Name) or not isinstance(arguments, tuple):
            raise ValueError("its pickle calls what is no name of a class or function")
        self.push(called.make(*arguments))

    def build(self) -> None:
        """The state of an object; of containers and tensors it is attributes, which nothing here reads."""
        [state] = self.take(1)
        if isinstance(self.stack[-1], Inert):
            self.stack[-1].state = state

    def top(self, kind: type) -> Any:
        """The container on the stack; for an object of a class of its own, one that is thrown away."""
        value = self.stack[-1]
        if isinstance(value, Inert):
            return kind()
        if type(value) is not kind:
            raise TypeError(f"{type(value).__name__} where a {kind.__name__} is due")
        return value

    def extend(self, items: list[Any]) -> None:
        self.top(list).extend(items)

    def update(self, items: list[Any]) -> None:
        self.top(dict).update(_pairs(items))

    def include(self, items: list[Any]) -> None:
        self.top(set).update(map(plain_key, items))


def plain_key(value: Any) -> Any:
    """The value, if it may be a key or a member of a set.

    A tuple in a tuple may not: hashing follows any depth on the stack of the process, and ends it.
    """
    flat = value if type(value) is tuple else (value,)
    if not all(isinstance(item, str | bytes | int | float | Inert | Name | None) for item in flat):
        raise TypeError("a key that is no plain value")
    return value


def _pairs(items: list[Any]) -> dict[Any, Any]:
    return {plain_key(key): value for key, value in zip(items[::2], items[1::2], strict=True)}


_RULES: Mapping[str, Callable[[_Machine, Any], Any]] = {
    "PROTO": lambda m, _: None,
    "FRAME": lambda m, _: None,
    "MARK": lambda m, _: m.mark(),
    "POP": lambda m, _: m.take(1) if m.stack else m.since_mark(),
    "POP_MARK": lambda m, _: m.since_mark(),
    "DUP": lambda m, _: m.push(m.stack[-1]),
    "NONE": lambda m, _: m.push(None),
    "NEWTRUE": lambda m, _: m.push(True),
    "NEWFALSE": lambda m, _: m.push(False),
    "EMPTY_LIST": lambda m, _: m.push([]),
    "EMPTY_TUPLE": lambda m, _: m.push(()),
    "EMPTY_DICT": lambda m, _: m.push({}),
    "EMPTY_SET": lambda m, _: m.push(set()),
    "LIST": lambda m, _: m.push(m.since_mark()),
    "TUPLE": lambda m, _: m.push(tuple(m.since_mark())),
    "TUPLE1": lambda m, _: m.push(tuple(m.take(1))),
    "TUPLE2": lambda m, _: m.push(tuple(m.take(2))),
    "TUPLE3": lambda m, _: m.push(tuple(m.take(3))),
    "DICT": lambda m, _: m.push(_pairs(m.since_mark())),
    "FROZENSET": lambda m, _: m.push(frozenset(map(plain_key, m.since_mark()))),
    "APPEND": lambda m, _: m.extend(m.take(1)),
    "APPENDS": lambda m, _: m.extend(m.since_mark()),
    "SETITEM": lambda m, _: m.update(m.take(2)),
    "SETITEMS": lambda m, _: m.update(m.since_mark()),
    "ADDITEMS": lambda m, _: m.include(m.since_mark()),
    "PUT": lambda m, number: m.memo.update({number: m.stack[-1]}),
    "BINPUT": lambda m, number: m.memo.update({number: m.stack[-1]}),
    "LONG_BINPUT": lambda m, number: m.memo.update({number: m.stack[-1]}),
    "MEMOIZE": lambda m, _: m.memo.update({len(m.memo): m.stack[-1]}),
    "GET": lambda m, number: m.push(m.memo[number]),
    "BINGET": lambda m, number: m.push(m.memo[number]),
    "LONG_BINGET": lambda m, number: m.push(m.memo[number]),
    "GLOBAL": lambda m, name: m.name(*name.split(" ", 1)),
    "STACK_GLOBAL": lambda m, _: m.name(*m.take(2)),
    "REDUCE": lambda m, _: m.call(*m.take(2)),
    "NEWOBJ": lambda m, _: m.call(*m.take(2)),
    "NEWOBJ_EX": lambda m, _: m.call(*m.take(3)[:2]),
    "BUILD": lambda m, _: m.build(),
    "BINPERSID": lambda m, _: m.push(m.stored(*m.take(1))),
}
