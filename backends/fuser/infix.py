"""Operations whose text is the same in Triton and in C++."""

_SIGNS = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">",
    "ge": ">=", "bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^", "bitwise_left_shift": "<<",
    "bitwise_right_shift": ">>", "logical_and": "&", "logical_or": "|",
}  # fmt: skip
INFIX = {name: f"{{0}} {sign} {{1}}" for name, sign in _SIGNS.items()}
INFIX |= {"neg": "-{0}", "bitwise_not": "~{0}", "logical_not": "~{0}"}
