"""Writes rows.h: rows of the three quantisers and single conversions, computed with numpy and ml_dtypes.

    python3 make_quant.py > rows.h

Nothing of the library takes part. ml_dtypes converts (round to nearest even); the scale rules are
written here with integers and fractions, not with the fp32 formulas that the library uses."""
from fractions import Fraction

import ml_dtypes
import numpy as np

E4M3, E5M2, E2M1 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float4_e2m1fn
BF16 = ml_dtypes.bfloat16
RNG = np.random.default_rng(20260101)
WIDTH, ROWS = 96, 16


def ceil_log2(q):
    """Smallest k with 2^k >= q, for a positive fraction."""
    k = -200
    while Fraction(2) ** k < q:
        k += 1
    return k


def amax_of(group, floor):
    return max(max(abs(Fraction(float(v))) for v in group), floor)


def nibbles(codes):
    return codes[0::2] | codes[1::2] << 4


def e2m1(group, scale):
    q = np.clip(group / np.float32(scale), np.float32(-6), np.float32(6))
    return q.astype(np.float32).astype(E2M1).view(np.uint8) & 15


def main(row):
    values, scales = [], []
    for g in row.reshape(-1, 16):
        amax = amax_of(g, Fraction(6, 512))
        s = np.float32(min(np.float32(amax) / np.float32(6), np.float32(448))).astype(E4M3)
        scales.append(int(s.view(np.uint8)))
        values.append(e2m1(g, s.astype(np.float32)))
    return nibbles(np.concatenate(values)), scales


def index(row):
    values, scales = [], []
    for g in row.reshape(-1, 32):
        k = ceil_log2(amax_of(g, 6 * Fraction(2) ** -126) / 6)
        scales.append(k + 127)
        values.append(e2m1(g, np.ldexp(np.float32(1), k)))
    return nibbles(np.concatenate(values)), scales


def window(row):
    values, scales = [], []
    for g in row.reshape(-1, 32):
        k = ceil_log2(amax_of(g, Fraction(float(np.float32(1e-4)))) / 448)
        scales.append(k + 127)
        q = np.clip(g / np.ldexp(np.float32(1), k), np.float32(-448), np.float32(448))
        values.append(q.astype(np.float32).astype(E4M3).view(np.uint8))
    return np.concatenate(values), scales


def rows():
    """Normal rows at many magnitudes, then rows with zeros, outliers and values on the grid."""
    out = []
    for i in range(ROWS):
        x = RNG.standard_normal(WIDTH).astype(np.float32) * np.float32(2.0 ** RNG.uniform(-11, 8))
        if i % 4 == 1:
            x[RNG.random(WIDTH) < 0.5] = 0
        if i % 4 == 2:
            x[RNG.integers(WIDTH)] *= 37
        if i % 4 == 3:
            x = (RNG.integers(-12, 13, WIDTH) * 2.0 ** RNG.integers(-9, 5)).astype(np.float32) / 2
        if i == 5:
            x[:] = 0
        out.append(x.astype(BF16))
    return out


def table(kind, name, lines):
    print(f"static const {kind} {name} = {{")
    for line in lines:
        print("    {")
        for i in range(0, len(line), 12):
            print("        " + " ".join(f"{v:#x}," for v in line[i:i + 12]))
        print("    },")
    print("};\n")


def convert():
    """Floats around every boundary of E4M3 and E5M2 and over the whole range; in range of both."""
    bits = RNG.integers(0, 1 << 32, 600, dtype=np.uint32)
    x = bits.view(np.float32)
    x = np.concatenate([x[np.isfinite(x)], (RNG.standard_normal(600) * 2.0 ** RNG.integers(-20, 10, 600)).astype(np.float32)])
    x = x[np.abs(x) <= 448][::3][:240]
    return x


def print_all():
    print("/* Made by make_quant.py (numpy, ml_dtypes); see README.md beside it. Not edited by hand. */")
    print(f"#define GOLDEN_ROWS {ROWS}\n#define GOLDEN_WIDTH {WIDTH}\n")
    rs = rows()
    f32 = [r.astype(np.float32) for r in rs]
    table("uint16_t", "golden_input[GOLDEN_ROWS][GOLDEN_WIDTH]", [r.view(np.uint16) for r in rs])
    for name, fn, nv, ns in (("main", main, 2, 16), ("index", index, 2, 32), ("window", window, 1, 32)):
        done = [fn(r) for r in f32]
        table("uint8_t", f"golden_{name}_values[GOLDEN_ROWS][GOLDEN_WIDTH / {nv}]", [d[0] for d in done])
        table("uint8_t", f"golden_{name}_scales[GOLDEN_ROWS][GOLDEN_WIDTH / {ns}]", [d[1] for d in done])
    x = convert()
    print("/* bits of x; E4M3, E5M2, bf16 and fp16 of x */")
    print("static const struct {\n    uint32_t x;\n    uint8_t  e4m3;\n    uint8_t  e5m2;\n    uint16_t bf16;\n    uint16_t fp16;\n} golden_casts[] = {")
    for v, a, b, c, d in zip(x.view(np.uint32), x.astype(E4M3).view(np.uint8), x.astype(E5M2).view(np.uint8),
                             x.astype(BF16).view(np.uint16), x.astype(np.float16).view(np.uint16)):
        print(f"    {{{v:#x}, {a:#x}, {b:#x}, {c:#x}, {d:#x}}},")
    print("};")


print_all()
