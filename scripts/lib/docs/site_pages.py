"""Lays out the sources of the site, and has MkDocs render them: English at the top, Chinese in zh/.

The Markdown of docs/ is made for readers of the repository. Here its links to files outside docs/ become links to pages: to the
reference for public headers, to a page with the text for any other file. The order of docs/index.md is that of the navigation.
"""
import json
import os
import re
import shutil
import subprocess

import reference

HERE = os.path.dirname(os.path.abspath(__file__))
# A link, whose text may have code, or code, which may have what looks like a link.
LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\]]*\])*\]\()\s*<?([^)\s>]+)>?([^)]*\))|`[^`\n]*`")
FENCE = re.compile(r"^(```|~~~).*?^\1[^\n]*$", re.M | re.S)
LANGUAGES = {
    "en": {"folder": "docs", "readme": "README.md", "site": "", "name": "English", "theme": "en", "search": ["en"]},
    "zh": {"folder": "docs/zh", "readme": "README.zh.md", "site": "zh/", "name": "中文", "theme": "zh", "search": ["en", "zh"]},
}
WORDS = {
    "en": {"title": "Reference", "intro": "The public headers, room by room ([Architecture](../architecture.md#the-rooms) shows the rooms). "
           "`#include <lockstep/lockstep.h>` includes what a training program needs; narrower headers compile faster.",
           "note": "", "room": "room", "about": "what it is for", "include": "Headers to include", "included": "Headers that those include",
           "header": "header", "file": "A file of the repository.", "folder": "A folder of the repository.", "contributing": "Contributing"},
    "zh": {"title": "API 参考", "intro": "公共头文件，按房间排列（[架构](../architecture.md)展示各个房间）。`#include <lockstep/lockstep.h>` "
           "包含训练程序所需的一切；只包含较小的头文件则编译更快。", "note": "*本页由头文件生成，内容为英文。*", "room": "房间", "about": "用途",
           "include": "供包含的头文件", "included": "上述头文件所包含的头文件", "header": "头文件", "file": "仓库中的文件。", "folder": "仓库中的文件夹。",
           "contributing": "参与贡献"},
}


class Problem(Exception):
    """What a reader of the message can put right."""


def read(*parts):
    with open(os.path.join(*parts), encoding="utf-8") as f:
        return f.read()


def outside_code(text, change):
    """The text with change() applied to what stands outside blocks of code."""
    out, at = [], 0
    for match in FENCE.finditer(text):
        out += [change(text[at:match.start()]), match.group(0)]
        at = match.end()
    return "".join(out + [change(text[at:])])


def navigation(index):
    """docs/index.md -> [(section, [(title, page)])]: its headings of the second level, and the links that begin the points below."""
    sections = []
    for line in index.split("\n"):
        heading = re.match(r"## (.+)", line)
        point = re.match(r"- \[([^\]]+)\]\(([\w-]+\.md)\)", line)
        if heading:
            sections.append((heading.group(1).strip(), []))
        elif point and sections:
            sections[-1][1].append((point.group(1), point.group(2)))
    return [section for section in sections if section[1]]


class Staging:
    """The pages of one language, as MkDocs wants them."""

    def __init__(self, root, language, out, targets):
        self.root, self.language, self.out, self.targets = root, language, out, targets
        self.folder = LANGUAGES[language]["folder"]
        self.pages = {}  # path in the repository -> page of the site
        self.files = []  # (path in the repository, page) that a page links and that has to be made
        self.pictures = {}

    def page_for(self, path):
        """The page, or the file, of the site that shows a file of the repository."""
        if path in self.pages:
            return self.pages[path]
        other = next(language for language in LANGUAGES if language != self.language)
        # A page of the other language stands in its own site.
        if path.endswith(".md") and os.path.dirname(path) == LANGUAGES[other]["folder"]:
            page = os.path.basename(path).removesuffix(".md") + ".html"
            return ("zh/" if other == "zh" else "../") + page
        if path.endswith((".svg", ".png", ".jpg")):
            self.pictures[path] = "figures/" + os.path.basename(path)
            return self.pictures[path]
        if path in self.targets.headers:
            return self.targets.headers[path]
        page = f"files/{path}.md" if path not in ("", ".") else "files/index.md"
        self.pages[path] = page
        self.files.append((path, page))
        return page

    def relink(self, text, path, page):
        def change(part):
            return LINK.sub(lambda m: m.group(1) + self.new_target(m.group(2), path, page) + m.group(3) if m.group(1) else m.group(0), part)
        return outside_code(text, change)

    def new_target(self, target, path, page):
        if re.match(r"[a-z][a-z0-9+.-]*:", target) or target.startswith("#"):
            return target
        name, _, part = target.partition("#")
        linked = os.path.normpath(os.path.join(os.path.dirname(path), name))
        if not os.path.exists(os.path.join(self.root, linked)):
            raise Problem(f"{path}: the link {target} leads nowhere")
        there = self.page_for(linked)
        return os.path.relpath(there, os.path.dirname(page) or ".") + ("#" + part if part else "")

    def put(self, path, page):
        text = read(self.root, path)
        # The site has its own switch of languages.
        text = re.sub(r"^\[(?:中文|English)\]\([^)]*\)(?: · |\n\n?)", "", text, flags=re.M, count=1)
        text = self.relink(text, path, page)
        # The first page of the site says the same.
        reference.write(self.out, page, "---\nsearch:\n  exclude: true\n---\n" + text if page == "readme.md" else text)

    def stage(self):
        shutil.rmtree(self.out, ignore_errors=True)
        own = sorted(name for name in os.listdir(os.path.join(self.root, self.folder)) if name.endswith(".md"))
        for name in own:
            self.pages[f"{self.folder}/{name}"] = name
        self.pages[LANGUAGES[self.language]["readme"]] = "readme.md"
        self.pages["CONTRIBUTING.md"] = "contributing.md"
        for path, page in list(self.pages.items()):
            self.put(path, page)
        words = WORDS[self.language]
        for path, page in self.files:  # grows
            full = os.path.join(self.root, path)
            if os.path.isdir(full):
                names = sorted(n for n in os.listdir(full) if n.endswith((".h", ".cpp", ".py", ".md", ".json", ".yaml", ".sh", ".txt", ".svg")))
                points = "\n".join(f"- [`{n}`]({os.path.relpath(self.page_for(os.path.normpath(os.path.join(path, n))), os.path.dirname(page))})" for n in names)
                text = f"# {path}\n\n{words['folder']}\n\n{points}\n"
            elif path.endswith(".md"):
                self.put(path, page)
                continue
            else:
                fence = {".cpp": "cpp", ".h": "cpp", ".py": "python", ".yaml": "yaml", ".json": "json", ".cmake": "cmake"}.get(os.path.splitext(path)[1], "text")
                text = f"# {reference.escape(path)}\n\n{words['file']}\n\n````{fence}\n{read(full)}\n````\n"
            reference.write(self.out, page, "---\nsearch:\n  exclude: true\n---\n" + text)
        for path, page in self.pictures.items():
            os.makedirs(os.path.join(self.out, "figures"), exist_ok=True)
            shutil.copy(os.path.join(self.root, path), os.path.join(self.out, page))
        shutil.copytree(os.path.join(HERE, "theme"), os.path.join(self.out, "theme"))
        reference.write(self.out, "theme/versions-list.js", "")
        return own


def check_order(language, own, sections):
    listed = [page for _, pages in sections for _, page in pages]
    folder = LANGUAGES[language]["folder"]
    missing = sorted(set(own) - set(listed) - {"index.md"})
    if missing:
        raise Problem(f"{folder}/index.md: no point begins with a link to {', '.join(missing)}, so the navigation lacks it")
    twice = sorted({page for page in listed if listed.count(page) > 1})
    if twice:
        raise Problem(f"{folder}/index.md: {', '.join(twice)} begins two points")


def configuration(language, staged, site, sections, rooms, version):
    words, about = WORDS[language], LANGUAGES[language]
    nav = [{words["home"] if "home" in words else "Lockstep": "index.md"}]
    nav += [{section: [{title: page} for title, page in pages]} for section, pages in sections]
    nav.append({words["title"]: ["api/index.md", {"lockstep.h": "api/lockstep.md"}, *[{folder: page} for folder, page in rooms]]})
    return {
        "site_name": "Lockstep", "docs_dir": staged, "site_dir": site, "use_directory_urls": False, "nav": nav,
        "not_in_nav": "/api/**\n/files/**\n/readme.md\n/contributing.md\n",
        "theme": {"name": "material", "language": about["theme"], "font": False, "icon": {"logo": "material/transit-connection-variant"},
                  "palette": [{"media": "(prefers-color-scheme: light)", "scheme": "default", "primary": "blue grey", "accent": "deep orange",
                               "toggle": {"icon": "material/weather-night", "name": "dark"}},
                              {"media": "(prefers-color-scheme: dark)", "scheme": "slate", "primary": "blue grey", "accent": "deep orange",
                               "toggle": {"icon": "material/weather-sunny", "name": "light"}}],
                  "features": ["navigation.indexes", "navigation.prune", "navigation.footer", "navigation.top", "content.code.copy", "search.suggest",
                               "search.highlight", "toc.follow"]},
        "extra": {"generator": False, "version_of_site": version, "language_of_site": language, "lib_of_site": HERE, "polyfills": ["theme/iframe-worker.js"],
                  "alternate": []},
        "extra_css": ["theme/lockstep.css"], "extra_javascript": ["theme/versions-list.js", "theme/versions.js"],
        # Without the stemmer, which makes all_reduce what a search that is still being typed does not find.
        "plugins": {"search": {"lang": about["search"], "pipeline": ["stopWordFilter"], "separator": r'[\s\-\u200b,:!=\[\]()"`/<>]+|\.(?!\d)|&[lg]t;'}, "offline": {}},
        "markdown_extensions": {"attr_list": {}, "tables": {}, "md_in_html": {}, "sane_lists": {}, "toc": {"permalink": True, "toc_depth": 3},
                                "pymdownx.highlight": {"anchor_linenums": False}, "pymdownx.superfences": {}},
        "hooks": [os.path.join(HERE, "hooks.py")],
        "validation": {"links": {"not_found": "ignore", "anchors": "ignore", "unrecognized_links": "ignore"}},
        "strict": False,
    }


def build(root, out, work, headers, version, python):
    """Renders the site into OUT, which is replaced when both languages are done."""
    targets = reference.Targets(headers)
    architecture = {language: read(root, about["folder"], "architecture.md") for language, about in LANGUAGES.items()}
    running, sites = [], {}
    for language, about in LANGUAGES.items():
        staged = os.path.join(work, language)
        staging = Staging(root, language, staged, targets)
        own = staging.stage()
        sections = navigation(read(root, about["folder"], "index.md"))
        check_order(language, own, sections)
        rooms = reference.write_pages(headers, staged, WORDS[language], architecture[language])
        sites[language] = os.path.join(work, "site-" + language)
        config = os.path.join(work, f"mkdocs-{language}.json")
        with open(config, "w", encoding="utf-8") as f:
            json.dump(configuration(language, staged, sites[language], sections, rooms, version), f, ensure_ascii=False, indent=1)
        log = open(os.path.join(work, f"mkdocs-{language}.log"), "w", encoding="utf-8")  # pylint: disable=consider-using-with
        running.append((language, log, subprocess.Popen([python, "-m", "mkdocs", "build", "-q", "-f", config], stdout=log, stderr=log,
                                                        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "NO_MKDOCS_2_WARNING": "1"})))
    failed = []
    for language, log, process in running:
        code = process.wait(timeout=600)
        log.close()
        if code:
            failed.append(f"mkdocs ended with {code} for {language}:\n{read(log.name)[-3000:]}")
    if failed:
        raise RuntimeError("\n".join(failed))
    shutil.move(sites["zh"], os.path.join(sites["en"], "zh"))
    write_versions(sites["en"], version, [version])
    shutil.rmtree(out, ignore_errors=True)
    os.makedirs(os.path.dirname(os.path.abspath(out)), exist_ok=True)
    shutil.move(sites["en"], out)


def write_versions(site, own, every):
    """Tells both languages of a site which version they are and which ones stand beside it."""
    for language in LANGUAGES.values():
        reference.write(os.path.join(site, language["site"]), "theme/versions-list.js", f"window.lockstepVersions = {json.dumps({'own': own, 'all': every})};\n")


def version_of(root):
    return re.search(r"project\(\s*\w+\s+VERSION\s+([\d.]+)", read(root, "CMakeLists.txt")).group(1)
