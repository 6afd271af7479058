"""Reads the rooms of the source tree from their CMakeLists.txt files: what the checks share.

A room is one lockstep_room(...) call. Its files are those under its folder that no deeper room claims, and the tests
that it lists, wherever they are; where one CMakeLists.txt makes several rooms, a file belongs to the room that lists it
(a header: to the one that lists the .cpp of the same name; the main() of its program: to the one it is named after,
ROOM_main.cpp).
"""
import dataclasses
import os
import re

# Of lockstep_room(), cmake/LockstepRoom.cmake.
KEYWORDS = {"NAME", "SOURCES", "HEADERS", "DEPENDS", "LIBRARIES", "TESTS", "MP_TESTS", "SANITIZED_MP", "WAITING_MP", "ALONE_MP", "SHARDS",
            "TIMEOUT", "TEST_DEPENDS", "TORCH", "MODULES", "COLD", "APART", "PROGRAM"}


@dataclasses.dataclass
class Room:
    name: str
    folder: str  # relative to the root, "lockstep/core"
    line: int  # of the lockstep_room call
    sources: list
    tests: list
    mp_tests: list
    depends: list
    test_depends: list
    torch: bool

    @property
    def cmake(self):
        return f"{self.folder}/CMakeLists.txt"

    def listed(self):
        """Files named in the call, relative to the root."""
        return [os.path.normpath(f"{self.folder}/{f}") for f in self.sources + self.tests + self.mp_tests]


def strip_comments(text):
    return re.sub(r"#[^\n]*", "", text)


def parse_cmake(text, folder):
    """Every lockstep_room call of a CMakeLists.txt."""
    text = strip_comments(text)
    rooms = []
    for match in re.finditer(r"\blockstep_room\s*\(([^)]*)\)", text):
        lists, current = {}, None
        for word in match.group(1).replace('"', " ").split():
            if word in KEYWORDS:
                current = word
                lists.setdefault(word, [])
            elif current:
                lists[current].append(word)
        rooms.append(Room(name=(lists.get("NAME") or [""])[0], folder=folder,
                          line=text.count("\n", 0, match.start()) + 1,
                          sources=lists.get("SOURCES", []), tests=lists.get("TESTS", []),
                          mp_tests=lists.get("MP_TESTS", []), depends=lists.get("DEPENDS", []),
                          test_depends=lists.get("TEST_DEPENDS", []), torch="TORCH" in lists))
    return rooms


@dataclasses.dataclass
class Tree:
    root: str
    rooms: list  # bottom to top, in the order of the top CMakeLists.txt
    files: list  # every .h and .cpp under lockstep/, relative to the root
    cmake_words: dict  # folder -> every word of its CMakeLists.txt (files may be listed outside lockstep_room)

    def room(self, name):
        return next((room for room in self.rooms if room.name == name), None)

    def room_of(self, path):
        """The room that a file belongs to, or None."""
        if path.endswith("_test.cpp"):
            for room in self.rooms:
                if path in room.listed():
                    return room
        folder = os.path.dirname(path)
        while folder:
            here = [room for room in self.rooms if room.folder == folder]
            if len(here) == 1:
                return here[0]
            if here:
                stem = os.path.splitext(path)[0]
                for room in here:
                    if (path in room.listed() or any(os.path.splitext(f)[0] == stem for f in room.listed())
                            or os.path.basename(path) == f"{room.name}_main.cpp"):
                        return room
                return here[0]
            folder = os.path.dirname(folder)
        return None


def read_text(root, path):
    with open(os.path.join(root, path), encoding="utf-8") as f:
        return f.read()


def read_tree(root):
    order = re.findall(r"\badd_subdirectory\s*\(\s*(lockstep/[^\s)]+)",
                       strip_comments(read_text(root, "CMakeLists.txt")))
    rooms, files, words = [], [], {}
    for folder, subfolders, names in os.walk(os.path.join(root, "lockstep")):
        subfolders.sort()
        relative = os.path.relpath(folder, root)
        files += [f"{relative}/{name}" for name in sorted(names) if name.endswith((".h", ".cpp"))]
        if "CMakeLists.txt" in names:
            text = read_text(root, f"{relative}/CMakeLists.txt")
            rooms += parse_cmake(text, relative)
            words[relative] = re.split(r"[\s()\"]+", strip_comments(text))

    def place(room):
        parents = [i for i, folder in enumerate(order) if room.folder == folder] or [
            i for i, folder in enumerate(order) if room.folder.startswith(folder + "/")]
        return (max(parents) if parents else len(order), room.folder.count("/"), room.line)

    return Tree(root, sorted(rooms, key=place), files, words)


INCLUDE = re.compile(r'^\s*#\s*include\s*(<|")([^>"]+)[>"]')


def includes(root, path):
    """(line number, '<' or '"', included name) of a file."""
    for number, line in enumerate(read_text(root, path).splitlines(), 1):
        match = INCLUDE.match(line)
        if match:
            yield number, match.group(1), match.group(2)


def main(check, doc):
    """Runs check(tree) -> [problem], prints the problems, and returns the exit status."""
    import argparse

    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default=os.path.normpath(os.path.join(os.path.dirname(__file__), "..", "..")),
                        help="the source tree (default: this one)")
    tree = read_tree(parser.parse_args().root)
    problems = check(tree)
    for problem in problems:
        print(problem)
    print(f"{len(problems)} problem(s) in {len(tree.rooms)} rooms, {len(tree.files)} files" if problems else
          f"ok: {len(tree.rooms)} rooms, {len(tree.files)} files")
    return 1 if problems else 0
