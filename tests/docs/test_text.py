# SPDX-License-Identifier: Apache-2.0
"""How the text of a page comes about: what is taken in, and where links lead."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from docs_site import text
from docs_site.docstrings import listed
from docs_site.nav import expanded


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A repository of one package and three pages."""
    files = {
        "pack/README.md": "# Pack\n\nWhole.\n\n## Use it\n\n```python\n# no heading\n```\n\n"
        "[more](../docs/more.md#a)\n\n### Deeper\n\n[code](src/a.py)\n\n## Rest\n\nEnd.\n",
        "pack/src/a.py": "",
        "docs/more.md": "# More\n",
        "docs/in/pack.md": '# Pack\n\n[it](../../pack/README.md "include")\n',
        "docs/decisions/0007-why.md": "# Why\n",
    }
    for path, content in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(content)
    monkeypatch.setattr(text, "ROOT", tmp_path)
    monkeypatch.setattr(text, "DOCS", tmp_path / "docs")
    text._pages_with_readmes.cache_clear()
    yield tmp_path
    text._pages_with_readmes.cache_clear()


@pytest.mark.usefixtures("root")
class TestPages:
    def test_a_section_is_taken_in_with_what_is_below_it_and_links_as_the_page_needs_them(self) -> None:
        made = text.completed('[it](../pack/README.md#use-it "include")\n', "a.md")
        assert made == ("```python\n# no heading\n```\n\n[more](more.md#a)\n\n### Deeper\n\ncode (`pack/src/a.py`)\n")

    def test_a_whole_readme_is_taken_in_without_its_title(self) -> None:
        assert text.completed('[it](../../pack/README.md "include")', "in/pack.md").startswith("Whole.\n\n## Use it")

    def test_a_link_to_a_readme_or_its_folder_leads_to_the_page_that_takes_it_in(self) -> None:
        assert text.completed("[a](../pack) [b](../pack/README.md)", "a.md") == "[a](in/pack.md) [b](in/pack.md)"

    def test_a_decision_that_is_named_is_a_link(self) -> None:
        assert text.completed("see `docs/decisions/0007`", "in/b.md") == "see [decision 0007](../decisions/0007-why.md)"

    def test_code_stays_as_it_is(self) -> None:
        code = "```python\na[0](b)\n```"
        assert text.completed(code, "a.md") == code

    @pytest.mark.parametrize(
        ("page", "said"),
        [
            ('[it](../pack/README.md#nothing "include")', "has no section #nothing"),
            ("[it](gone.md)", "links to docs/gone.md, which does not exist"),
            ("<!-- generated: nothing -->", "nothing generates the part 'nothing'"),
        ],
    )
    def test_what_does_not_exist_is_an_error(self, page: str, said: str) -> None:
        with pytest.raises(ValueError, match=said):
            text.completed(page, "a.md")


def test_a_star_in_the_navigation_stands_for_pages_that_nothing_else_names(root: Path) -> None:
    nav = [{"In": ["in/*"]}, {"All": ["decisions/0007-why.md", "decisions/*", "engines/*"]}, "*"]
    assert expanded(nav, root / "docs") == [{"In": ["in/pack.md"]}, {"All": ["decisions/0007-why.md"]}, "more.md"]


def test_lines_that_say_what_a_parameter_is_become_a_list_and_prose_stays() -> None:
    shown = listed("Do it.\n\nname: of a thing, or\n    of two\na, b: both\n\nRaises: nothing.")
    assert shown == "Do it.\n\n- `name`: of a thing, or\n    of two\n- `a, b`: both\n\n- `Raises`: nothing."
