"""Writes row_bytes.h: rows in the formats that have their scale in fp16, and in fp16 and bf16 themselves.

    python3 make_row.py > row_bytes.h

Nothing of the library takes part. PyPI's gguf (the numpy twin of ggml's quantisers) makes Q8_0 and Q4_0 and reads them back,
numpy casts to fp16 and ml_dtypes to bf16. Three-bit rows are made here, by the rule of Q4_0 with half the levels."""
import gguf
import ml_dtypes
import numpy as np

RNG = np.random.default_rng(20260303)
WIDTH, ROWS = 64, 12


def rows():
    """Normal rows of many magnitudes that are not bf16 yet; zeros, outliers, values on a grid, scales that are subnormal in fp16."""
    out = []
    for i in range(ROWS):
        x = RNG.standard_normal(WIDTH) * 2.0 ** RNG.uniform(-6, 8)
        if i % 4 == 1:
            x[RNG.random(WIDTH) < 0.5] = 0
        if i % 4 == 2:
            x[RNG.integers(WIDTH)] *= 37
        if i % 4 == 3:
            x = RNG.integers(-8, 9, WIDTH) * 2.0 ** RNG.integers(-9, 5) / 2
        if i == 5:
            x[:32] = 0
        if i == 8:
            x *= 2.0 ** -16
        out.append(x.astype(np.float32))
    return np.array(out)


def int3(group):
    """Eight levels -4 d .. 3 d, d = (value of the largest magnitude) / -4; codes in 96 bits, then bytes, lowest first."""
    top = np.float32(0)
    for v in group:
        if abs(v) > abs(top):
            top = v
    d = top / np.float32(-4)
    inverse = np.float32(1) / d if d else np.float32(0)
    bits = 0
    for i, v in enumerate(group):
        bits |= min(7, int(v * inverse + np.float32(4.5))) << 3 * i
    return list(np.array([d]).astype(np.float16).view(np.uint8)) + list(bits.to_bytes(12, "little"))


def table(kind, name, lines):
    print(f"static const {kind} {name} = {{")
    for line in lines:
        print("    {")
        for i in range(0, len(line), 8):
            print("        " + " ".join(f"{int(v):#x}," for v in line[i:i + 8]))
        print("    },")
    print("};\n")


def main():
    x = rows()
    b = x.astype(ml_dtypes.bfloat16)
    rounded = b.astype(np.float32)
    print("/* Made by make_row.py (gguf, numpy, ml_dtypes); see README.md beside it. Not edited by hand. */")
    print(f"#define GOLDEN_ROW_ROWS {ROWS}\n#define GOLDEN_ROW_WIDTH {WIDTH}\n")
    table("uint32_t", "golden_row_input[GOLDEN_ROW_ROWS][GOLDEN_ROW_WIDTH]", x.view(np.uint32))
    table("uint16_t", "golden_row_f16[GOLDEN_ROW_ROWS][GOLDEN_ROW_WIDTH]", x.astype(np.float16).view(np.uint16))
    table("uint16_t", "golden_row_bf16[GOLDEN_ROW_ROWS][GOLDEN_ROW_WIDTH]", b.view(np.uint16))
    for name, kind, n in (("q8", gguf.GGMLQuantizationType.Q8_0, 34), ("q4", gguf.GGMLQuantizationType.Q4_0, 18)):
        packed = gguf.quants.quantize(rounded, kind)
        back = gguf.quants.dequantize(packed, kind).astype(np.float32)
        table("uint8_t", f"golden_row_{name}[GOLDEN_ROW_ROWS][GOLDEN_ROW_WIDTH / 32 * {n}]", packed)
        table("uint32_t", f"golden_row_{name}_read[GOLDEN_ROW_ROWS][GOLDEN_ROW_WIDTH]", back.view(np.uint32))
    table("uint8_t", "golden_row_int3[GOLDEN_ROW_ROWS][GOLDEN_ROW_WIDTH / 32 * 14]",
          [sum((int3(g) for g in r.reshape(-1, 32)), []) for r in rounded])


main()
