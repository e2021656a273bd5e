#!/usr/bin/env python3
"""Turns include/kvcsa.h, as it is written to be read, into what doxygen wants.

    filter.py HEADER            the header with doxygen's commands, on stdout (doxygen's INPUT_FILTER)
    filter.py --check HEADER    says which functions lack a line that their comment must have

The header has no doxygen commands but @param. Here its own forms become them:

    Status: Thread: Owner: Source: Since: Waits:   paragraphs of their own; a Status becomes a list
    ERR_ARG, kvcsa_pool_step, KVCSA_OK             links, where such a thing is declared
    a comment behind a field, a value, a macro     is that thing's documentation
    a comment behind the { of a struct or enum     is the struct's or enum's
    the line of dashes in front of a part          a group, which has a page
"""
import re
import sys

FILE_ENDS = r"\.(?:h|hpp|so|map|abi|txt|md)\b"
LABELS = "Status|Thread|Owner|Source|Since|Waits"
COMMENT = re.compile(r"/\*.*?\*/", re.S)
OPENS = re.compile(r"^\s*(?:typedef\s+)?(?:struct|enum|union)\b[^;{}]*\{\s*$")
FUNCTION = re.compile(r"(/\*\*(?:(?!\*/).)*\*/\s*)?KVCSA_API\s+([^;(]*?)\b(kvcsa_\w+)\s*\(", re.S)


def body(comment):
    """Lines of a comment without its frame."""
    text = re.sub(r"^/\*+<?|\*+/$", "", comment)
    return [re.sub(r"^\s*\* ?", "", line) if i else line.strip() for i, line in enumerate(text.split("\n"))]


def known_names(header):
    """Functions, types and constants that may be linked to."""
    code = COMMENT.sub(" ", header)
    functions = {m.group(3) for m in FUNCTION.finditer(code)}
    types = set(re.findall(r"\}\s*(kvcsa_\w+)\s*;", code)) | set(re.findall(r"\(\*(kvcsa_\w+)\)", code))
    types |= set(re.findall(r"typedef\s+[\w\s]+?\b(kvcsa_\w+)\s*;", code))
    constants = set(re.findall(r"\b(KVCSA_\w+)\b\s*(?:=|,|\})", code))
    constants |= set(re.findall(r"#define\s+(KVCSA_\w+)\s+\S", code))
    return functions, types, constants


class Filter:
    def __init__(self, header):
        self.header = header
        self.functions, self.types, self.constants = known_names(header)
        self.group = None
        self.out = []

    def prose(self, text):
        """Plain text with links; nothing in it is a command of doxygen's."""
        text = re.sub(r"([\\@&$#%])", r"\\\1", text).replace("<", "\\<").replace(">", "\\>")
        text = re.sub(r"`([^`]+)`", r"<tt>\1</tt>", text)

        def link(m):
            word = m.group(0)
            if word.startswith("ERR_"):
                word = "KVCSA_" + word
            if word in self.functions:
                return word + "()"
            if word in self.constants or word in self.types:
                return "#" + word
            return m.group(0)

        return re.sub(r"(?<![/\w])(?:ERR_[A-Z]+|KVCSA_[A-Z0-9_]*[A-Z0-9]|kvcsa_\w+)\b(?!\(|%s)" % FILE_ENDS, link, text)

    def status(self, text):
        """'ERR_ARG why; ERR_FULL why. And a sentence.' as a list."""
        parts = re.split(r";\s+(?=(?:ERR_|or\b))", text)
        tail = ""
        m = re.match(r"(ERR_(?:[^.(]|\([^)]*\))*\.)\s+([A-Z].*)$", parts[-1], re.S)
        if m:
            parts[-1], tail = m.group(1), m.group(2)
        lines = [" - " + self.prose(p.rstrip(".")) for p in parts]
        return lines + ([""] + [self.prose(tail)] if tail else [])

    def doc(self, comment):
        """Body of a /** comment, as lines."""
        text = "\n".join(body(comment)).strip()
        # What stands in front of the first label is prose and @param; labels come at the end.
        cut = re.search(r"(?:^|(?<=\s))(?:%s):\s" % LABELS, text)
        front, back = (text[:cut.start()], text[cut.start():]) if cut else (text, "")
        lines = []
        for part in re.split(r"\n(?=@param)", "\n" + front.strip()):
            m = re.match(r"@param\s+(\w+(?:,\s*\w+)*)\s+(.*)$", part.strip(), re.S)
            if m:
                lines.append("@param %s %s" % (re.sub(r"\s", "", m.group(1)), self.prose(" ".join(m.group(2).split()))))
            else:
                lines += [self.prose(line) for line in part.strip().split("\n")] + [""]
        found = re.split(r"(?:^|(?<=\s))(%s):\s+" % LABELS, back)[1:]
        for label, value in zip(found[::2], found[1::2]):
            value = " ".join(value.split())
            if label == "Since":
                lines += ["@since " + self.prose(value)]
            else:
                lines += ["@par " + label] + (self.status(value) if label == "Status" else [self.prose(value)])
            lines.append("")
        return lines

    def main_page(self, comment):
        lines = ["@file", "@mainpage"]
        for line in body(comment):
            item = re.match(r"\s{2,}(\w+)\s{2,}(\S.*)$", line)
            if item:
                lines.append(" - <b>%s</b>: %s" % (item.group(1), self.prose(item.group(2))))
            elif re.match(r"\s+- ", line):
                lines.append("%s- %s" % (line[:line.index("-")], self.prose(line.split("- ", 1)[1])))
            elif line.strip() == "Rules that hold for every function":
                lines += ["@section rules " + line.strip()]
            else:
                lines.append(self.prose(line))
        return lines

    def emit(self, lines, opening="/**"):
        while lines and not lines[-1].strip():
            lines.pop()
        self.out.append(opening + " " + "\n".join(lines).strip() + ("\n */" if len(lines) > 1 else " */"))

    def new_group(self, title, at):
        """Begins a group; a comment that stands alone at its beginning speaks of all of it. Returns where to go on."""
        if self.group:
            self.out.append("/** @} */\n")
        self.group = re.sub(r"\W+", "_", title)
        lines = ["@defgroup %s %s" % (self.group, title[0].upper() + title[1:])]
        m = re.match(r"\s*(/\*(?!\*)(?:(?!\*/).)*\*/)(?=[ \t]*\n[ \t]*\n)", self.header[at:], re.S)
        if m:
            lines += [self.prose(line) for line in body(m.group(1))]
            at += m.end()
        self.emit(lines + ["@{"])
        return at

    def enum_notes(self, start):
        """Comments on lines of their own inside the enum that begins at start: 'From X on: text'."""
        end = self.header.index("}", start)
        inside = self.header[start:end]
        notes = []
        for m in re.finditer(r"\n\s*(/\*.*?\*/)\s*\n\s*(KVCSA_\w+)", inside, re.S):
            notes.append("From #%s on: %s." % (m.group(2), self.prose(" ".join(body(m.group(1))).strip())))
        return notes

    def run(self):
        text, at, in_enum, first = self.header, 0, False, True
        while True:
            m = COMMENT.search(text, at)
            code = text[at:m.start() if m else len(text)]
            line = code[code.rfind("\n") + 1:]
            for brace in re.finditer(r"\benum\b[^;{]*\{|\}", code):
                in_enum = brace.group(0) != "}"
            if not m:
                head, mark, tail = code.rpartition("#ifdef __cplusplus")
                self.out.append(head + "/** @} */\n" + mark + tail if self.group else code)
                return "".join(self.out)
            comment, at = m.group(0), m.end()
            rule = re.match(r"/\* -{8,} (.+?) \*/", comment)
            words = self.prose(" ".join(" ".join(body(comment)).split()))
            if first:
                self.out.append(code)
                self.emit(self.main_page(comment))
                first = False
            elif rule:
                self.out.append(code)
                at = self.new_group(rule.group(1), at)
            elif comment.startswith("/**"):
                self.out.append(code)
                self.emit(self.doc(comment))
            elif OPENS.match(line):
                # The comment goes in front of the line that it ends.
                self.out.append(code[:len(code) - len(line)])
                notes = self.enum_notes(m.end()) if "enum" in line else []
                self.emit([words] + [n for note in notes for n in ("", note)])
                self.out.append("\n" + line)
            elif line.strip():
                self.out.append(code)
                self.emit([words], "/**<")
            else:
                self.out.append(code)
                # In an enum it is among the notes above; with nothing behind it, it belongs to nothing.
                if not in_enum and not re.match(r"[ \t]*\n[ \t]*\n", text[at:]):
                    self.emit([words])


def complaints(header):
    """What the comment of a function must say."""
    for m in FUNCTION.finditer(header):
        comment, result, name = m.group(1) or "", m.group(2).strip(), m.group(3)
        wanted = ["Thread", "Since"]
        if result == "kvcsa_status":
            wanted.append("Status")
        if not comment:
            yield "%s has no comment" % name
            continue
        for label in wanted:
            if not re.search(r"(?:^|\s)%s:\s" % label, comment):
                yield "the comment of %s has no line '%s:'" % (name, label)


def main():
    check = sys.argv[1:2] == ["--check"]
    with open(sys.argv[2 if check else 1], encoding="utf-8") as file:
        header = file.read()
    if check:
        found = list(complaints(header))
        print("\n".join(found) if found else "%d functions" % len(FUNCTION.findall(header)))
        return 1 if found else 0
    sys.stdout.write(Filter(header).run())
    return 0


if __name__ == "__main__":
    sys.exit(main())
