#!/usr/bin/env python3
"""What bounded replay does to the answer, from the reference's logits. README.md says how it is used.

    make_measure.py cases SEED > CASES.json                    cases for the reference
    make_measure.py kl CASES.json RESULTS.safetensors > OUT    KL of every row behind a hit

Python 3 and numpy. Nothing of the library is used."""
import json
import struct
import sys

import numpy as np

N = 100      # tokens of the text
HIT = 20     # a hit at every multiple of it: T1's window is 16, so bounded replay is not exact at any


def tokens(seed):
    """As host_tokens of test/support/host.h: neither special nor the image token of T1."""
    ids, x = [], seed
    for _ in range(N):
        x = (x * 6364136223846793005 + 1442695040888963407) % 2**64
        ids.append(3 + (x >> 33) % 500)
    return ids


def make_cases(seed):
    ids = tokens(seed)
    base = {"ids": ids, "round": "f32"}
    out = [dict(base, name="cold", steps=[{"n": N, "pre": 1}])]
    for hit in range(HIT, N, HIT):  # each finds what an undisturbed run has made
        out.append(dict(base, name="first%d" % hit, steps=[{"n": N}, {"hit": hit, "n": HIT, "pre": 1}]))
    chain = [{"n": HIT}] + [{"hit": hit, "n": HIT} for hit in range(HIT, N, HIT)]  # each finds what the one before made
    out.append(dict(base, name="chain", steps=chain))
    decoder = [{"n": HIT, "decoder_replay": 1} for _ in range(0, N, HIT)]  # logits of the last window of each
    out.append(dict(base, name="decoder", steps=decoder))
    return out


def read(path):
    data = open(path, "rb").read()
    size = struct.unpack("<Q", data[:8])[0]
    out = {}
    for name, t in json.loads(data[8:8 + size]).items():
        if name != "__metadata__" and t["dtype"] == "F32":
            begin, end = t["data_offsets"]
            out[name] = np.frombuffer(data[8 + size + begin:8 + size + end], np.float32).reshape(t["shape"])
    return out


def log_softmax(x):
    x = x.astype(np.float64)
    x = x - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def kl(ref, test):
    a, b = log_softmax(ref), log_softmax(test)
    return (np.exp(a) * (a - b)).sum(axis=-1)


def compare(cold, parts):
    """parts: (end, logits of the rows in front of end). Rows as [position, KL]."""
    out = []
    for end, logits in parts:
        first = end - len(logits)
        out += [[first + i, float("%.9g" % x)] for i, x in enumerate(kl(cold[first:end], logits))]
    return out


def make_kl(cases, t):
    cold = t["cold.step0.logits"]
    hits = range(HIT, N, HIT)
    parts = {"first": [(hit + HIT, t["first%d.step1.logits" % hit]) for hit in hits],
             "chain": [(hit + HIT, t["chain.step%d.logits" % (hit // HIT)]) for hit in hits],
             "decoder": [(at + HIT, t["decoder.step%d.logits" % (at // HIT)]) for at in range(0, N, HIT)]}
    return {"tokens": cases[0]["ids"], "hit_tokens": HIT, "numpy": np.__version__,
            "rows": {name: compare(cold, p) for name, p in parts.items()}}


if sys.argv[1] == "cases":
    print(json.dumps(make_cases(int(sys.argv[2]))))
else:
    print(json.dumps(make_kl(json.load(open(sys.argv[2])), read(sys.argv[3]))))
