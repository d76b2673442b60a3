"""The documentation's builder: broken links are named with their line, pages lead to pages."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SOURCE = Path(__file__).parents[2] / "tools" / "build_docs.py"


@pytest.fixture(scope="module")
def builder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_docs", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["build_docs"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "docs" / "sub").mkdir(parents=True)
    (tmp_path / "docs" / "a.png").write_bytes(b"png")
    (tmp_path / "README.md").write_text(
        "# Top\n\n[docs](docs/) [web](https://example.org/x) [a](docs/sub/a.md#part-one)\n"
    )
    (tmp_path / "docs" / "README.md").write_text("# Contents\n\n## Group\n- [the a](sub/a.md)\n")
    (tmp_path / "docs" / "sub" / "a.md").write_text(
        "# A <b>\n\n## Part `one`\n\n## Part one\n\n[up](../README.md) [here](#part-one-1) ![p](../a.png)\n"
    )
    return tmp_path


def broken(builder: ModuleType, root: Path) -> list[str]:
    return list(builder.broken_links(root, builder.read_pages(root)))


def test_whole_links_are_passed(builder: ModuleType, root: Path) -> None:
    assert broken(builder, root) == []


@pytest.mark.parametrize(
    ("link", "why"),
    [
        ("gone.md", "no such file"),
        ("../docs/gone/", "no such file"),
        ("../../outside.md", "no such file"),
        ("sub/a.md#part-two", "no such heading"),
        ("#nowhere", "no such heading"),
    ],
)
def test_broken_link_is_named_with_its_line(builder: ModuleType, root: Path, link: str, why: str) -> None:
    (root / "docs" / "b.md").write_text(f"# B\n\nsome text\n\n[x]({link})\n")
    assert broken(builder, root) == [f"docs/b.md:5: {link}: {why}"]


def test_pages_lead_to_built_pages(builder: ModuleType, root: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    builder.build(root, builder.read_pages(root), out)
    top, page = (out / "index.html").read_text(), (out / "docs" / "sub" / "a.html").read_text()
    assert 'href="docs/README.html"' in top
    assert 'href="docs/sub/a.html#part-one"' in top
    assert 'href="https://example.org/x"' in top
    assert '<h2 id="part-one-1">' in page
    assert 'href="../README.html"' in page
    assert (out / "docs" / "a.png").read_bytes() == b"png"
    assert '<h2>Group</h2>\n<div><a href="../../docs/sub/a.html">the a</a></div>' in page


def test_own_documentation_has_no_broken_link(builder: ModuleType) -> None:
    assert broken(builder, builder.ROOT) == []
