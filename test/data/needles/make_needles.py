#!/usr/bin/env python3
"""Write the items for the recall checkpoint (../recall) beside this file:

    recall.jsonl    doors among other doors, rules and clauses: four lengths, five depths
    page27.jsonl    a rule on page 1, a clause that makes it void in the middle of 27 pages of 300 tokens
    page400.jsonl   the same with 400 pages
    doors.jsonl     for `kvcsa need`: documents that tell of 64 doors, and a question about each

and for the trained model, from tiny.jsonl, which is not made here:

    tiny_documents.jsonl    for `kvcsa need`

README.md says more. The same bytes every time.
"""
import json
import os
import re

HERE = os.path.dirname(os.path.abspath(__file__))
COLOURS = ["red", "green", "blue", "white", "black", "gold"]
FILLER = " " + open(os.path.join(HERE, "..", "recall", "filler.txt"), encoding="utf-8").read().strip()


def door(d):
    return " Door %02d is %s." % (d, COLOURS[d * 5 % 6])


def write(name, items):
    with open(os.path.join(HERE, name), "w", encoding="utf-8") as f:
        for item in items:
            f.write(json.dumps(item, ensure_ascii=False) + "\n")


def recall():
    for i, length in enumerate((512, 1024, 2048, 4096)):
        for k, depth in enumerate((0.0, 0.25, 0.5, 0.75, 1.0)):
            d = (7 * (5 * i + k) + 3) % 64
            others = [{"text": door((d + 9 * (j + 1)) % 64)} for j in range(7)]
            answer = " " + COLOURS[d * 5 % 6]
            # at depth 1 the needle is in the window, which is never hidden
            yield {"kind": "door", "filler": FILLER, "length": length, "needle": door(d), "depth": depth, "needles": others,
                   "question": " Door %02d?" % d, "answer": answer, "absent": answer if depth == 1 else " unknown"}
        r = 2 * i
        base = {"filler": FILLER, "length": length, "question": " Rule %d?" % r}
        yield dict(base, kind="rule", needle=" Rule %d: yes." % r, depth=0.1, answer=" yes", absent=" unknown")
        yield dict(base, kind="clause", before=" Rule %d: yes." % r, needle=" Rule %d is void." % r, depth=0.6, answer=" no",
                   absent=" yes")
        yield dict(base, kind="other clause", before=" Rule %d: yes." % r, needle=" Rule %d is void." % (r + 1), depth=0.6,
                   answer=" yes", absent=" yes")
        yield dict(base, kind="nothing", needles=[{"text": door(i)}], answer=" unknown")


def page(pages):
    return [{"kind": "clause", "before": " Rule 3: yes.", "filler": FILLER, "length": 300 * pages, "needle": " Rule 3 is void.",
             "depth": 0.5, "question": " Rule 3?", "answer": " no", "absent": " yes"}]


def doors():
    order = [(29 * i + 11) % 64 for i in range(64)]
    told = [{"text": door(d)} for d in sorted(order, key=lambda d: d * 37 % 64)]
    questions = [" Door %02d?" % d for d in order]
    yield {"filler": FILLER, "length": 4096, "needles": told, "questions": questions}
    # the document itself asks about the first 16 doors, in its last tenth
    asked = [{"text": questions[i], "depth": 0.9 + i / 200} for i in range(16)]
    told = [dict(t, depth=0.9 * (i + 0.5) / 64) for i, t in enumerate(told)]
    yield {"filler": FILLER, "length": 4096, "needles": told + asked, "questions": questions}


def tiny_documents():
    """Statements and filler of some items of tiny.jsonl; the five statements are asked for."""
    asks = [(r"The (\w+) of (\w+) is [^.]*\.", "What is the {0} of {1}? Answer: The {0} of {1} is"),
            (r"(\w+) works as a [^.]*\.", "What does {0} do? Answer: {0} works as a"),
            (r"(\w+) keeps the (\w+) in the [^.]*\.", "Where does {0} keep the {1}? Answer: {0} keeps the {1} in the")]
    lines = open(os.path.join(HERE, "tiny.jsonl"), encoding="utf-8").read().splitlines()
    for line in lines[18::10]:
        document = json.loads(line)["prompt"].rpartition("\nQuestion:")[0]
        statements = document.partition("\n")[0]
        questions = ["\nQuestion: " + form.format(*m.groups()) for rx, form in asks for m in re.finditer(rx, statements)]
        yield {"document": document, "questions": questions}


write("recall.jsonl", recall())
write("page27.jsonl", page(27))
write("page400.jsonl", page(400))
write("doors.jsonl", doors())
write("tiny_documents.jsonl", tiny_documents())
