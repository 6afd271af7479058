"""The reference as Markdown: a page for each public header, an index for each room, and where each name stands."""
import os
import re

KINDS = {"function": "", "variable": "", "typedef": "type ", "define": "macro ", "value": ""}
CONTRACT = re.compile(r"^(Collective|Requires|Throws|Thread-safety|Lifetime|Returns|Ownership|Shapes?|Note): ?")


def page_of(header):
    """lockstep/comm/communicator.h -> api/comm/communicator.md"""
    return "api/" + header.removeprefix("lockstep/").removesuffix(".h") + ".md"


def folder_of(header):
    return os.path.dirname(header).removeprefix("lockstep").strip("/")


def anchor(name):
    return re.sub(r"[^\w.~=+*<>!&|-]", "", name.spoken.replace("::", ".")).replace("<", "lt").replace(">", "gt")


class Targets:
    """Where the reference has a name: as the guides and the comments write it -> page#anchor."""

    def __init__(self, headers):
        self.by_name = {}
        for header in headers:
            for one in header.names:
                self.add(one, header, True)
        self.headers = {header.path: page_of(header.path) for header in headers}

    def add(self, one, header, top):
        place = f"{page_of(header.path)}#{anchor(one)}"
        for name in {one.name, one.spoken, one.qualified, "::".join(one.spoken.split("::")[-2:])}:
            # A type before a function before a member; of members the communicator's.
            rank = 0 if one.kind in ("class", "struct", "enum", "concept") and top else 1 if top else 2 if one.parent.endswith("::Communicator") else 3
            self.by_name.setdefault(name, []).append((rank, place))
        for member in one.members:
            self.add(member, header, False)

    def find(self, text):
        """The page#anchor of what a piece of code names, or None if it names nothing of ours or several things."""
        if re.fullmatch(r"(lockstep/)?[a-z0-9_/]+\.h", text):
            path = text if text.startswith("lockstep/") else "lockstep/" + text
            if path in self.headers:
                return self.headers[path]
            same = [page for header, page in self.headers.items() if header.endswith("/" + text)]
            return same[0] if len(same) == 1 else None
        match = re.fullmatch(r"(?:lockstep::)?(~?[A-Za-z_]\w*(?:::\w+)*)(?:<[\w:, ]*>)?(\([^()]*\))?", text)
        if not match:
            return None
        name, call = match.group(1), match.group(2)
        # A plain word is an English one more often than a function.
        if not call and "::" not in text and not re.search(r"[a-z]_[a-z]|[a-z][A-Z]", name) and not re.match(r"[A-Z][a-z]{2}", name):
            return None
        places = self.by_name.get(name, [])
        best = min((rank for rank, _ in places), default=None)
        found = {place for rank, place in places if rank == best}
        # Overloads in one class have one heading.
        return min(found) if len(found) == 1 or (best == 2 and found) else None


# -- comments

# Code without marks: names with _ or ::, calls, headers.
BARE = re.compile(r"(?<![\w`/.:-])((?:lockstep/)?[a-z][a-z0-9_/]*\.h\b|~?[A-Za-z]\w*(?:(?:::|\.|->)[A-Za-z]\w*)*\((?:\))"
                  r"|[A-Za-z]\w*(?:::\w+)+|\w*[A-Za-z0-9]_\w+|\b[A-Z][a-z]+(?:[A-Z][a-z0-9]+)+\b)")


def marked(line):
    """Comment text -> Markdown: what is code is marked as code, and nothing else means anything."""
    out = []
    for number, piece in enumerate(re.split(r"(`[^`]*`)", line)):
        if number % 2:
            out.append(piece)
            continue
        for index, part in enumerate(BARE.split(piece)):
            out.append(f"`{part}`" if index % 2 else re.sub(r"([\\<>*_\[\]#|~^=])", r"\\\1", part))
    return "".join(out)


def markdown(comment):
    """A comment as Markdown. Lines that are set in are code; `- ` begins a point; the words of contracts begin a line."""
    # A `span` may go on in the next line.
    comment = re.sub(r"`([^`\n]*)\n([^`\n]*)`", r"`\1 \2`", comment)
    out, code, point = [], [], False

    def finish_code():
        if code:
            while code and not code[-1]:
                code.pop()
            indent = min(len(line) - len(line.lstrip()) for line in code if line)
            out.extend(["", "```cpp", *[line[indent:] for line in code], "```", ""])
            code.clear()

    for line in comment.split("\n"):
        words = line.strip()
        if not words:
            if code:
                code.append("")
            else:
                out.append("")
            point = False
            continue
        if line.startswith("- "):
            finish_code()
            if not point and out and out[-1]:
                out.append("")
            out.append("- " + marked(words[2:]))
            point = True
        elif line.startswith("  ") and point and not code:
            out[-1] += " " + marked(words)
        elif line.startswith("  "):
            code.append(line)
        else:
            finish_code()
            if point:
                out.append("")
            point = False
            match = CONTRACT.match(words)
            if match:
                out.extend(["", f"**{match.group(1)}:** " + marked(words[match.end():])])
            else:
                out.append(marked(words))
    finish_code()
    return "\n".join(out).strip("\n")


def sentence(comment, limit=180):
    """The first sentence, in one line."""
    text = re.split(r"\n\n|\n(?=  |- )", comment.strip(), maxsplit=1)[0]
    text = re.split(r"(?<=[a-z)`\"'0-9])\. (?=[A-Z])", " ".join(text.split()), maxsplit=1)[0].rstrip(":")
    return text if len(text) <= limit else text[:limit].rsplit(" ", 1)[0] + " …"


# -- pages

def groups(names):
    """Names that share a comment, together."""
    out = []
    for one in names:
        if one.shared and out and out[-1][0].kind == one.kind:
            out[-1].append(one)
        elif one.name.endswith("Impl") is False and out and out[-1][0].name == one.name and not one.comment and one.kind == "function":
            out[-1].append(one)
        else:
            out.append([one])
    return out


def code_block(group):
    codes = list(dict.fromkeys(one.code for one in group))
    return ["```cpp", *[code + (";" if one.kind != "define" else "") for code, one in zip(codes, group)], "```", ""]


def anchors_of(group, heading):
    rest = dict.fromkeys(anchor(one) for one in group)
    rest.pop(heading, None)
    return ["".join(f'<a id="{name}"></a>' for name in rest), ""] if rest else []


def cell(text):
    return " ".join(markdown(text).split("\n")).replace("|", r"\|") if text else ""


def in_code(text):
    return "`` " + " ".join(text.split()).replace("|", r"\|") + " ``" if "`" in text else "`" + " ".join(text.split()).replace("|", r"\|") + "`"


def table_of(names, left, text_of):
    out = [f"| {left} | |", "|---|---|"]
    for one in names:
        out.append(f'| <a id="{anchor(one)}"></a>{in_code(text_of(one))} | {cell(one.comment)} |')
    return out + [""]


def fields_table(fields):
    """Name, type with default, meaning."""
    out = ["| field | type | |", "|---|---|---|"]
    for one in fields:
        kind, _, default = re.sub(rf"\b{re.escape(one.name)}\b\s*(?==|$|\{{|\[)", "\0", one.code, count=1).partition("\0")
        default = re.sub(r"^\s*=\s*", "", default).strip()
        shown = in_code(kind.strip()) + (f" = {in_code(default)}" if default not in ("", "{}") else "")
        out.append(f'| <a id="{anchor(one)}"></a>`{one.name}` | {shown} | {cell(one.comment)} |')
    return out + [""]


def is_trivial(one):
    return "deleted" in one.flags or one.name.startswith("~") or ("defaulted" in one.flags and not one.comment)


def describe_class(one, level, header):
    out = []
    plain = [m for m in one.members if m.kind == "variable"]
    inner = [m for m in one.members if m.kind in ("class", "struct", "union", "enum")]
    rest = [m for m in one.members if m not in plain and m not in inner and not is_trivial(m)]
    if plain:
        out += fields_table(plain)
    types = [m for m in rest if m.kind == "typedef" and not m.comment]
    quiet = [g for g in groups(m for m in rest if m not in types) if not g[0].comment]
    if types or quiet:
        out += code_block(types + [m for g in quiet for m in g]) + anchors_of(types + [m for g in quiet for m in g], None)
    for group in groups([m for m in rest if m not in types]):
        if group in quiet:
            continue
        title = ", ".join(dict.fromkeys(m.name for m in group))
        out += [f"{'#' * level} {escape(title)} {{ #{anchor(group[0])} }}", ""] + anchors_of(group, anchor(group[0]))
        out += code_block(group) + [markdown(group[0].comment), ""]
    for member in inner:
        out += describe_top([member], level, header)
    return out


def escape(text):
    return re.sub(r"([_*<>\[\]])", r"\\\1", text)


def describe_top(group, level, header):
    one = group[0]
    kind = one.kind + " " if one.kind not in KINDS else KINDS[one.kind]
    title = kind + ", ".join(dict.fromkeys(m.spoken if level == 2 else m.name for m in group))
    out = [f"{'#' * level} {escape(title)} {{ #{anchor(one)} }}", ""] + anchors_of(group, anchor(one))
    if not re.fullmatch(r"(class|struct) \w+", one.code):  # a base or a template is worth a line
        out += code_block(group)
    if one.comment:
        out += [markdown(one.comment), ""]
    if one.kind == "enum":
        out += table_of(one.members, "value", lambda m: m.name)
    elif one.kind not in KINDS:
        module = next((other for other in header.names if other.name == one.name + "Impl"), None)
        if module is not None and not one.members:
            out += [f"Holds a [{escape(module.name)}](#{anchor(module)}).", ""]
        out += describe_class(one, min(level + 1, 5), header)
    return out


def header_page(header, words):
    name = header.path.removeprefix("lockstep/")
    out = [f"# {escape(name)}", "", "```cpp", f"#include <{header.path}>", "```", "", markdown(header.comment), ""]
    if words["note"]:
        out[1:1] = ["", words["note"]]
    for group in groups(header.names):
        out += describe_top(group, 2, header)
    return "\n".join(out) + "\n"


def first_of_each(names, page):
    """A link for each name; of overloads to the first."""
    links = {}
    for one in names:
        links.setdefault(one.name, f"[`{one.name}`]({page}#{anchor(one)})")
    return links.values()


def room_page(folder, headers, purpose, words):
    out = [f"# {folder or 'lockstep.h'}", ""]
    if words["note"]:
        out += [words["note"], ""]
    if purpose:
        out += [purpose[0].upper() + purpose[1:] + ".", ""]
    for title, chosen in ((words["include"], [h for h in headers if h.root]), (words["included"], [h for h in headers if not h.root])):
        if chosen:
            out += [f"## {title}", "", f"| {words['header']} | |", "|---|---|"]
            for header in chosen:
                link = os.path.relpath(page_of(header.path), os.path.dirname(index_of(folder)))
                names = [m for m in header.names if m.kind in ("class", "struct", "function", "enum", "concept")]
                shown = ", ".join(first_of_each(names[:8], link)) + (" …" if len(names) > 8 else "")
                out.append(f"| [`{os.path.basename(header.path)}`]({link}) | {cell(sentence(header.comment))}<br>{shown} |")
            out.append("")
    return "\n".join(out) + "\n"


def index_of(folder):
    return f"api/{folder}/index.md" if folder else "api/lockstep.md"


def purposes(architecture):
    """room -> what it is for, from the table of docs/architecture.md"""
    return {name.removeprefix("`").split("`")[0]: text for name, text in re.findall(r"^\| (`[^|]+) \| ([^|]+) \|$", architecture, re.M)}


def write_pages(headers, out, words, architecture):
    """The pages below OUT/api; returns [(room's folder, index page)] in the order of the alphabet."""
    rooms = {}
    for header in headers:
        rooms.setdefault(folder_of(header.path), []).append(header)
        write(out, page_of(header.path), header_page(header, words)) if folder_of(header.path) else None
    about = purposes(architecture)
    lines = [f"# {words['title']}", "", words["intro"], "", f"| {words['room']} | {words['about']} |", "|---|---|"]
    for folder, members in sorted(rooms.items()):
        purpose = about.get(folder, "")
        if folder:
            write(out, index_of(folder), room_page(folder, members, re.sub(r"\]\((?!http)([^)]+)\)", r"](../../\1)", purpose), words))
            lines.append(f"| [{folder}]({os.path.relpath(index_of(folder), 'api')}) | {purpose} |")
    write(out, "api/index.md", "\n".join(lines) + "\n")
    for header in rooms.get("", []):
        write(out, page_of(header.path), header_page(header, words))
    return [(folder, index_of(folder)) for folder in sorted(rooms) if folder]


def write(out, path, text):
    full = os.path.join(out, path)
    os.makedirs(os.path.dirname(full), exist_ok=True)
    with open(full, "w", encoding="utf-8") as f:
        f.write(text)
