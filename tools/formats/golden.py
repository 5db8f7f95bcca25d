"""Writes random blocks of every quantised format with the values the PyPI package `gguf` finds in them, as hex.

usage: golden.py [BLOCKS [SEED]] >kernels/tests/golden/blocks.txt; needs gguf==0.19.0 and numpy.
`kernels/tests/formats.rs` compares them with `dequantise`, bit for bit. More than the default of one block of 256
values (two of 32) is for trying once, not for keeping.
"""
import sys

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

# Where the f16 factors are; their exponents are kept small, so that nothing overflows.
FACTORS = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108],
    "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0], "MXFP4": [],
}


def main(count=1, seed=1):
    random = np.random.default_rng(seed)
    for name, factors in FACTORS.items():
        kind = GGMLQuantizationType[name]
        length, size = GGML_QUANT_SIZES[kind]
        for _ in range(count * (2 if length == 32 else 1)):
            block = random.integers(0, 256, size, dtype=np.uint8)
            for at in factors:
                block[at : at + 2] = np.array([random.normal()], np.float16).view(np.uint8)
            values = dequantize(block, kind).astype("<f4")
            print(name, block.tobytes().hex(), values.tobytes().hex())


main(*map(int, sys.argv[1:]))
