#!/usr/bin/env python3
"""Makes the golden data of this folder with the PyPI package `tokenizers`; see README.md.

Run it in this folder:  python3 make_tokenizer_golden.py
Needs only that package; the token map is computed here from Python's own Unicode tables.
"""
import json
import os
import random
import unicodedata

import tokenizers
from tokenizers import Tokenizer

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..")
HERE = os.path.dirname(os.path.abspath(__file__))


def byte_alphabet():
    plain = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    rest = [b for b in range(256) if b not in plain]
    return {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(rest)}


AL = byte_alphabet()
INV = {c: b for b, c in AL.items()}


def spell(data):
    return "".join(AL[b] for b in data)


# ---------------------------------------------------------------- the odd tokenizer
ODD_WORDS = [
    "Hello", "HELLO", " hello", "hello ", "\thello\n", "hel  lo", "hel\r\nlo", "\u00a0hello\u2003", "\x1chello\x1f", "\u0085hello",
    "\u00e9t\u00e9", "e\u0301te\u0301", "ETE", "\u212b", "\u00c5", "a\u030a", "\ufb03", "ffi", "\u2460", "1", "\uff11",
    "\u0130", "i", "I\u0307", "\u0131", "\u03a3", "\u039f\u03a3", "\u039f\u03a3\u0391", "\u039f\u03a3'", "\u039f\u03a3'\u0391",
    "\u03a3\u03a3", "\u03c2", "\u03c3", "'\u03a3", "A.\u03a3", "A\u00ad\u03a3", "A\u02b0\u03a3", "\U0001f150\u03a3", "\u01c5\u03a3",
    " ", "  ", "\t", "\n", "\r\n", " \n\t", "\u3000", "\u2028", "\x1c", "\x0b", "\u0301", "\u0903", "\u20dd", "\u0301\u0302 ",
    " \u0301 ", "\ud55c", "\u1112\u1161\u11ab", "\u1e9e", "\u00df", "\ufdfa", "\u0958", "\U0001d15e", "\ufffd", "a\ufffd",
    "\ue000", "\u200b", "\u200d", "\ufeff", "\u0000", "\u2126", "\u03c9", "\u03a9", "\u1fb3", "\u1fbc", "\u0345", "\u0f73", "\u0344",
    "\u2075", "\u33c2", "\u213b", "\U0001f130", "\U0001f1e6", "\u2163", "\u2173", "\u13a0", "\uab70", "\u10a0", "\u2d00", "\u1c90",
    "\u10d0", "\u0390", "\u03b9\u0308\u0301", "\u0149", "\u01f0", "\u1e96", "\u2f00", "\u4e00", "\uf900", "\u8c48", "\uff76\uff9e", "\u30ac",
]


def odd_tokenizer():
    rng = random.Random(20261129)
    vocab = {spell(bytes([b])): b for b in range(256)}
    merges = []
    # Merges over few bytes, so that texts of those meet many of them, in the wrong order too.
    alphabet = [bytes([b]) for b in b"abc .1\xc3\xa9\xe4\xb8\x80"]
    known = list(alphabet)
    while len(merges) < 300:
        a, b = rng.choice(known), rng.choice(known)
        if len(a + b) > 9:
            continue
        if a + b not in known:
            known.append(a + b)
            vocab[spell(a + b)] = len(vocab)
        merges.append([spell(a), spell(b)])
    merges += rng.sample(merges, 100)  # of a pair that comes again the later rank counts
    rng.shuffle(merges)
    for w in ODD_WORDS:
        for v in [w] + [w.replace("\u03a3", c) for c in "\u03c2\u03c3"]:  # which of the two small ones is a capital sigma's?
            vocab.setdefault(spell(v.encode()), len(vocab))
    for n in range(520):  # random characters of all planes, known to Unicode 14
        w = ""
        while len(w) < rng.randrange(1, 5):
            c = chr(rng.choice([rng.randrange(0x20, 0x600), rng.randrange(0x600, 0x3100), rng.randrange(0x110000)]))
            if unicodedata.category(c) not in ("Cn", "Cs", "Co"):
                w += rng.choice([c, c.upper(), c.lower()])
        vocab.setdefault(spell(w.encode()), len(vocab))
    for n in range(40):  # half characters: their keys are the strings themselves
        w = rng.choice(["\u20ac", "\U0001f600", "x\u00e9"]).encode()
        vocab.setdefault(spell(w[:rng.randrange(1, len(w))] + bytes([rng.randrange(256)])), len(vocab))
    for w in ["\u4e00\u4e01", "a\u3042", "x\u1200 y"]:  # not of the byte alphabet: their own text
        vocab.setdefault(w, len(vocab))
    n = len(vocab) + 3  # a gap of three ids
    added = []
    for i, w in enumerate(["<s>", "<s>x", "<s>xy", "</", "\uff5cend\uff5c", "</s>"]):
        added.append({"id": n + i, "content": w, "single_word": False, "lstrip": False, "rstrip": False,
                      "normalized": False, "special": i != 1})
    split = {"type": "Split", "pattern": {"Regex": r"\p{N}{1,3}|\s+(?!\S)|\s+| ?[^\s\p{N}]+"}, "behavior": "Isolated", "invert": False}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
            "normalizer": {"type": "Sequence", "normalizers": []},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                split, {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]},
            "post_processor": None,
            "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                      "vocab": vocab, "merges": merges}}


# ---------------------------------------------------------------- token map
def token_table(tj):
    n = 1 + max(list(tj["model"]["vocab"].values()) + [a["id"] for a in tj["added_tokens"]])
    raw, data = [""] * n, [b""] * n
    for t, i in tj["model"]["vocab"].items():
        raw[i], data[i] = t, bytes(INV[c] for c in t) if all(c in INV for c in t) else t.encode()
    for a in tj["added_tokens"]:
        raw[a["id"]], data[a["id"]] = a["content"], a["content"].encode()
    return raw, data


def map_key(raw, data):
    text = data.decode("utf-8", "replace")
    if "\ufffd" in text:
        return raw
    key = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", text))
    key = "".join(c for c in key if not unicodedata.category(c).startswith("M")).lower()
    out = ""
    for c in key:
        c = " " if c in " \t\r\n" else c
        if not (c == " " and out.endswith(" ")):
            out += c
    return (out if out == " " else out.strip()) or text


def token_map(tj):
    ids, out = {}, []
    for raw, data in zip(*token_table(tj)):
        out.append(ids.setdefault(map_key(raw, data), len(ids)))
    return out, len(ids)


# ---------------------------------------------------------------- cases
def encoders(tj):
    """(plain, special). The package numbers added tokens itself unless the vocabulary has them, so they are put there."""
    plain = json.loads(json.dumps(tj))
    plain["added_tokens"] = []
    special = json.loads(json.dumps(tj))
    for a in tj["added_tokens"]:
        special["model"]["vocab"].setdefault(a["content"], a["id"])
    return [Tokenizer.from_str(json.dumps(x)) for x in (plain, special)]


def texts(tj, n):
    rng = random.Random(7)
    added = [a["content"] for a in tj["added_tokens"]]
    fixed = ["", " ", "a", "Hello, world!", "The quick brown fox\n\njumps  over 12345 lazy dogs.  ", "don't DON'T we'll",
             "\tint main(void)\r\n\t{ return 0; }\n", "   leading", "trailing   ", "\n\n\n", " \n \n", "\u4f60\u597d\uff0c\u4e16\u754c 123",
             "\u3053\u3093\u306b\u3061\u306f\u30ab\u30bf\u30ab\u30ca", "na\u00efve caf\u00e9 e\u0301", "\U0001f600\U0001f468\u200d\U0001f469", "1234567 \u0661\u0662 \u2167",
             "a\u00a0b\u3000c\u0085d", "\u0000\u0001", "\u0928\u092e\u0938\u094d\u0924\u0947", "x" * 70, "ab" * 40, "..!!??", "a.b.c", "(a)[b]{c}",
             "\ufeff\ufffd", "<" + (added[0] if added else "")]
    fixed += ["x" + a + " y" for a in added]
    pools = ["abc .1\u00e9\u4e00", "abcdefghijklmnopqrstuvwxyz ETAOIN", " \t\r\n", "0123456789", ".,;:!?'\"()[]{}<>/\\|@#",
             "\u4e00\u4e8c\u3042\u30a2\uff0c", "\u00e9\u00e8\u0301\u0308\u00df", "<s>xy/\uff5cend"]
    for _ in range(n):
        p = "".join(rng.sample(pools, rng.randrange(1, 4)))
        t = "".join(rng.choice(added) if added and rng.random() < 0.05 else rng.choice(p) for _ in range(rng.randrange(1, 40)))
        fixed.append(t)
    return fixed


def ids(tok, text):
    return tok.encode(text, add_special_tokens=False).ids


def write(name, doc):
    with open(os.path.join(HERE, name), "w", encoding="utf-8") as f:
        f.write("{\n")
        for k, v in doc.items():
            last = k == list(doc)[-1]
            if isinstance(v, list) and v and isinstance(v[0], dict):
                f.write('"%s": [\n%s\n]' % (k, ",\n".join(json.dumps(x, ensure_ascii=True) for x in v)))
            else:
                f.write('"%s": %s' % (k, json.dumps(v, ensure_ascii=True)))
            f.write("\n" if last else ",\n")
        f.write("}\n")


def golden(name, tj, file, n):
    plain, special = encoders(tj)
    cases = [{"text": t.encode().hex(), "plain": ids(plain, t), "special": ids(special, t)} for t in texts(tj, n)]
    cmap, size = token_map(tj)
    doc = {"tokenizers": tokenizers.__version__, "unicode": unicodedata.unidata_version, "file": file, "compressed_vocab_size": size,
           "map": cmap, "cases": cases}
    return doc


def main():
    for name, file in (("t1.json", "test/data/t1/tokenizer.json"), ("tiny.json", "examples/models/tiny/tokenizer.json")):
        with open(os.path.join(ROOT, file), encoding="utf-8") as f:
            write(name, golden(name, json.load(f), file, 60))
    tj = odd_tokenizer()
    with open(os.path.join(HERE, "odd-tokenizer.json"), "w", encoding="utf-8") as f:
        json.dump(tj, f, ensure_ascii=False, separators=(",", ":"))
        f.write("\n")
    doc = golden("odd.json", tj, "test/golden/tokenizer/odd-tokenizer.json", 120)
    # Whole pieces that are tokens are taken without merging.
    tj["model"]["ignore_merges"] = True
    tok = encoders(tj)[0]
    doc["ignore_merges"] = [{"text": t.encode().hex(), "ids": ids(tok, t)} for t in texts(tj, 60)]
    tj["model"]["ignore_merges"] = False
    # Other split steps: matches of no characters, a step within pieces, a literal, ByteLevel's own expression.
    doc["splits"] = []
    for steps, own in (([r"a*"], False), ([r"(?=b)"], False), ([r"\b"], False), ([r"c?"], False), ([r"(?<=a)b|1"], False),
                       ([r"a+", r"(?<=a)b", r"^."], False), ([], True), ([r"b"], True), ([" "], None), (["."], None)):
        pre = [{"type": "Split", "pattern": {"String" if own is None else "Regex": s}, "behavior": "Isolated", "invert": False}
               for s in steps]
        pre.append({"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": bool(own)})
        tj["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": pre}
        tok = encoders(tj)[0]
        rng = random.Random(11)
        for t in ["abc abc.", "cab\u00e9b\u4e00a", "bbb", "don't ab's  b"] + ["".join(rng.choices("aabbc .1", k=14)) for _ in range(8)]:
            doc["splits"].append({"pre_tokenizer": tj["pre_tokenizer"], "text": t.encode().hex(), "ids": ids(tok, t)})
    write("odd.json", doc)


main()
