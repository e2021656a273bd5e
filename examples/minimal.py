"""Open a model, ask it to go on with a text, print what it says as it comes.

    PYTHONPATH=lib/python python3 examples/minimal.py examples/models/tiny "In the beginning"
"""

import sys

import kvcsa


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit("usage: minimal.py MODEL TEXT")
    with kvcsa.Model(sys.argv[1]) as model, kvcsa.Pool() as pool, pool.session(model) as session:
        session.append(model.tokenize(sys.argv[2]))
        print(sys.argv[2], end="")
        for text in session.stream(60, kvcsa.Sampler(seed=1, temperature=0.8, top_p=0.95)):
            print(text, end="", flush=True)
        print()


if __name__ == "__main__":
    try:
        main()
    except kvcsa.Error as error:
        sys.exit(f"minimal.py: {error}")
