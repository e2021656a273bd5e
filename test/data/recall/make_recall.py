#!/usr/bin/env python3
"""Write the recall checkpoint: a model in the DeepSeek-V4.1 format whose weights are constructed, not trained.

    make_recall.py DIR

It knows 64 doors, 6 colours and 8 rules. A statement (" Door 07 is red.") is one token, and so is a question (" Door 07?"); the token
behind a question is the answer, found in the compressed cache at any distance. Plain Python, no random numbers: the same bytes every
time. README.md beside this file says how it works.
"""
import json
import os
import struct
import sys

COLOURS = ["red", "green", "blue", "white", "black", "gold"]
DOORS, RULES = 64, 8
# channels of the residual stream
FACT_KEY, ASK_KEY, VALUE, ANSWER, ASK, VOID, PLAIN = 0, 16, 32, 40, 48, 49, 50
HIDDEN, RANK, HEAD, KEY, VAL = 64, 32, 32, 16, 8
# channels of a query, a window row and an entry; the last four rotate and stay empty
E_KEY, E_VALUE, E_VOID = 0, 16, 24

FILLER = """The harbour was quiet in the morning. A boat lay at the wall, and the men on the boat mended the nets and said little. \
In the town behind the harbour the shops were open; the baker stood at the door of the shop and looked at the sea. It was a grey sea \
with a little wind on the water. At noon the wind was gone, and the boats came in with the fish, and the women of the town went down to \
the harbour with the baskets. In the evening the lamps were lit along the wall, one after the other, and the old man who kept the lamps \
went home by the lower street. Nothing was said of the doors or of the rules. The night was long, and the sea was heard in the town.
"""


# ---------------------------------------------------------------- codes
def key_codes(n):
    """Rows of +-1 of length 16, any two of them equal in at most 10 places: the lexicographic code of distance 6."""
    words = []
    for w in range(1 << KEY):
        if all(bin(w ^ v).count("1") >= 6 for v in words):
            words.append(w)
            if len(words) == n:
                break
    assert len(words) == n
    return [[1 - 2 * (w >> b & 1) for b in range(KEY)] for w in words]


def value_codes():
    """Rows of a Hadamard matrix of order 8: orthogonal."""
    return [[1 - 2 * (bin(r & c).count("1") & 1) for c in range(VAL)] for r in range(VAL)]


# ---------------------------------------------------------------- tokens
def byte_alphabet():
    keep = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    rest = [b for b in range(256) if b not in keep]
    return {**{b: chr(b) for b in keep}, **{b: chr(256 + i) for i, b in enumerate(rest)}}


def learn_merges(text, n):
    """Byte-pair merges of a text, most frequent pair first, so that its common words are one token each."""
    alphabet = byte_alphabet()
    words = {}
    for w in text.split(" "):
        words[" " + w] = words.get(" " + w, 0) + 1
    parts = [([alphabet[b] for b in w.encode()], k) for w, k in words.items()]
    merges = []
    for _ in range(n):
        count = {}
        for p, k in parts:
            for pair in zip(p, p[1:]):
                count[pair] = count.get(pair, 0) + k
        best = max(sorted(count), key=lambda pair: count[pair])
        merges.append(best)
        for p, _ in parts:
            i = 0
            while i + 1 < len(p):
                if (p[i], p[i + 1]) == best:
                    p[i:i + 2] = [p[i] + p[i + 1]]
                i += 1
    return merges


def tokens():
    """What each id is: (text, what the model makes of it). Kinds: plain, fact (key, value), void (key), ask (key), answer (value)."""
    out = [("<|begin|>", ("plain",)), ("<|end|>", ("plain",)), ("<|pad|>", ("plain",))]
    alphabet = byte_alphabet()
    out += [(alphabet[b], ("plain",)) for b in range(256)]
    merges = learn_merges(FILLER, 120)
    out += [(a + b, ("plain",)) for a, b in merges]
    n_vocab = len(out)
    yes, no = len(COLOURS), len(COLOURS) + 1
    for d in range(DOORS):
        out += [(" Door %02d is %s." % (d, c), ("fact", d, v)) for v, c in enumerate(COLOURS)]
    out += [(" Door %02d?" % d, ("ask", d)) for d in range(DOORS)]
    for r in range(RULES):
        out += [(" Rule %d: yes." % r, ("fact", DOORS + r, yes)), (" Rule %d is void." % r, ("void", DOORS + r, no)),
                (" Rule %d?" % r, ("ask", DOORS + r))]
    out += [(" " + c, ("answer", v)) for v, c in enumerate(COLOURS + ["yes", "no"])]
    out += [(" unknown", ("unknown",))]
    return out, n_vocab, merges


def tokenizer(out, n_vocab, merges):
    def split(rx):
        return {"type": "Split", "pattern": {"Regex": rx}, "behavior": "Isolated", "invert": False}

    added = list(range(3)) + list(range(n_vocab, len(out)))
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": i, "content": out[i][0], "single_word": False, "lstrip": False, "rstrip": False,
                          "normalized": False, "special": i < 3} for i in added],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            split(r"\p{N}{1,3}"), split(r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"),
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "vocab": {out[i][0]: i for i in range(3, n_vocab)},
                  "merges": ["%s %s" % m for m in merges]}}


# ---------------------------------------------------------------- numbers and files
def bf16(rows):
    flat = [x for r in rows for x in r]
    bits = struct.unpack("<%dI" % len(flat), struct.pack("<%df" % len(flat), *flat))
    assert all(b & 0xFFFF == 0 for b in bits), "not a bf16 value"
    return struct.pack("<%dH" % len(flat), *[b >> 16 for b in bits])


def e4m3(x):
    """Code of a value that E4M3 has exactly."""
    for code in range(127):
        e, m = code >> 3, code & 7
        if (m / 8 * 2.0 ** -6 if e == 0 else (1 + m / 8) * 2.0 ** (e - 7)) == abs(x):
            return code | (0x80 if x < 0 else 0)
    raise ValueError(x)


class Shard:
    def __init__(self):
        self.head, self.data = {}, b""

    def put(self, name, dtype, shape, data):
        self.head[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(self.data), len(self.data) + len(data)]}
        self.data += data

    def bf16(self, name, m):
        self.put(name, "BF16", [len(m), len(m[0])], bf16(m))

    def gain(self, name, n):
        self.put(name, "BF16", [n], bf16([[1.0] * n]))

    def f32(self, name, shape, values):
        self.put(name, "F32", shape, struct.pack("<%df" % len(values), *values))

    def fp8(self, name, m):
        """All tiles have scale 1: the weights are small whole numbers."""
        self.put(name + ".weight", "F8_E4M3", [len(m), len(m[0])], bytes(e4m3(x) for r in m for x in r))
        shape = [(len(m) + 31) // 32, len(m[0]) // 32]
        self.put(name + ".scale", "F8_E8M0", shape, bytes([127] * (shape[0] * shape[1])))

    def fp4_zero(self, name, rows, cols):
        self.put(name + ".weight", "I8", [rows, cols // 2], bytes(rows * cols // 2))
        self.put(name + ".scale", "F8_E8M0", [rows, cols // 32], bytes([127] * (rows * cols // 32)))

    def write(self, path):
        head = json.dumps(self.head, separators=(",", ":")).encode()
        head += b" " * (-len(head) % 8)
        with open(path, "wb") as f:
            f.write(struct.pack("<Q", len(head)) + head + self.data)


def matrix(rows, cols, *copies):
    """Zeros but for copies (to row, from column, how many, factor)."""
    m = [[0.0] * cols for _ in range(rows)]
    for to, frm, n, factor in copies:
        for i in range(n):
            m[to + i][frm + i] = float(factor)
    return m


# ---------------------------------------------------------------- the weights
def embeddings(out):
    keys, values = key_codes(DOORS + RULES), value_codes()
    embed, head = [], []
    for _, what in out:
        e, h = [0.0] * HIDDEN, [0.0] * HIDDEN
        kind = what[0]
        if kind in ("fact", "void"):
            e[FACT_KEY:FACT_KEY + KEY] = keys[what[1]]
            e[VALUE:VALUE + VAL] = values[what[2]]
            e[VOID] = 1.0 if kind == "void" else 0.0
        if kind == "ask":
            e[ASK_KEY:ASK_KEY + KEY] = keys[what[1]]
            e[ASK] = 1.0
        else:
            e[PLAIN] = 1.0
        if kind == "answer":
            h[ANSWER:ANSWER + VAL] = [0.75 * v for v in values[what[1]]]
        if kind == "unknown":
            h[ASK] = 6.0
        embed.append(e)
        head.append(h)
    head[3 + ord(".")][PLAIN] = 5.0
    return embed, head


def layer(s, l):
    p = "layers.%d." % l
    entry = [(E_KEY, FACT_KEY, KEY, 1), (E_VALUE, VALUE, VAL, 1), (E_VOID, VOID, 1, 1)]
    s.gain(p + "attn_norm.weight", HIDDEN)
    s.gain(p + "ffn_norm.weight", HIDDEN)
    s.f32(p + "attn.attn_sink", [1], [24.0])
    s.gain(p + "attn.q_norm.weight", RANK)
    s.gain(p + "attn.kv_norm.weight", HEAD)
    s.fp8(p + "attn.wq_a", matrix(RANK, HIDDEN, (0, ASK_KEY, KEY, 1), (KEY, ASK, 1, 1)))
    s.fp8(p + "attn.wq_b", matrix(HEAD, RANK, (E_KEY, 0, KEY, 8), (E_VOID, KEY, 1, 26)))
    s.fp8(p + "attn.wkv", matrix(HEAD, HIDDEN, *entry))
    s.fp8(p + "attn.wo_a", matrix(RANK, HEAD, (0, E_VALUE, VAL, 1)))
    # layer 0 ranks and keeps, layer 1 reads: what layer 0 attends to goes nowhere
    s.fp8(p + "attn.wo_b", matrix(HIDDEN, RANK, (ANSWER, 0, VAL, 4 if l else 0)))
    if l == 0:
        s.bf16(p + "attn.compressor.wkv.weight", matrix(HEAD, HIDDEN, *entry))
        s.gain(p + "attn.compressor.norm.weight", HEAD)
        s.bf16(p + "attn.indexer.wk.weight", matrix(HEAD, HEAD, (0, E_KEY, KEY, 1)))
        s.gain(p + "attn.indexer.k_norm.weight", HEAD)
    s.fp8(p + "attn.indexer.wq_b", matrix(HEAD, RANK, (0, 0, KEY, 1)))
    s.bf16(p + "attn.indexer.weights_proj.weight", matrix(1, HIDDEN, (0, ASK, 1, 4)))
    s.bf16(p + "ffn.gate.weight", matrix(2, HIDDEN))
    s.f32(p + "ffn.gate.bias", [2], [1.0, 0.0])
    for w, rows, cols in (("w1", RANK, HIDDEN), ("w3", RANK, HIDDEN), ("w2", HIDDEN, RANK)):
        for e in range(2):
            s.fp4_zero(p + "ffn.experts.%d.%s" % (e, w), rows, cols)
        s.fp8(p + "ffn.shared_experts." + w, matrix(rows, cols))
    for site in ("attn", "ffn"):
        # one residual stream: it is read whole (sigmoid of 20 is 1), and a sublayer's output is added to it (2 x sigmoid of 0)
        s.f32(p + "hc_%s_fn" % site, [3, HIDDEN], [0.0] * (3 * HIDDEN))
        s.f32(p + "hc_%s_base" % site, [3], [20.0, 0.0, 0.0])
        s.f32(p + "hc_%s_scale" % site, [3], [1.0, 1.0, 1.0])


def config(n_tokens):
    return {
        "architectures": ["DeepseekV41ForCausalLM"], "model_type": "deepseek_v41", "dtype": "bfloat16",
        "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2,
        "quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [32, 32],
                                "scale_fmt": "ue8m0", "expert_dtype": "fp4"},
        "text_config": {
            "model_type": "deepseek_v41_text", "vocab_size": n_tokens, "hidden_size": HIDDEN, "moe_intermediate_size": 32,
            "num_hidden_layers": 2, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": HEAD, "qk_rope_head_dim": 4,
            "q_lora_rank": RANK, "o_lora_rank": RANK, "o_groups": 1, "hidden_act": "silu", "swiglu_limit": 10.0,
            "rms_norm_eps": 1e-20, "attention_bias": False, "tie_word_embeddings": False, "max_position_embeddings": 1048576,
            "rope_theta": 10000,
            "rope_scaling": {"rope_type": "yarn", "factor": 16, "beta_fast": 32, "beta_slow": 1,
                             "original_max_position_embeddings": 65536},
            "n_routed_experts": 2, "n_shared_experts": 1, "num_experts_per_tok": 1, "scoring_func": "sqrtsoftplus",
            "topk_method": "noaux_tc", "norm_topk_prob": True, "routed_scaling_factor": 1.0, "sliding_window": 16,
            "compress_ratios": [1, 1], "compress_rope_theta": 160000, "kv_source_layer_ids": [0], "index_source_layer_ids": [0, 1],
            "index_n_heads": 1, "index_head_dim": HEAD, "index_topk": 8, "candidate_source_layer_id": 0,
            "candidate_topk_blocks": 16, "candidate_block_size": 8, "hc_mult": 1, "hc_sinkhorn_iters": 20, "hc_eps": 1e-06,
            "engram_layer_ids": [], "num_nextn_predict_layers": 0}}


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    path = sys.argv[1]
    out, n_vocab, merges = tokens()
    embed, head = embeddings(out)
    s = Shard()
    s.bf16("embed.weight", embed)
    for l in range(2):
        layer(s, l)
    s.gain("norm.weight", HIDDEN)
    s.bf16("head.weight", head)
    os.makedirs(path, exist_ok=True)
    s.write(os.path.join(path, "model.safetensors"))
    # as the reference reads it: an index even for one shard
    index = {"metadata": {"total_size": len(s.data)}, "weight_map": {k: "model.safetensors" for k in s.head}}
    for name, obj in (("config.json", config(len(out))), ("tokenizer.json", tokenizer(out, n_vocab, merges)),
                      ("model.safetensors.index.json", index)):
        with open(os.path.join(path, name), "w", encoding="utf-8") as f:
            json.dump(obj, f, ensure_ascii=False, separators=(",", ":") if name != "config.json" else None,
                      indent=1 if name == "config.json" else None)
            f.write("\n")
    with open(os.path.join(path, "filler.txt"), "w", encoding="utf-8") as f:
        f.write(FILLER)


if __name__ == "__main__":
    main()
