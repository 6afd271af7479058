"""What scripts/docs --check finds: public names without a comment, links of the site that lead nowhere."""
import html.parser
import os
import re
import urllib.parse

import headers as h


def key(path, one):
    return f"{path} {one.spoken}"


def comments(headers, exceptions, update=False):
    """[problem]: names without a comment that the list does not have, and names of the list that need none any more. The list can
    therefore only become shorter; `update` takes the latter off."""
    with open(exceptions, encoding="utf-8") as f:
        lines = f.read().split("\n")
    allowed = {line for line in lines if line and not line.startswith("#")}
    bare = {}
    for path, one in h.undescribed(headers):
        bare.setdefault(key(path, one), one.line)
    problems = [f"{name.split()[0]}:{line}: {name.split(maxsplit=1)[1]} has no comment that says what it is for"
                for name, line in sorted(bare.items()) if name not in allowed]
    stale = sorted(allowed - set(bare))
    if update and stale:
        with open(exceptions, "w", encoding="utf-8") as f:
            f.write("\n".join(line for line in lines if line not in stale))
        return problems
    return problems + [f"{exceptions}: '{name}' has a comment now, or is gone: scripts/docs --check-api --update takes it off" for name in stale]


class Page(html.parser.HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, text):
        super().__init__()
        self.links, self.anchors = set(), set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name == "id" or (name == "name" and tag == "a"):
                self.anchors.add(value)
            elif name in ("href", "src") and value and not (tag == "link" and dict(attrs).get("rel") == "canonical"):
                self.links.add(value)


def links(site):
    """[problem]: links within the site that lead nowhere, and what a page takes from outside."""
    pages, problems = {}, []
    for folder, _, files in os.walk(site):
        for name in files:
            if name.endswith(".html"):
                path = os.path.relpath(os.path.join(folder, name), site)
                with open(os.path.join(folder, name), encoding="utf-8") as f:
                    text = f.read()
                pages[path] = Page(text)
                for taken in re.findall(r'<(?:script|img|iframe)[^>]* src="?(https?:[^"> ]+)|<link[^>]* rel="?stylesheet"?[^>]* href="?(https?:[^"> ]+)', text):
                    problems.append(f"{path}: takes {''.join(taken)} from outside")
    for path, page in sorted(pages.items()):
        if os.path.basename(path) == "404.html":  # for servers: its links begin at the top
            continue
        for link in sorted(page.links):
            url = urllib.parse.urlsplit(link)
            if url.scheme or url.netloc:
                continue
            target = os.path.normpath(os.path.join(os.path.dirname(path), urllib.parse.unquote(url.path))) if url.path else path
            full = os.path.join(site, target)
            if os.path.isdir(full):
                target = os.path.join(target, "index.html")
            if not os.path.exists(os.path.join(site, target)):
                problems.append(f"{path}: the link {link} leads nowhere")
            elif url.fragment and target in pages and urllib.parse.unquote(url.fragment) not in pages[target].anchors and not url.fragment.startswith("__"):
                problems.append(f"{path}: {target} has no anchor #{url.fragment}")
    return problems
