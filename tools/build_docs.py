"""Build the documentation as HTML pages and check every link in it.

    python tools/build_docs.py [--out build/docs]     exit code 1 and one line per broken link

Pages are Markdown that reads well as it is; what is built is the same tree with `.md` turned into `.html`. Links to
files and to headings are checked, addresses on the web are not.
"""

import argparse
import re
import shutil
import sys
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from html import escape
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[1]
MENU = "docs/README.md"
_OUTSIDE = re.compile(r"^[a-z][a-z0-9+.-]*:", re.IGNORECASE)
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} · stepscope</title>
<link rel="stylesheet" href="{up}style.css">
</head>
<body>
<nav>{menu}</nav>
<main>
{body}</main>
</body>
</html>
"""
_STYLE = """:root { color-scheme: light dark;
  --line: light-dark(#dde2e7, #2e3740); --card: light-dark(#f5f7f9, #1c2229);
  --quiet: light-dark(#586470, #9aa6b1); --link: light-dark(#0969b3, #6cb6ff); }
body { margin: 0; display: grid; grid-template-columns: 250px minmax(0, 1fr); font: 15px/1.6 system-ui, sans-serif;
  background: light-dark(#fff, #0d1115); color: light-dark(#14181d, #e6eaee); }
nav { padding: 24px 18px; border-right: 1px solid var(--line); font-size: 14px; }
nav h1 { font-size: 16px; } nav h2 { font-size: 13px; color: var(--quiet); margin: 18px 0 4px; }
nav ul { list-style: none; margin: 0; padding: 0; }
main { padding: 24px 40px 80px; max-width: 900px; }
a { color: var(--link); text-decoration: none; } a:hover { text-decoration: underline; }
h2 { margin-top: 34px; border-bottom: 1px solid var(--line); padding-bottom: 4px; }
pre { background: var(--card); border: 1px solid var(--line); border-radius: 6px; padding: 12px 14px; overflow-x: auto;
  font-size: 13px; line-height: 1.45; }
code { font-family: ui-monospace, monospace; font-size: 0.92em; }
table { border-collapse: collapse; display: block; overflow-x: auto; }
th, td { border: 1px solid var(--line); padding: 5px 10px; text-align: left; vertical-align: top; }
img { max-width: 100%; border: 1px solid var(--line); border-radius: 6px; }
@media (max-width: 800px) { body { display: block; } nav { border: 0; } main { padding: 0 18px 60px; } }
"""


@dataclass(frozen=True)
class Page:
    """One Markdown file, read."""

    path: PurePosixPath
    """from the root"""
    tokens: list[Token]
    anchors: frozenset[str]

    @property
    def title(self) -> str:
        """Return the first heading."""
        return next((_text(self.tokens[i + 1]) for i, t in enumerate(self.tokens) if t.type == "heading_open"), "")


def main() -> int:
    """Return 0 where the pages were built and every link holds, 1 otherwise."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "docs")
    args = parser.parse_args()
    pages = read_pages(ROOT)
    broken = list(broken_links(ROOT, pages))
    for line in broken:
        print(line, file=sys.stderr)
    build(ROOT, pages, args.out)
    print(f"{len(pages)} pages in {args.out}, {len(broken)} broken links")
    return 1 if broken else 0


def read_pages(root: Path) -> dict[PurePosixPath, Page]:
    """Return every page by its path: those at the root, below `docs`, and the examples' own."""
    found = [*root.glob("*.md"), *root.glob("docs/**/*.md"), *root.glob("examples/**/*.md")]
    return {page.path: page for page in (_page(root, path) for path in sorted(found))}


def broken_links(root: Path, pages: dict[PurePosixPath, Page]) -> Iterator[str]:
    """Yield `file:line: link` with what is wrong for each link that leads nowhere."""
    for page in pages.values():
        for line, link in _links(page.tokens):
            why = _why_broken(root, pages, page, link)
            if why:
                yield f"{page.path}:{line}: {link}: {why}"


def build(root: Path, pages: dict[PurePosixPath, Page], out: Path) -> None:
    """Write the tree of HTML pages, with the files they link to."""
    shutil.rmtree(out, ignore_errors=True)
    for page in pages.values():
        target = out / page.path.with_suffix(".html")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(_html(pages, page), encoding="utf-8")
        for _, link in _links(page.tokens):
            linked = _target(page, link)
            if linked is not None and linked.suffix != ".md" and (root / linked).is_file():
                (out / linked).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(root / linked, out / linked)
    (out / "style.css").write_text(_STYLE, encoding="utf-8")
    shutil.copyfile(out / "README.html", out / "index.html")


def slug(heading: str) -> str:
    """Return a heading's anchor the way code hosts make it.

    >>> slug("What it answers: `report`, 1st part")
    'what-it-answers-report-1st-part'
    """
    kept = re.sub(r"[^\w\- ]", "", heading.strip().lower())
    return kept.replace(" ", "-")


def _page(root: Path, path: Path) -> Page:
    tokens = MarkdownIt("commonmark").enable("table").parse(path.read_text(encoding="utf-8"))
    seen: dict[str, int] = {}
    for i, token in enumerate(tokens):
        if token.type == "heading_open":
            name = slug(_text(tokens[i + 1]))
            count = seen[name] = seen.get(name, -1) + 1
            token.attrSet("id", f"{name}-{count}" if count else name)
    anchors = frozenset(str(t.attrs["id"]) for t in tokens if "id" in t.attrs)
    return Page(PurePosixPath(path.relative_to(root).as_posix()), tokens, anchors)


def _text(inline: Token) -> str:
    return "".join(t.content for t in inline.children or () if t.type in ("text", "code_inline"))


def _links(tokens: list[Token]) -> Iterator[tuple[int, str]]:
    """Yield the line and the address of each link and picture."""
    for token in tokens:
        for child in token.children or ():
            for name in ("href", "src"):
                if name in child.attrs:
                    yield (token.map or [0])[0] + 1, str(child.attrs[name])


def _target(page: Page, link: str) -> PurePosixPath | None:
    """Return what a link leads to, from the root; None for the web."""
    if _OUTSIDE.match(link):
        return None
    path = unquote(link.partition("#")[0])
    parts: list[str] = [] if path.startswith("/") else list(page.path.parent.parts)
    for part in PurePosixPath(path).parts if path else [page.path.name]:
        if part == ".." and parts:
            parts.pop()
        elif part not in (".", "/"):
            parts.append(part)
    return PurePosixPath(*parts)


def _why_broken(root: Path, pages: dict[PurePosixPath, Page], page: Page, link: str) -> str | None:
    target = _target(page, link)
    if target is None:
        return None
    if ".." in target.parts or not (root / target).exists():
        return "no such file"
    anchor = link.partition("#")[2]
    if anchor and target in pages and anchor not in pages[target].anchors:
        return "no such heading"
    return None


def _html(pages: dict[PurePosixPath, Page], page: Page) -> str:
    up = "../" * (len(page.path.parts) - 1)
    return _PAGE.format(title=escape(page.title), up=up, menu=_menu(pages, up), body=_body(page))


def _body(page: Page) -> str:
    """Return a page's content with its links turned to the built pages."""
    tokens = deepcopy(page.tokens)
    for token in tokens:
        for child in token.children or ():
            if "href" in child.attrs:
                child.attrSet("href", _built(page, str(child.attrs["href"])))
    markdown = MarkdownIt("commonmark").enable("table")
    return str(markdown.renderer.render(tokens, markdown.options, {}))


def _built(page: Page, link: str) -> str:
    target = _target(page, link)
    if target is None:
        return link
    path, hash_, anchor = link.partition("#")
    if path.endswith(".md"):
        path = path[: -len(".md")] + ".html"
    elif path.endswith("/"):
        path += "README.html"
    return path + hash_ + anchor


def _menu(pages: dict[PurePosixPath, Page], up: str) -> str:
    """Return the contents page's headings and links, for every page's side."""
    menu = pages[PurePosixPath(MENU)]
    out = [f'<h1><a href="{up}index.html">stepscope</a></h1>']
    for i, token in enumerate(menu.tokens):
        if token.type == "heading_open" and token.tag == "h2":
            out.append(f"<h2>{escape(_text(menu.tokens[i + 1]))}</h2>")
        for k, child in enumerate(token.children or ()):
            target = _target(menu, str(child.attrs["href"])) if child.type == "link_open" else None
            if target in pages and token.children:
                where = f"{up}{target.with_suffix('.html')}"  # type: ignore[union-attr]
                out.append(f'<div><a href="{where}">{escape(token.children[k + 1].content)}</a></div>')
    return "\n".join(out)


if __name__ == "__main__":
    sys.exit(main())
