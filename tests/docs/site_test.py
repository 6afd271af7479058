#!/usr/bin/env python3
"""The parts of scripts/docs, on small inputs: what is read from a header, what is refused, how pages are laid out."""
import os
import sys
import tempfile
import textwrap
import unittest

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
sys.path.insert(0, os.path.join(ROOT, "scripts", "lib", "docs"))
sys.dont_write_bytecode = True
import checks  # noqa: E402
import headers as h  # noqa: E402
import reference  # noqa: E402
import site_pages  # noqa: E402


class InFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="lockstep-site-")
        self.addCleanup(folder.cleanup)
        self.root = folder.name

    def write(self, path, text):
        full = os.path.join(self.root, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "w", encoding="utf-8") as f:
            f.write(textwrap.dedent(text))
        return full


class Headers(InFolder):
    """declared(): what Doxygen would say; the comments come from the file."""

    def described(self, text, *declared):
        path = self.write("lockstep/low/a.h", text)
        source = h.Source(path)
        names = []
        for kind, name, line in declared:
            names.append(h.Name(kind, name, f"lockstep::{name}", "lockstep/low/a.h", line))
        h.describe(names, source)
        return {one.name: one for one in names}, source

    def test_comments_stand_above_or_behind(self):
        names, source = self.described('''\
            // a.h: what it is for.
            #pragma once

            // Adds.
            //
            // Collective: all ranks.
            int add(int a,
                    int b = f({}));
            int count();  // how many
                          // there are
            int bare();
            ''', ("function", "add", 7), ("function", "count", 9), ("function", "bare", 11))
        self.assertEqual(source.top(), "a.h: what it is for.")
        self.assertEqual(names["add"].comment, "Adds.\n\nCollective: all ranks.")
        self.assertEqual(names["add"].code, "int add(int a,\n        int b = f({}))")
        self.assertEqual(names["count"].comment, "how many\nthere are")
        self.assertEqual(names["bare"].comment, "", "a comment behind one declaration does not speak of the next")

    def test_forms_of_one_call_share_a_comment(self):
        names, _ = self.described('''\
            // Sends.
            void send(int to);
            Work isend(int to);

            void apart(int to);
            ''', ("function", "send", 2), ("function", "isend", 3), ("function", "apart", 5))
        self.assertEqual((names["isend"].comment, names["isend"].shared), ("Sends.", True))
        self.assertEqual(names["apart"].comment, "", "an empty line ends what a comment speaks of")

    def test_a_getter_does_not_share(self):
        names, _ = self.described('''\
            // The samples of a batch.
            int samples(int batch) const;
            const Options& options() const;
            ''', ("function", "samples", 2), ("function", "options", 3))
        self.assertEqual(names["options"].comment, "")

    def test_templates_marks_and_bodies(self):
        names, _ = self.described('''\
            // Takes any.
            template <typename T>
            LOCKSTEP_API inline T take(T value) LOCKSTEP_REQUIRES(mutex) {
              return value;  // as it is
            }
            // A type.
            class LOCKSTEP_API Thing {
             public:
              int x = 0;
            };
            ''', ("function", "take", 3), ("class", "Thing", 7))
        self.assertEqual(names["take"].code, "template <typename T>\ninline T take(T value)")
        self.assertEqual(names["take"].end, 5)
        self.assertEqual(names["Thing"].code, "class Thing")
        self.assertEqual(names["Thing"].comment, "A type.")


class Undescribed(InFolder):
    def header(self, *names, comment=""):
        return h.Header("lockstep/low/a.h", comment, list(names), True)

    def name(self, kind, name, comment="", members=(), flags=(), parent=""):
        return h.Name(kind, name, f"lockstep::{name}", "lockstep/low/a.h", 1, comment=comment, members=list(members), flags=frozenset(flags), parent=parent)

    def found(self, *names, comment=""):
        return [one.name for _, one in h.undescribed([self.header(*names, comment=comment)])]

    def test_what_needs_a_comment(self):
        bare = [self.name(kind, kind.title()) for kind in ("class", "struct", "function", "enum", "typedef", "define", "variable")]
        self.assertEqual(self.found(*bare), [one.name for one in bare])
        thing = self.name("class", "Thing", "It is.", [
            self.name("function", "act", parent="Thing"), self.name("function", "Thing", parent="Thing"), self.name("function", "~Thing", parent="Thing"),
            self.name("function", "copy", parent="Thing", flags=["deleted"]), self.name("function", "operator==", parent="Thing"),
            self.name("variable", "x", parent="Thing")])
        self.assertEqual(self.found(thing), ["act"])
        self.assertEqual(self.found(self.name("struct", "SendOptions", "Of send().", [self.name("variable", "size", parent="SendOptions")])), ["size"])

    def test_the_comment_of_the_file_counts_for_the_type_it_begins_with(self):
        self.assertEqual(self.found(self.name("class", "Thing"), comment="Thing: acts.\n\nOther is beside it."), [])
        self.assertEqual(self.found(self.name("class", "Other"), comment="Thing: acts.\n\nOther is beside it."), ["Other"])

    def test_the_list_only_becomes_shorter(self):
        exceptions = self.write("list.txt", "# why\nlockstep/low/a.h old\n")
        with_old = [self.header(self.name("function", "old"))]
        self.assertEqual(checks.comments(with_old, exceptions), [])
        more = [self.header(self.name("function", "old"), self.name("function", "fresh"))]
        self.assertEqual(checks.comments(more, exceptions), ["lockstep/low/a.h:1: fresh has no comment that says what it is for"])
        gone = [self.header(self.name("function", "old", "It is there."))]
        self.assertIn("'lockstep/low/a.h old' has a comment now", checks.comments(gone, exceptions)[0])
        self.assertEqual(checks.comments(gone, exceptions, update=True), [])
        with open(exceptions, encoding="utf-8") as f:
            self.assertEqual(f.read(), "# why\n")


class Links(InFolder):
    def test_dead_links_and_strangers(self):
        self.write("index.html", '<h1 id="top">x</h1><a href="a.html#here">1</a><a href="#top">2</a><a href="zh/">3</a><a href="https://example.org">4</a>')
        self.write("a.html", '<a id="here"></a><a href="index.html#gone">1</a><a href="b.html">2</a>')
        self.write("zh/index.html", '<script src="https://example.org/x.js"></script><img src="../p.png">')
        self.assertEqual(checks.links(self.root), [
            "zh/index.html: takes https://example.org/x.js from outside", "a.html: the link b.html leads nowhere",
            "a.html: index.html has no anchor #gone", "zh/index.html: the link ../p.png leads nowhere"])


class Comments(unittest.TestCase):
    def test_marks(self):
        self.assertEqual(reference.marked("all_reduce() of a<b> is *not* `x_y`"), "`all_reduce()` of a\\<b\\> is \\*not\\* `x_y`")
        text = reference.markdown("It acts:\n\n  act(1);\n  act(2);\n\n- one\n  more\n- two\nCollective: all ranks.")
        self.assertEqual(text.split("\n"), ["It acts:", "", "", "```cpp", "act(1);", "act(2);", "```", "", "- one more", "- two", "", "",
                                            "**Collective:** all ranks."])

    def test_names_are_found(self):
        send = h.Name("function", "send_all", "lockstep::Port::send_all", "lockstep/low/a.h", 3, parent="lockstep::Port")
        port = h.Name("class", "Port", "lockstep::Port", "lockstep/low/a.h", 1, members=[send])
        targets = reference.Targets([h.Header("lockstep/low/a.h", "", [port], True)])
        self.assertEqual(targets.find("send_all(x, y)"), "api/low/a.md#Port.send_all")
        self.assertEqual(targets.find("lockstep::Port"), "api/low/a.md#Port")
        self.assertEqual(targets.find("lockstep/low/a.h"), "api/low/a.md")
        self.assertIsNone(targets.find("sendall"))
        self.assertIsNone(targets.find("send all()"))


class Pages(InFolder):
    def stage(self, **files):
        self.write("docs/index.md", "# I\n\n## Begin\n\n- [Guide](guide.md): read it\n")
        self.write("README.md", "# R\n")
        self.write("CONTRIBUTING.md", "# C\n")
        for path, text in files.items():
            self.write(path, text)
        out = os.path.join(self.root, "out")
        staging = site_pages.Staging(self.root, "en", out, reference.Targets([h.Header("lockstep/low/a.h", "", [], True)]))
        return staging, staging.stage(), out

    def test_links_lead_to_pages(self):
        self.write("lockstep/low/a.h", "")
        _, own, out = self.stage(**{"examples/x.cpp": "int x;\n", "docs/guide.md": """\
            # Guide

            [中文](zh/guide.md)

            [`a.h`](../lockstep/low/a.h) [x](../examples/x.cpp) [r](../README.md#r) `[](auto& x)`
            ```
            [x](nowhere.md)
            ```
            """})
        self.assertEqual(own, ["guide.md", "index.md"])
        text = site_pages.read(out, "guide.md")
        self.assertIn("[`a.h`](api/low/a.md) [x](files/examples/x.cpp.md) [r](readme.md#r) `[](auto& x)`", text)
        self.assertIn("[x](nowhere.md)", text)
        self.assertNotIn("中文", text)
        self.assertIn("int x;", site_pages.read(out, "files/examples/x.cpp.md"))

    def test_a_page_that_the_navigation_lacks(self):
        sections = site_pages.navigation("## Begin\n\n- [Guide](guide.md): x\n- see [other](other.md)\n")
        self.assertEqual(sections, [("Begin", [("Guide", "guide.md")])])
        site_pages.check_order("en", ["guide.md", "index.md"], sections)
        with self.assertRaisesRegex(site_pages.Problem, "no point begins with a link to other.md"):
            site_pages.check_order("en", ["guide.md", "index.md", "other.md"], sections)

    def test_a_dead_link_of_a_page(self):
        with self.assertRaisesRegex(site_pages.Problem, "docs/guide.md: the link gone.md leads nowhere"):
            self.stage(**{"docs/guide.md": "[x](gone.md)\n"})


if __name__ == "__main__":
    unittest.main(verbosity=2)
