"""ListOps expressions: nested operations on digits (Nangia and Bowman, 2018; Tay et al., 2021).

An expression is a digit, or an operator followed by expressions and ``]``. The operators are ``[MAX``,
``[MIN``, ``[MED`` (the median, rounded down) and ``[SM`` (the sum modulo 10).
"""

from __future__ import annotations

import random
from typing import Callable, Dict, List, Sequence, Tuple

from luna_fairseq.errors import InputError

END = "]"
DIGITS = tuple("0123456789")


def _median(values: Sequence[int]) -> int:
    ordered, middle = sorted(values), len(values) // 2
    return ordered[middle] if len(values) % 2 else (ordered[middle - 1] + ordered[middle]) // 2


OPERATORS: Dict[str, Callable[[Sequence[int]], int]] = {
    "[MIN": min,
    "[MAX": max,
    "[MED": _median,
    "[SM": lambda values: sum(values) % 10,
}
VOCABULARY = (*DIGITS, *OPERATORS, END)

# Settings of the published data set. prepare.py has the bounds of the length.
MAX_DEPTH, MAX_ARGUMENTS = 10, 10
OPERATION_PROBABILITY = 0.25

Example = Tuple[List[str], int]


def draw_example(seed: str, min_length: int, max_length: int) -> Example:
    """Draw a random ListOps expression. Return its tokens and its value from 0 to 9.

    An expression is a tree of depth at most 10. The root is an operation on 2 to 10 arguments. A node at
    depth 2 to 9 is such an operation with probability 1/4, and a digit otherwise. At depth 10, all nodes are
    digits. Trees are drawn until the number of tokens is greater than ``min_length`` and less than
    ``max_length``, as in the published generator.
    """
    generator = random.Random(seed)
    while True:
        tokens: List[str] = []
        value = _append_expression(generator, 1, tokens, max_length)
        if min_length < len(tokens) < max_length:
            return tokens, value


def _append_expression(generator: random.Random, depth: int, tokens: List[str], max_length: int) -> int:
    """Append a random expression to ``tokens``, and return its value.

    When ``tokens`` reaches ``max_length``, open operations receive no more arguments, because the caller will
    discard the expression.
    """
    # The root is always an operation: a single digit is too short if min_length is at least 1.
    chance = generator.random() if 1 < depth < MAX_DEPTH else float(depth > 1)
    if chance > OPERATION_PROBABILITY:
        value = generator.randrange(10)
        tokens.append(DIGITS[value])
        return value
    operator = generator.choice(tuple(OPERATORS))
    tokens.append(operator)
    values = [0]  # used only if there is no room for arguments, otherwise replaced by the first argument
    for number in range(generator.randint(2, MAX_ARGUMENTS)):
        if len(tokens) >= max_length:
            break
        values[number:] = [_append_expression(generator, depth + 1, tokens, max_length)]
    tokens.append(END)
    return OPERATORS[operator](values)


def parse(text: str) -> Example:
    """Split a published ListOps expression into tokens without parentheses, and compute its value.

    Example:
        >>> parse("( [MAX 3 ( [SM 9 8 ] ) ] )")
        (['[MAX', '3', '[SM', '9', '8', ']', ']'], 7)
    """
    tokens = [token for token in text.split() if token not in ("(", ")")]
    return tokens, evaluate(tokens)


def evaluate(tokens: Sequence[str]) -> int:
    """Compute the value of a ListOps expression, given its tokens. Raise InputError if it is malformed.

    Example:
        >>> evaluate(["[MED", "1", "4", "8", "]"])
        4
    """
    # Stack of open operations, each with its operator and the values of its arguments so far. The entry at
    # the bottom has no operator and receives the value of the whole expression.
    open_operations: List[Tuple[str, List[int]]] = [("", [])]
    for position, token in enumerate(tokens, 1):
        if len(open_operations) == 1 and open_operations[0][1]:
            raise InputError(f"token {position}, {token!r}: expected nothing after the end of the expression")
        if token in OPERATORS:
            open_operations.append((token, []))
        elif token == END:
            operator, values = open_operations.pop()
            if not operator or not values:
                raise InputError(f"token {position}, {token!r}: expected an operator or a digit")
            open_operations[-1][1].append(OPERATORS[operator](values))
        elif token in DIGITS:
            open_operations[-1][1].append(int(token))
        else:
            raise InputError(f"token {position}, {token!r}: expected one of {' '.join(VOCABULARY)}")
    if len(open_operations) > 1 or not open_operations[0][1]:
        missing = f"{len(open_operations) - 1} {END!r}" if len(open_operations) > 1 else "an expression"
        raise InputError(f"the line ends too early: expected {missing}")
    return open_operations[0][1][0]
