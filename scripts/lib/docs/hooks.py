"""What MkDocs calls while it renders a page."""
import html
import os
import pickle
import re
import sys

CODE = re.compile(r"<pre.*?</pre>|<a\b.*?</a>|<h[1-6].*?</h[1-6]>|<code>([^<]+)</code>", re.S)
targets = None


def slug(heading, _separator):
    """The anchor of a heading, as forges make it (scripts/check-docs)."""
    return re.sub(r"[^\w\- ]", "", html.unescape(heading).lower()).replace(" ", "-")


def on_config(config, **_):
    global targets
    sys.path.insert(0, config["extra"]["lib_of_site"])  # MkDocs puts the former path back after it has loaded this file
    with open(os.path.join(os.path.dirname(config["docs_dir"]), "targets.pickle"), "rb") as f:
        targets = pickle.load(f)
    config["mdx_configs"]["toc"]["slugify"] = slug


def on_page_content(content, page, **_):
    """Names in code become links to the reference."""
    here = os.path.dirname(page.file.src_uri)

    def link(match):
        if match.group(1) is None:
            return match.group(0)
        place = targets.find(html.unescape(match.group(1)))
        if place is None:
            return match.group(0)
        file, _, part = place.partition("#")
        if file == page.file.src_uri:
            target = "#" + part if part else None
        else:
            target = os.path.relpath(file, here or ".").removesuffix(".md") + ".html" + ("#" + part if part else "")
        return f'<a class="name" href="{target}">{match.group(0)}</a>' if target else match.group(0)

    return CODE.sub(link, content)


OTHER = "https://same-page.invalid/"


def on_page_context(context, page, config, **_):
    """The switch of languages leads to the same page; on_post_page makes the link relative, which MkDocs cannot above its own site."""
    config["extra"]["alternate"] = [{"name": name, "lang": language, "link": page.url if language == config["extra"]["language_of_site"] else OTHER + page.url}
                                    for name, language in (("English", "en"), ("中文", "zh"))]
    return context


def on_post_page(output, page, config, **_):
    up = "../" * page.url.count("/")
    return output.replace(OTHER, up + ("../" if config["extra"]["language_of_site"] == "zh" else "zh/"))
