"""Pages for coding agents: the skill has the portable format; commands, tools, names and links in them exist."""

import re
import shlex
from pathlib import Path

import pytest
from tests.analyze.owners.owned_folder import owned_folder

from stepscope import load
from stepscope.cli.main import command_parser
from stepscope.cli.mcp import TOOLS

ROOT = Path(__file__).parents[2]
SKILL = ROOT / "skills" / "stepscope" / "SKILL.md"
PAGES = [SKILL, ROOT / "AGENTS.md", ROOT / "llms.txt"]


def test_skill_has_the_portable_format() -> None:
    _, head, body = SKILL.read_text().split("---\n", 2)
    fields = dict(line.split(": ", 1) for line in head.splitlines())
    assert set(fields) <= {"name", "description", "license", "compatibility", "metadata", "allowed-tools"}
    assert fields["name"] == SKILL.parent.name and re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", fields["name"])
    assert 0 < len(fields["description"]) <= 1024 and len(fields["compatibility"]) <= 500
    assert len(body.splitlines()) < 500


def test_commands_and_tools_of_the_skill_exist() -> None:
    text = SKILL.read_text()
    lines = re.findall(r"^    (stepscope .+)$|`(stepscope [^`]+)`", text, re.MULTILINE)
    commands = [words for line in lines if len(words := shlex.split("".join(line))) > 2]
    assert {words[1] for words in commands} >= {"record", "report", "compare", "whatif", "tune", "sql"}
    for words in commands:
        command_parser(words[1]).parse_args(words[2:])
    tools = set(re.findall(r"^\| [^|]+ \| `(\w+)` \|", text, re.MULTILINE))
    assert tools == set(TOOLS) - {"compare", "record", "tune"}


def test_names_of_the_skill_are_in_the_report(tmp_path: Path) -> None:
    owned_folder(tmp_path / "run", ranks=2)
    document = load(tmp_path / "run").document
    lists = ("incomplete", "warnings", "findings_combined", "costly_lines", "stragglers", "not_examined", "not_judged")
    for name in lists:
        assert name in document and f"`{name}`" in SKILL.read_text()
    assert "cannot_show" in document["recording"] and "unprofiled_ms" in document["step"]
    assert {"ranks", "where", "saving_alone_ms", "remedy"} <= set(document["findings"][0])


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_links_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)\)", page.read_text())
    assert page is SKILL or links
    assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []


def test_page_of_the_server_lists_every_tool() -> None:
    page = (ROOT / "docs" / "commands" / "mcp.md").read_text()
    assert set(re.findall(r"^\| \[?`(\w+)`", page, re.MULTILINE)) == set(TOOLS)
