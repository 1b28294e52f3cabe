"""The types of array elements that kernels take: their size, and their names in CUDA C++ and Triton.

NumPy lacks some of them; `autotune.encoding` converts their values from and to bits. This module imports no NumPy.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ElementType:
    """A type of array elements."""

    #: Name of the type in NumPy or in ml_dtypes.
    name: str
    bits: int
    #: Name in CUDA C++; a 4-bit type has the name of two elements in one byte.
    cuda: str
    #: Name in signatures of Triton.
    triton: str = ""
    #: Header of CUDA that declares the type.
    header: str = ""
    #: NumPy's type of the bits if NumPy lacks the type; two 4-bit elements share a byte, the first in its low half.
    stored: str = ""
    #: NumPy's type of the values if NumPy lacks the type.
    values: str = ""

    @property
    def per_stored(self) -> int:
        """Elements in one stored number: 2 of 4 bits, otherwise 1."""
        return max(1, 8 // self.bits)


#: Every type of elements by name; Triton has no name for some.
ELEMENT_TYPES = {
    element.name: element
    for element in (
        ElementType("bool", 8, "bool", "i1"),
        ElementType("int8", 8, "signed char", "i8"),
        ElementType("int16", 16, "short", "i16"),
        ElementType("int32", 32, "int", "i32"),
        ElementType("int64", 64, "long long", "i64"),
        ElementType("uint8", 8, "unsigned char", "u8"),
        ElementType("uint16", 16, "unsigned short", "u16"),
        ElementType("uint32", 32, "unsigned", "u32"),
        ElementType("uint64", 64, "unsigned long long", "u64"),
        ElementType("float16", 16, "__half", "fp16", "cuda_fp16.h"),
        ElementType("float32", 32, "float", "fp32"),
        ElementType("float64", 64, "double", "fp64"),
        ElementType("complex64", 64, "float2"),
        ElementType("complex128", 128, "double2"),
        ElementType("bfloat16", 16, "__nv_bfloat16", "bf16", "cuda_bf16.h", "uint16", "float32"),
        ElementType(
            "float8_e4m3fn", 8, "__nv_fp8_e4m3", "fp8e4nv", "cuda_fp8.h", "uint8", "float32"
        ),
        ElementType("float8_e5m2", 8, "__nv_fp8_e5m2", "fp8e5", "cuda_fp8.h", "uint8", "float32"),
        ElementType("float8_e8m0fnu", 8, "__nv_fp8_e8m0", "u8", "cuda_fp8.h", "uint8", "float32"),
        ElementType("float4_e2m1fn", 4, "__nv_fp4x2_e2m1", "u8", "cuda_fp4.h", "uint8", "float32"),
        ElementType("int4", 4, "unsigned char", "u8", "", "uint8", "int8"),
        ElementType("uint4", 4, "unsigned char", "u8", "", "uint8", "uint8"),
    )
}
#: The types that NumPy lacks, by name.
ENCODED_TYPES = {name: element for name, element in ELEMENT_TYPES.items() if element.stored}
