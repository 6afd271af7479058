"""Reads the public headers: what they declare, by Doxygen, and the comments that say what it is for.

Doxygen finds the declarations and where they stand. The comments are plain `//` lines, which Doxygen does not read, so they
are taken from the headers themselves:

- the lines directly above a declaration, or behind it on its line, with the lines that continue them;
- a declaration that follows another without an empty line and without a comment shares the comment of the other one.
"""
import dataclasses
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import rooms as r  # noqa: E402

DOXYFILE = """
INPUT = {headers}
OUTPUT_DIRECTORY = {out}
RECURSIVE = YES
FILE_PATTERNS = *.h
GENERATE_HTML = NO
GENERATE_LATEX = NO
GENERATE_XML = YES
XML_PROGRAMLISTING = NO
HAVE_DOT = NO
CLASS_DIAGRAMS = NO
INCLUDE_GRAPH = NO
INCLUDED_BY_GRAPH = NO
COLLABORATION_GRAPH = NO
CLASS_GRAPH = NO
EXTRACT_ALL = YES
EXTRACT_STATIC = YES
INPUT_FILTER = "sed 's/::inline v0//'"
ENABLE_PREPROCESSING = YES
MACRO_EXPANSION = YES
EXPAND_ONLY_PREDEF = YES
PREDEFINED = LOCKSTEP_API= LOCKSTEP_GUARDED_BY(x)= LOCKSTEP_PT_GUARDED_BY(x)= LOCKSTEP_REQUIRES(x)= LOCKSTEP_EXCLUDES(x)= \\
             LOCKSTEP_ACQUIRE(x)= LOCKSTEP_RELEASE(x)= LOCKSTEP_CAPABILITY(x)= LOCKSTEP_SCOPED_CAPABILITY= LOCKSTEP_ACQUIRED_BEFORE(x)= \\
             LOCKSTEP_TRY_ACQUIRE(x)= LOCKSTEP_RETURN_CAPABILITY(x)= LOCKSTEP_INLINE=inline __attribute__(x)= \\
             "TORCH_MODULE(x)=class x : public torch::nn::ModuleHolder<x##Impl> {{}}"
STRIP_FROM_PATH = {headers}
QUIET = YES
WARNINGS = NO
AUTOLINK_SUPPORT = NO
MARKDOWN_SUPPORT = NO
SEARCH_INCLUDES = NO
"""
COMPOUNDS = {"class", "struct", "union", "concept"}


class Missing(Exception):
    """A program that is needed is not here."""


@dataclasses.dataclass
class Name:
    """One declaration. Lines count from 1."""
    kind: str  # class, struct, union, concept, enum, function, variable, typedef, define, value
    name: str
    qualified: str
    file: str  # lockstep/comm/communicator.h
    line: int
    start: int = 0  # with the lines of a template<...>
    end: int = 0
    code: str = ""  # the declaration without its body
    comment: str = ""
    shared: bool = False  # the comment is the one of the declaration above
    parent: str = ""  # of a member: its class, qualified
    flags: frozenset = frozenset()
    members: list = dataclasses.field(default_factory=list)

    @property
    def spoken(self):
        """The name without the namespace lockstep."""
        return self.qualified.removeprefix("lockstep::")


@dataclasses.dataclass
class Header:
    path: str
    comment: str  # at the top of the file
    names: list  # in the order of the file; members are in their class
    root: bool  # named by lockstep.h, a room, a page or an example; the others are included by those


def public_roots(tree):
    """Those that CMakeLists.txt files name beside lockstep.h (HEADERS of lockstep_room)."""
    roots = ["lockstep/lockstep.h"]
    for folder, words in sorted(tree.cmake_words.items()):
        inside = False
        for word in words:
            if word in r.KEYWORDS:
                inside = word == "HEADERS"
            elif inside and word.endswith(".h"):
                roots.append(os.path.normpath(f"{folder}/{word}"))
    return roots


def copy_public_headers(root, roots, out):
    """What an installation puts into its include folder, by the same script."""
    if not shutil.which("cmake"):
        raise Missing("cmake is not here, which finds the public headers")
    shutil.rmtree(out, ignore_errors=True)
    subprocess.run(["cmake", "-DROOTS=" + ";".join(roots), f"-DSOURCE={root}", f"-DDESTINATION={out}", "-P",
                    os.path.join(root, "cmake/install_headers.cmake")], check=True, stdout=subprocess.DEVNULL)


def run_doxygen(headers, out):
    if not shutil.which("doxygen"):
        raise Missing("doxygen is not here, which reads the headers: apt-get install doxygen")
    shutil.rmtree(out, ignore_errors=True)
    os.makedirs(out)
    done = subprocess.run(["doxygen", "-"], input=DOXYFILE.format(headers=headers, out=out), text=True, capture_output=True, check=False)
    if done.returncode:
        raise RuntimeError(f"doxygen ended with {done.returncode}: {done.stderr[-2000:]}")
    return os.path.join(out, "xml")


# -- the text of a header

def code_of(line):
    """A line without its // comment."""
    at, quote = 0, ""
    while at < len(line):
        c = line[at]
        if quote:
            if c == "\\":
                at += 1
            elif c == quote:
                quote = ""
        elif c == '"' or (c == "'" and not (at and line[at - 1].isalnum())):
            quote = c
        elif line.startswith("//", at):
            return line[:at].rstrip()
        at += 1
    return line.rstrip()


class Source:
    def __init__(self, path):
        with open(path, encoding="utf-8") as f:
            self.lines = f.read().split("\n")
        self.code = [code_of(line) for line in self.lines]

    def comment_column(self, index):
        """Where the comment of a line begins, or -1."""
        line, code = self.lines[index], self.code[index]
        rest = line[len(code):]
        return len(code) + rest.index("//") if "//" in rest else -1

    def only_comment(self, index):
        return 0 <= index < len(self.lines) and not self.code[index] and "//" in self.lines[index]

    def start_of(self, index):
        """The first line of the declaration whose name stands in line `index`."""
        while index > 0:
            above = self.code[index - 1].strip()
            if not above or above.startswith("#") or (above[-1] in ";{}:," and not above.startswith(("requires ", "template "))):
                break
            index -= 1
        return index

    def end_of(self, start, value=False):
        """(end of the declaration's head as (line, column), last line) from the line in which it begins."""
        depth, head = 0, None
        braces = 0
        for index in range(start, min(start + 400, len(self.code))):
            text = re.sub(r'"(?:[^"\\]|\\.)*"', lambda m: '"' + "." * (len(m.group(0)) - 2) + '"', self.code[index])
            for column, c in enumerate(text):
                if c in "([":
                    depth += 1
                elif c in ")]":
                    depth -= 1
                elif c == "{":
                    # Braces of a default value belong to the head: = {}, (options = {}).
                    before = text[:column].rstrip()
                    if depth == 0 and braces == 0 and head is None and not before.endswith(("=", ",")):
                        head = (index, column)
                    braces += 1
                elif c == "}":
                    braces -= 1
                    if value and braces < 0:
                        return head or (index, column), index
                    if braces == 0 and depth == 0 and head is not None and not re.match(r"\s*[;,:]", text[column + 1:]):
                        if not re.search(r"\b(class|struct|enum|union)\b", self.code[start]) or text[column + 1:].strip():
                            return head, index
                elif c == "," and value and depth == 0 and braces == 0:
                    return (index, column), index
                elif c == ":" and depth == 0 and braces == 0 and head is None and re.search(r"\)\s*(noexcept)?\s*$", (self.code[index - 1] if not text[:column].strip() else text[:column])):
                    if text[column:column + 2] != "::":
                        head = (index, column)
                elif c == ";" and depth == 0 and braces == 0:
                    return head or (index, column), index
        return head or (start, len(self.code[start])), start

    def text(self, start, head):
        """The code from line `start` to `head`, without comments and marks."""
        lines = self.code[start:head[0]] + [self.code[head[0]][:head[1]]]
        lines = [line for line in lines if line.strip()]
        indent = min((len(line) - len(line.lstrip()) for line in lines), default=0)
        text = "\n".join(line[indent:].rstrip() for line in lines).strip()
        if text.startswith("#"):
            return text
        text = re.sub(r"\s*\bLOCKSTEP_\w+\([^()]*\)", "", text)
        return re.sub(r"\bLOCKSTEP_(API|INLINE|SCOPED_CAPABILITY)\s+", "", text)

    def block_above(self, start):
        """The comment directly above the line `start`."""
        indent = len(self.lines[start]) - len(self.lines[start].lstrip())
        first = start
        while self.only_comment(first - 1) and self.comment_column(first - 1) == indent:
            first -= 1
        return self.strip(range(first, start))

    def trailing(self, start, end):
        for index in range(start, end + 1):
            column = self.comment_column(index)
            if column >= 0 and self.code[index]:
                last = index
                indent = len(self.lines[start]) - len(self.lines[start].lstrip())
                while self.only_comment(last + 1) and self.comment_column(last + 1) == column and column > indent:
                    last += 1
                return self.strip(range(index, last + 1), column)
        return ""

    def strip(self, indices, column=None):
        out = []
        for index in indices:
            at = self.comment_column(index) if column is None else column
            out.append(re.sub(r"^///?<? ?", "", self.lines[index][at:]))
        return "\n".join(out).strip("\n")

    def top(self):
        out = []
        for index, line in enumerate(self.lines):
            if not line.startswith("//"):
                break
            out.append(index)
        return self.strip(out)


# -- Doxygen's files

def is_hidden(qualified):
    """What is not for users: rooms' own namespaces, specialisations, and declarations of libraries that a header names ahead."""
    parts = qualified.split("::")
    if parts[0] in ("torch", "at", "c10", "std"):
        return True
    return any(part in ("internal", "detail", "impl") or part.startswith("@") for part in parts[:-1]) or "<" in qualified


def flags_of(member):
    words = {key for key in ("static", "virt", "explicit", "inline") if member.get(key) not in (None, "no", "non-virtual")}
    arguments = member.findtext("argsstring") or ""
    for word, pattern in (("deleted", r"=\s*delete"), ("defaulted", r"=\s*default"), ("pure", r"=\s*0\s*$")):
        if re.search(pattern, arguments):
            words.add(word)
    if member.find("reimplements") is not None or re.search(r"\)[^()]*\boverride\b", arguments):
        words.add("override")
    return frozenset(words)


def read_xml(folder):
    """[Name] of all headers, members too; without comments."""
    found = []
    compounds = [compound for file in sorted(os.listdir(folder)) if file.endswith(".xml") and file not in ("index.xml", "Doxyfile.xml")
                 for compound in ET.parse(os.path.join(folder, file)).getroot().iter("compounddef")]
    private = {re.sub(r" ?<[^>]*>", "", inner.text) for compound in compounds for inner in compound.findall("innerclass") if inner.get("prot") != "public"}
    for compound in compounds:
        kind, name = compound.get("kind"), compound.findtext("compoundname")
        if kind not in COMPOUNDS | {"namespace", "file"} or is_hidden(name + "::x") or compound.get("prot") in ("private", "protected"):
            continue
        if any(name == one or name.startswith(one + "::") for one in private):
            continue
        if kind in COMPOUNDS:
            place = compound.find("location")
            if place is None or is_hidden(name) or not place.get("file", "").startswith("lockstep/"):
                continue
            found.append(Name(kind, name.rpartition("::")[2], name, place.get("file"), int(place.get("line"))))
        for member in compound.iter("memberdef"):
            if member.get("prot") != "public" or (kind == "file" and member.get("kind") not in ("define", "function", "typedef", "enum")):
                continue
            place = member.find("location")
            own = member.findtext("name") or ""
            if place is None or not place.get("file", "").startswith("lockstep/") or not own or own.startswith("@"):
                continue
            qualified = own if kind == "file" else f"{name}::{own}"
            if kind == "file" and "::" in (member.findtext("definition") or "").split("(")[0] and "lockstep::" in (member.findtext("definition") or ""):
                continue  # stands in its namespace's file too
            if member.get("kind") == "friend":
                continue
            one = Name(member.get("kind"), own, qualified, place.get("file"), int(place.get("line")), flags=flags_of(member),
                       parent=name if kind in COMPOUNDS else "")
            if one.kind == "enum":
                one.members = [Name("value", value.findtext("name"), f"{qualified}::{value.findtext('name')}", one.file, 0, parent=qualified)
                               for value in member.findall("enumvalue")]
            found.append(one)
    return found


def is_private(one, owner, source):
    """Whether a nested type that is defined outside of its class was declared in the class's private part, which Doxygen overlooks."""
    for index in range(owner.start - 1, owner.end):
        if re.match(rf"\s*(class|struct) {re.escape(one.name)};", source.code[index]):
            access = [line.strip() for line in source.code[owner.start - 1:index] if re.match(r"\s*(public|protected|private):", line)]
            return bool(access) and access[-1] != "public:"
    return False


def place_values(enum, source, head, end):
    """Finds the lines of an enum's values, which Doxygen does not tell."""
    index = head[0]
    for value in enum.members:
        while index <= end and not re.search(rf"\b{re.escape(value.name)}\b", source.code[index][head[1]:] if index == head[0] else source.code[index]):
            index += 1
        value.line = min(index, end) + 1


def shares(one, former):
    """Whether the comment of the declaration above, which ends directly above, speaks of this one too."""
    if not former.comment or "trailing" in former.flags:
        return False
    # A type that only this function takes stands between the comment and the function.
    if one.kind == "function" and (former.kind in ("typedef", "struct", "enum") or (former.kind == "variable" and not former.parent)):
        return True
    if one.kind != former.kind:
        return False
    if one.kind == "function":
        same = one.name.removeprefix("i") == former.name.removeprefix("i")
        named = re.search(rf"\b{re.escape(one.name.rstrip('s'))}s?\b", former.comment)
        return same or named is not None or not re.search(r"\(\) const\b", one.code)
    return one.kind == "define" or one.line <= former.end


def describe(names, source):
    """Fills in code and comments of the declarations of one class or file, which are in the order of the lines."""
    former = None
    for one in names:
        index = one.line - 1
        if one.kind == "define":
            one.start = index
            while one.start <= index and source.lines[index].endswith("\\"):
                index += 1
            one.end = index + 1
            one.code = "#define " + (re.match(r"\s*#\s*define\s+(\w+(?:\([^)]*\))?)", source.code[one.start]) or [None, one.name])[1]
            one.comment = source.block_above(one.start)
            one.start += 1
        else:
            start = index if one.kind == "value" else source.start_of(index)
            head, end = source.end_of(start, one.kind == "value")
            one.start, one.end = start + 1, end + 1
            one.code = source.text(start, head)
            if one.kind == "value":
                one.code = one.name
            one.comment = source.block_above(start)
            # Of a body of several lines the comments are its own; so are those of a class.
            if not one.comment and (one.end == head[0] + 1) and one.kind not in COMPOUNDS:
                one.comment = source.trailing(start, end)
                trailing = bool(one.comment)
            else:
                trailing = False
            if one.kind == "enum":
                place_values(one, source, head, end)
        if not one.comment and former and (former.end in (one.start - 1, one.start) or one.line <= former.end) and shares(one, former):
            one.comment, one.shared = former.comment, True
        if one.kind != "define" and trailing:
            one.flags |= {"trailing"}
        if one.members:
            one.members.sort(key=lambda member: member.line)
            describe(one.members, source)
        former = one


def read_headers(root, work):
    """[Header] of the public headers of the tree `root`; `work`: a folder for what is made on the way."""
    work = os.path.abspath(work)
    tree = r.read_tree(root)
    roots = public_roots(tree)
    include = os.path.join(work, "include")
    copy_public_headers(root, roots, include)
    xml = run_doxygen(include, os.path.join(work, "doxygen"))
    by_file, classes = {}, {}
    for one in sorted(read_xml(xml), key=lambda one: (one.file, one.line, one.qualified)):
        by_file.setdefault(one.file, []).append(one)
        if one.kind in COMPOUNDS:
            classes[one.qualified] = one
    named = {path for path in roots}
    named |= {name for _, _, name in r.includes(include, "lockstep/lockstep.h")}
    for folder, pattern in (("docs", ".md"), ("examples", (".h", ".cpp"))):
        for where, _, files in os.walk(os.path.join(root, folder)):
            for file in files:
                if file.endswith(pattern):
                    named |= set(re.findall(r"lockstep/[a-z0-9_/]+\.h", r.read_text(where, file)))
    headers = []
    for path in sorted(os.path.relpath(os.path.join(folder, file), include) for folder, _, files in os.walk(include) for file in files):
        source = Source(os.path.join(include, path))
        top = []
        seen = set()
        for one in by_file.get(path, []):
            key = (one.qualified, one.line, one.kind)
            # A deduction guide has its class's name.
            if key in seen or (one.kind == "function" and one.qualified in classes):
                continue
            seen.add(key)
            holder = one.parent if one.kind not in COMPOUNDS else one.qualified.rpartition("::")[0]
            if holder in classes:
                if classes[holder].file == path:
                    classes[holder].members.append(one)
            elif not one.parent:
                top.append(one)
        describe(top, source)
        for one in top:
            one.members = [m for m in one.members if not (m.kind in COMPOUNDS and m.line > one.end and is_private(m, one, source))]
        headers.append(Header(path, source.top(), top, path in named))
    return headers


# -- what has no comment

ITERATOR = {"iterator_concept", "iterator_category", "difference_type", "value_type", "reference", "pointer", "begin", "end"}


def first_words(text):
    return re.split(r"[:.\n]", text, maxsplit=1)[0]


def described(one, header):
    """Whether a comment says what a name is for: its own, or that of a file which begins with the name, or that of the module which a
    holder (TORCH_MODULE) holds."""
    if one.comment:
        return True
    if not one.parent and re.search(rf"\b{re.escape(one.name)}\b", first_words(header.comment)):
        return True
    module = next((other for other in header.names if other.name == one.name + "Impl"), None)
    return module is not None and described(module, header)


def undescribed(headers):
    """The names that need a comment and have none: types, functions, constants, macros, public member functions, and the fields of
    options. Not what the language or libtorch gives a meaning: constructors, operators, iterators, what is deleted, defaulted or
    overridden, a module's forward(); nor a further form of a function of which another one in the same place has a comment."""
    def of(one, header, holder):
        if one.kind == "value" or one.name in ITERATOR:
            return
        if one.kind == "variable" and holder and not holder.name.endswith("Options"):
            return
        if one.kind == "typedef" and holder:
            return
        if one.kind == "function" and (one.flags & {"deleted", "defaulted", "override"} or one.name.startswith(("~", "operator"))
                                       or (holder and one.name == holder.name)):
            return
        if one.kind == "function" and one.name == "forward" and holder and holder.name.endswith("Impl"):
            return
        forms = [other for other in (holder.members if holder else header.names) if one.kind == "function" and other.qualified == one.qualified]
        if not described(one, header) and not any(other.comment for other in forms):
            yield header.path, one
        for member in one.members:
            yield from of(member, header, one)
    return [found for header in headers for one in header.names for found in of(one, header, None)]
