"""Which states are certain to be read back from what they are encoded to."""

from __future__ import annotations

import dataclasses
import types
from datetime import datetime
from enum import Enum
from typing import Any, Union, get_args, get_origin

from engram.model.shape import part_fields

_PLAIN = {str, int, bool, float, bytes, datetime, type(None), None}
_KEYS = {str, int}


def state_reads_back(tp: Any) -> bool:
    """Whether every value of the type that can be encoded can be decoded: plain values, lists and dicts of them, and
    dataclasses of such fields, without bounds and without code of their own.

    A handler can put anything into a field. What is of the wrong type is refused by the encoder; what is out of
    bounds, or of a type with validators, is not. Of those this says False, and somebody must try.
    """
    return _reads_back(tp, frozenset())


def _reads_back(tp: Any, above: frozenset[Any]) -> bool:  # noqa: PLR0911 - a case for each kind of type
    origin, arguments = get_origin(tp), get_args(tp)
    if origin is list:
        return _reads_back(arguments[0], above)
    if origin is dict:
        return arguments[0] in _KEYS and _reads_back(arguments[1], above)
    if origin in (Union, types.UnionType):
        # Of two types of values a text could come back as the other.
        some = [argument for argument in arguments if argument is not type(None)]
        return len(some) == 1 and _reads_back(some[0], above)
    if tp in _PLAIN or tp in above:
        return True
    if isinstance(tp, type) and issubclass(tp, Enum):
        return all(isinstance(member.value, str | int) for member in tp) and "_missing_" not in vars(tp)
    if isinstance(tp, type) and dataclasses.is_dataclass(tp) and not hasattr(tp, "__post_init__"):
        return all(_reads_back(of, above | {tp}) for of in part_fields(tp).values())
    return False
