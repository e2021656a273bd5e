"""A Hugging Face model whose keys and values lie in our pool: transformers computes, attention is ours.

    PYTHONPATH=lib/python python3 examples/torch_attention.py [DIRECTORY] [--format FORMAT] [--prompt TEXT]

DIRECTORY holds a Llama or Qwen3 model without sliding windows, with its tokenizer, as from_pretrained takes it. Without one a small Llama
on bytes is made and trained on examples/texts/moby-dick.txt, so that what it writes is not noise.

With entries of f32 the pool must give the greedy text of the model's own generate() and its own cache; with --format (bf16 if the
option is not given) what differs is shown. Then a second session begins with the same prompt and adopts what is known, and a fork
goes on in another way; both are compared with generate() too. It fails if a text with f32 differs.

Needs torch, transformers and numpy; the library and the other examples do not, and no test of this tree runs it. Seen with torch
2.15.0, transformers 5.24.0 and numpy 2.4.6 on a CPU, --steps 100 (more training takes longer, and makes better text):

    f32 entries, 4096 bytes a token (generate(): 4096): ' the the the the ...
        the text of generate()
    second session, 501 tokens adopted, 75 rows computed for 577 tokens: 'the the the ...
        the text of generate()
    fork, 1 tokens adopted, 73 rows computed for 575 tokens: 'the the the ...
        the text of generate()
    bf16 entries, 2048 bytes a token (generate(): 4096): ' the the the the ...
        the text of generate()

With --steps 300 all texts were those of generate(), too. With a Qwen3 and a Llama of random weights (3 layers, 8 heads on 2, width 32)
from a DIRECTORY the three texts of f32 were; with bf16 they part from token 31 and 16 of 64 on. No trained model from a DIRECTORY
has been tried.
"""

import argparse
import hashlib
import sys
from pathlib import Path
from typing import Any, Callable, List, Tuple

import kvcsa

try:
    import torch
    import transformers
except ImportError as error:
    print(f"torch_attention.py needs torch, transformers and numpy: {error}", file=sys.stderr)
    sys.exit(2)

TEXT = Path(__file__).parent / "texts" / "moby-dick.txt"
N_TOKENS = 64

Text = List[int]


# ---------------------------------------------------------------- the attention

def heads_last(x: torch.Tensor) -> Any:
    """[1, heads, rows, channels] of transformers as rows of heads: the same memory, seen in another order."""
    return x[0].transpose(0, 1).float().numpy()


def pool_attention(module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: Any,
                   scaling: float = 0.0, kvcsa_chunk: Any = None, **_: Any) -> Tuple[torch.Tensor, None]:
    """One layer of an open chunk. The model has rotated queries and keys; who sees what is known from the positions."""
    chunk, layer = kvcsa_chunk, module.layer_idx
    if not chunk.replay:  # else the cache has them
        chunk.write(layer, key=heads_last(key), value=heads_last(value))
    out = torch.empty(len(chunk), query.shape[1], value.shape[3])
    chunk.attend(layer, heads_last(query), out=out.numpy(), scale=scaling)
    return out[None].to(query.dtype), None


class Host:
    """A model that computes for sessions of one pool."""

    def __init__(self, network: Any, plan: kvcsa.Model, pool: kvcsa.Pool) -> None:
        self.network, self.plan, self.pool = network, plan, pool
        self.n_rows = 0

    def session(self) -> kvcsa.Session:
        return self.pool.session(self.plan, cache_only=True)

    def next_token(self, session: kvcsa.Session) -> int:
        """Compute what is queued (or the last row again, if that is all); the best token behind it."""
        logits = None
        for chunk in session.chunks():
            n, at = len(chunk), chunk.position
            result = self.network(input_ids=torch.tensor([chunk.tokens]), position_ids=torch.arange(at, at + n)[None],
                                  use_cache=False, logits_to_keep=1, kvcsa_chunk=chunk)
            logits = result.logits[0, -1]
            self.n_rows += n
        if logits is None:
            raise RuntimeError("nothing was to be computed")
        return int(logits.argmax())

    def go_on(self, session: kvcsa.Session, tokens: Text, n_tokens: int) -> Text:
        """The session holds the beginning of `tokens`, or nothing. Greedy text behind them."""
        session.sync(tokens)
        said = [self.next_token(session)]
        while len(said) < n_tokens:
            session.append(said[-1:])
            said.append(self.next_token(session))
        return said


# ---------------------------------------------------------------- the model

def train(network: Any, data: torch.Tensor, steps: int) -> None:
    optimizer = torch.optim.AdamW(network.parameters(), lr=4e-3)
    network.train()
    for step in range(steps):
        first = torch.randint(len(data) - 129, (8,))
        batch = torch.stack([data[i : i + 128] for i in first.tolist()])
        loss = network(input_ids=batch, labels=batch, use_cache=False).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"trained {steps} steps on {TEXT.name}, loss {loss.item():.2f}")


def small_model(steps: int) -> Tuple[Any, Callable[[str], Text], Callable[[Text], str]]:
    """Four layers on bytes, with seeded weights."""
    torch.manual_seed(1)
    network = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=256, hidden_size=128, intermediate_size=256, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
        head_dim=64, max_position_embeddings=2048, bos_token_id=None, eos_token_id=None, pad_token_id=None))
    train(network, torch.tensor(list(TEXT.read_bytes())), steps)
    return network, lambda text: list(text.encode()), lambda ids: bytes(ids).decode("utf-8", "replace")


def model_of(directory: str) -> Tuple[Any, Callable[[str], Text], Callable[[Text], str]]:
    network = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    return network, tokenizer.encode, tokenizer.decode


def identity_of(network: Any) -> int:
    """Of the weights: rows of other weights are not to be shared."""
    digest = hashlib.blake2b(digest_size=8)
    for name, tensor in sorted(network.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().float().contiguous().numpy().data)
    return int.from_bytes(digest.digest(), "little")


def plan_of(network: Any, format: str) -> kvcsa.Model:
    """Every layer keeps keys and values of all KV heads, of every token."""
    config = network.config
    other = set(getattr(config, "layer_types", None) or []) - {"full_attention"}
    if other or getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True):
        raise SystemExit(f"torch_attention.py: layers with a sliding window ({', '.join(other) or config.sliding_window}) keep what "
                         "this version has no attention for")
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    row = kvcsa.PlanRow.heads(config.num_key_value_heads, width, format)
    return kvcsa.Model.from_plan([row] * config.num_hidden_layers, name=config.model_type, identity=identity_of(network),
                                 max_tokens=config.max_position_embeddings, vocab_tokens=config.vocab_size)


def own_text(network: Any, tokens: Text, n_tokens: int) -> Tuple[Text, float]:
    """What generate() writes with its own cache, and the bytes of that cache, a token."""
    network.set_attn_implementation("sdpa")
    ids = torch.tensor([tokens])
    result = network.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=n_tokens, min_new_tokens=n_tokens,
                              do_sample=False, use_cache=True, pad_token_id=0)
    held = network(input_ids=ids, use_cache=True)
    cache = held["cache" if "cache" in held else "past_key_values"]  # by version
    n_bytes = sum(x.numel() * x.element_size() for layer in cache.layers for x in (layer.keys, layer.values))
    network.set_attn_implementation("kvcsa")
    return result[0, len(tokens) :].tolist(), n_bytes / len(tokens)


# ---------------------------------------------------------------- what is shown

def compare(who: str, said: Text, wanted: Text, decode: Callable[[Text], str]) -> bool:
    same = next((i for i, (a, b) in enumerate(zip(said, wanted)) if a != b), len(wanted))
    print(f"{who}: {decode(said)!r}")
    print("    the text of generate()" if same == len(wanted) else f"    differs from generate() from token {same} of {len(wanted)} on")
    return same == len(wanted)


def tour(network: Any, format: str, prompt: Text, tails: List[Text], decode: Callable[[Text], str]) -> bool:
    """A conversation, a second one with the same beginning, and a fork of the first."""
    plan = plan_of(network, format)
    with kvcsa.Pool() as pool:
        host = Host(network, plan, pool)
        first = host.session()
        wanted, own_bytes = own_text(network, prompt, N_TOKENS)
        same = compare(f"\n{format} entries, {plan.cost(len(prompt)).rate:.0f} bytes a token (generate(): {own_bytes:.0f})",
                       host.go_on(first, prompt, N_TOKENS), wanted, decode)
        for who, tail in zip(("second session", "fork"), tails):
            session = host.session() if who != "fork" else first.fork(len(prompt))
            host.n_rows = 0
            said = host.go_on(session, prompt + tail, N_TOKENS)
            reuse = f"{session.stats().n_adopted_tokens} tokens adopted, {host.n_rows} rows computed for {len(session) + 1} tokens"
            same &= compare(f"{who}, {reuse}", said, own_text(network, prompt + tail, N_TOKENS)[0], decode)
            session.close()
        first.close()
        pool.check()
    return same


def main() -> int:
    parser = argparse.ArgumentParser(description="A Hugging Face model whose keys and values lie in our pool.")
    parser.add_argument("directory", nargs="?", help="of a model; none: a small one is made")
    parser.add_argument("--format", default="bf16", help="of entries, in the second round")
    parser.add_argument("--prompt", help="none: the beginning of a text")
    parser.add_argument("--steps", type=int, default=300, help="of training, for the small model")
    args = parser.parse_args()

    transformers.logging.set_verbosity_error()
    transformers.AttentionInterface.register("kvcsa", pool_attention)
    network, encode, decode = model_of(args.directory) if args.directory else small_model(args.steps)
    network.eval()
    network.generation_config.eos_token_id = None
    prompt = encode(args.prompt) if args.prompt else encode(TEXT.read_text())[:500]
    tails = [encode(" The captain "), encode(" And there ")]
    with torch.inference_mode():
        same = tour(network, "f32", prompt, tails, decode)
        tour(network, args.format, prompt, tails, decode)
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
