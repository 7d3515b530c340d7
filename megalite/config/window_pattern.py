"""How --window-size and patterns of layers are read."""

import ast


def window_size(text: str | None) -> int | None:
    """The left side of `left,right`, in parentheses or not."""
    if text is None:
        return None
    try:
        left, right = (int(side) for side in text.strip("()[] ").split(","))
    except ValueError:
        raise ValueError(f"--window-size {text} is not `left,right`. Try 128,0.") from None
    if right != 0 or left < -1:
        raise ValueError(
            f"--window-size {text}: a causal window is 0 to the right and -1 or more to the left. Try 128,0."
        )
    return None if left == -1 else left


def pattern(text: str | None, layers: int) -> list[bool]:
    """Whether each layer is windowed: `N`: all but every N-th."""
    if text is None:
        return [True] * layers
    return layer_pattern(text, layers, flag="--window-attn-skip-freq", nth=False)


def layer_pattern(text: str, layers: int, *, flag: str, nth: bool) -> list[bool]:
    """Something that each layer does or not. `N`: every N-th `nth`, the others not so; or a list of 1 and 0, also as in
    `[1]*3+[0]`.
    """
    if text.strip().isdecimal() and int(text):
        return [(number % int(text) == 0) == nth for number in range(1, layers + 1)]
    try:
        chosen = _list(ast.parse(text.strip(), mode="eval").body)
    except (ValueError, SyntaxError):
        chosen = []
    if len(chosen) != layers or any(item not in (0, 1) for item in chosen):
        raise ValueError(
            f"{flag} {text} is neither a number above 0 nor a list of {layers} ones and zeros, one for each layer. "
            "Try 2."
        )
    return [bool(item) for item in chosen]


def _list(node: ast.expr) -> list[int]:
    """The value of a list of numbers, of lists added up, or of a list repeated."""
    match node:
        case ast.List(elts=items):
            return [ast.literal_eval(item) for item in items]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _list(left) + _list(right)
        case ast.BinOp(left=left, op=ast.Mult(), right=ast.Constant(value=int(times))) if times <= 1000:
            return _list(left) * times
    raise ValueError("not a list")
