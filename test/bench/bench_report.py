#!/usr/bin/env python3
"""Writes the tables of docs/benchmarks.md and docs/img/benchmarks.svg from what `make bench` found: bench_report.py RESULTS.json.

The page is text with marked places: "<!-- bench NAME -->" to "<!-- /bench -->". Between them everything is written anew, the rest
is left alone. NAME is a part of the benchmark, or machine, goals, missed. Parts that the results lack keep what is there.

The section "Missed goals" is written by hand, one heading `### NAME, SHAPE` a row. What is missed and has no heading there is listed
under "missed", and so are headings whose goal is met by now; the script then ends with 1.
"""
import json
import re
import sys

DOC = "docs/benchmarks.md"
IMG = "docs/img/benchmarks.svg"
COLOURS = {"FMA": "#0072b2", "VNNI": "#009e73", "read": "#d55e00", "L2": "#cc79a7", "L3": "#e69f00"}
BOUNDS = {"FMA": "fp32 multiply-add", "VNNI": "int8 dot product", "read": "read from memory", "L2": "read from L2", "L3": "read from L3"}


def number(x):
    """Three digits, without exponents."""
    if x == 0:
        return "0"
    if abs(x) >= 1000:
        return f"{x:,.0f}"
    return f"{x:.3g}"


def shape(row):
    return " ".join(w for w in (row["size"], row["detail"]) if w)


def title(row):
    s = shape(row)
    peer = f" beside {row['peer']}" if row.get("peer") else ""
    return f"{row['name']}, {s}{peer}" if s else row["name"] + peer


def faster(row):
    if "ratio" not in row:
        return "peer absent" if row.get("peer") and "median" in row else ""
    if row["goal"].startswith("<="):
        return f"{row['ratio']:.3g}x of its time"
    return f"{1 / row['ratio']:.3g}x"


def cores(row):
    """What two cores gave the loop of the limit, where ours ran on two threads."""
    if "two_cores_gave" not in row:
        return ""
    rule = f": passes by {row['passed_by']}" if row["passed_by"] else ""
    return f"(two cores gave {row['two_cores_gave']:.2f}x, {row['of_two_cores']:.2f} of it{rule})"


def verdict(row):
    v = row["verdict"]
    words = [{"MISSED": "**missed**", "-": ""}.get(v, v), cores(row), "(disturbed)" if row.get("disturbed") else ""]
    return " ".join(w for w in words if w)


def table(rows):
    out = ["| kernel | shape | median | share of limit | peer | its median | faster | goal | |", "|---|---|---|---|---|---|---|---|---|"]
    for r in rows:
        if "skipped" in r:
            out.append(f"| {r['name']} | {shape(r)} | not run: {r['skipped']} | | | | | {r['goal']} | |")
            continue
        share = f"{100 * r['share']:.0f} % {r['bound']}" if "share" in r else ""
        theirs = f"{number(r['peer_median'])} {r['unit']}" if "peer_median" in r else ""
        out.append(f"| {r['name']} | {shape(r)} | {number(r['median'])} {r['unit']} | {share} | {r.get('peer', '')} | {theirs} | "
                   f"{faster(r)} | {r['goal']} | {verdict(r)} |")
    return out


def models(rows):
    out = ["| model | prompt | threads | prefill, tokens/s | of the limit | decode, tokens/s | of the limit |",
           "|---|---|---|---|---|---|---|"]
    for r in rows:
        out.append(f"| {r['model']} | {r['prompt_tokens']} | {r['threads']} | {number(r['prefill_tokens_per_second'])} | "
                   f"{100 * r['prefill_tokens_per_second'] / r['prefill_limit']:.0f} % | {number(r['decode_tokens_per_second'])} | "
                   f"{100 * r['decode_tokens_per_second'] / r['decode_limit']:.0f} % |")
    return out


def limits(part):
    names = {"fma_per_second": ("fp32 FMA", 2e-9, "GFLOP/s"), "fma_avx2_per_second": ("with AVX2", 2e-9, "GFLOP/s"),
             "int8_products_per_second": ("int8 dot products", 2e-9, "GOP/s"), "read_bytes_per_second": ("read", 1e-9, "GB/s"),
             "read_2_threads_bytes_per_second": ("by two threads", 1e-9, "GB/s"), "read_l3_bytes_per_second": ("L3", 1e-9, "GB/s"),
             "read_l2_bytes_per_second": ("L2", 1e-9, "GB/s"), "copy_bytes_per_second": ("memcpy", 1e-9, "GB/s")}
    given = part.get("limits", {})
    return ", ".join(f"{n} {given[k] * f:.3g} {u}" for k, (n, f, u) in names.items() if given.get(k))


def caption(part):
    given = limits(part)
    words = [f"{part['date']}, commit {part['commit']}", "--quick: not for quoting" if part.get("quick") else "",
             f"at the start: {given}" if given else ""]
    return "; ".join(w for w in words if w) + "."


def section(part):
    out = [caption(part), ""]
    if part.get("models"):
        out += models(part["models"])
    if part.get("rows"):
        out += table(part["rows"])
    return out


def machine(data):
    m = data["machine"]
    parts = data["parts"].values()
    peers = sorted({line.split(": ", 1)[1] for p in parts for line in p.get("peers", "").splitlines()})
    every = {k: ", ".join(sorted({p[k] for p in parts})) for k in ("version", "commit", "date")}
    out = ["| | |", "|---|---|", "| commands | `make bench-peers`, `make bench`, `make bench-report` |",
           f"| machine | {m['processor']}, {m['cores']} cores; {m['system']} {m['machine']} |",
           f"| kernels | {m['kernels']}; {m['compiler']} |",
           f"| version | kvcsa {every['version']}, commit {every['commit']} |", f"| date | {every['date']} |"]
    return out + [f"| peer | {p} |" for p in peers]


def all_rows(data):
    return [r for part in data["parts"].values() for r in part.get("rows", [])]


def goals(data):
    rows = [r for r in all_rows(data) if r["goal"]]
    by = {v: [r for r in rows if r["verdict"] == v] for v in ("pass", "MISSED", "peer absent", "not run")}
    names = {"pass": "met", "MISSED": "missed", "peer absent": "not judged, the peer is absent", "not run": "not run"}
    return [f"{len(rows)} goals: " + ", ".join(f"{len(by[v])} {names[v]}" for v in by if by[v]) + "."]


def missed(data, text):
    """The marked list, and whether the hand-written section fits it."""
    rows = [r for r in all_rows(data) if r["verdict"] == "MISSED"]
    heads = set(re.findall(r"^### (.*)$", text.split("## Missed goals", 1)[-1], re.M))
    names = {title(r) for r in rows}
    out = []
    for r in rows:
        figure = f"{number(r['median'])} {r['unit']}"
        figure += f", {100 * r['share']:.0f} % of {r['bound']}" if "share" in r else ""
        figure += f", {faster(r)}" if "ratio" in r else ""
        figure += f" {cores(r)}" if cores(r) else ""
        out.append(f"- {title(r)}: {figure}; goal {r['goal']}" + ("" if title(r) in heads else " (no reason is given below)"))
    stale = sorted(h for h in heads if h not in names and any(title(r) == h for r in all_rows(data)))
    out += [f"- {h}: met now, the section below is out of date" for h in stale]
    return out or ["None."], all(title(r) in heads for r in rows) and not stale


def escape(s):
    return s.replace("&", "&amp;").replace("<", "&lt;")


def picture(data):
    """Bars: share of the limit, one a kernel and shape; a tick where the goal is."""
    seen = {}
    for r in all_rows(data):
        if "share" in r:
            kept = seen.setdefault((r["name"], shape(r)), dict(r))
            kept.update({k: r[k] for k in ("share_goal",) if k in r})
    rows = list(seen.values())
    left, width, step, top = 270, 520, 18, 78
    height = top + step * len(rows) + 50
    m = data["machine"]
    head = f"Share of what the machine can do: {m['processor']}, {m['kernels']}"
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="920" height="{height}" viewBox="0 0 920 {height}" '
           'font-family="DejaVu Sans, Verdana, sans-serif" font-size="11" fill="#222222">',
           f"<title>{escape(head)}</title>", f'<rect width="920" height="{height}" rx="6" fill="#fcfcfc" stroke="#bbbbbb"/>',
           f'<text x="460" y="26" text-anchor="middle" font-size="14">{escape(head)}</text>']
    x = 40
    for b in COLOURS:
        if any(r["bound"] == b for r in rows):
            out.append(f'<rect x="{x}" y="42" width="12" height="12" fill="{COLOURS[b]}"/><text x="{x + 17}" y="52">{BOUNDS[b]}</text>')
            x += 40 + 7 * len(BOUNDS[b])
    out.append(f'<line x1="{x}" y1="42" x2="{x}" y2="54" stroke="#222222" stroke-width="2"/><text x="{x + 7}" y="52">goal</text>')
    for k in range(0, 11, 2):
        gx = left + width * k / 10
        out.append(f'<line x1="{gx:.1f}" y1="{top - 6}" x2="{gx:.1f}" y2="{height - 36}" stroke="#dddddd"/>'
                   f'<text x="{gx:.1f}" y="{height - 20}" text-anchor="middle">{10 * k} %</text>')
    for i, r in enumerate(rows):
        y = top + step * i
        w = width * min(r["share"], 1.1)
        out.append(f'<text x="{left - 8}" y="{y + 10}" text-anchor="end">{escape(r["name"] + ", " + shape(r))}</text>'
                   f'<rect x="{left}" y="{y}" width="{w:.1f}" height="12" fill="{COLOURS.get(r["bound"], "#777777")}"/>'
                   f'<text x="{left + w + 6:.1f}" y="{y + 10}">{100 * r["share"]:.0f}</text>')
        if "share_goal" in r:
            gx = left + width * r["share_goal"]
            out.append(f'<line x1="{gx:.1f}" y1="{y - 2}" x2="{gx:.1f}" y2="{y + 14}" stroke="#222222" stroke-width="2"/>')
    return "\n".join(out + ["</svg>", ""])


def replace(text, name, lines):
    mark = re.compile(rf"(<!-- bench {re.escape(name)} -->\n).*?(<!-- /bench -->)", re.S)
    if not mark.search(text):
        print(f"{DOC} has no place for '{name}'", file=sys.stderr)
    return mark.sub(lambda m: m.group(1) + "\n".join(lines) + "\n" + m.group(2), text)


def main():
    with open(sys.argv[1], encoding="utf-8") as f:
        data = json.load(f)
    with open(DOC, encoding="utf-8") as f:
        text = f.read()
    for name, part in data["parts"].items():
        text = replace(text, name, section(part))
    lines, is_complete = missed(data, text)
    text = replace(text, "machine", machine(data))
    text = replace(text, "goals", goals(data))
    text = replace(text, "missed", lines)
    with open(IMG, "w", encoding="utf-8") as f:
        f.write(picture(data))
    with open(DOC, "w", encoding="utf-8") as f:
        f.write(text)
    if not is_complete:
        print(f"{DOC}: the section of missed goals does not fit the results", file=sys.stderr)
    return 0 if is_complete else 1


if __name__ == "__main__":
    sys.exit(main())
