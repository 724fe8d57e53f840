"""A page as one file: its modules as one."""

import pytest

from trainer.report import single_file


def files(monkeypatch: pytest.MonkeyPatch, **modules: str) -> None:
    monkeypatch.setattr(single_file, "_asset", lambda name: modules[name.removesuffix(".js")])


def test_modules_become_functions_in_the_order_of_their_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    files(
        monkeypatch,
        main='import { one, two as second } from "./low.js";\nimport "./effect.js";\none(second);\n',
        low="const hidden = 1;\nexport const one = (x) => x + hidden;\nexport async function* two() {}\n",
        effect='import { one } from "./low.js";\nconst name = 1;\nexport { name };\n',
    )
    bundle = single_file.bundle("main.js")
    assert bundle.index("module_low =") < bundle.index("module_effect =") < bundle.index("module_main =")
    assert bundle.count("module_low = ") == 1
    assert "const { one, two: second } = module_low;" in bundle
    assert "return { one, two };" in bundle
    assert "return { name };" in bundle
    assert "import" not in bundle
    assert "export" not in bundle


@pytest.mark.parametrize(
    "code",
    [
        "export default 3;",
        'export * from "./low.js";',
        'import low from "./low.js";',
        'import { a } from "https://example.org/a.js";',
        "const a = 1;\nexport { a as b };",
        "const a = '</script>';",
        "const a = '<!--';",
    ],
)
def test_what_cannot_be_put_into_a_file_is_refused(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    files(monkeypatch, main=code, low="")
    with pytest.raises(ValueError, match=r"main\.js"):
        single_file.bundle("main.js")


def test_the_pictures_have_the_colors_of_the_page() -> None:
    from trainer.report.figures import _STYLE_SHEET

    pages = single_file._asset("base.css") + single_file._asset("chart.css")
    for declaration in _STYLE_SHEET[_STYLE_SHEET.index("--ink") : -1].replace("\n", " ").split(";"):
        assert declaration.strip() in pages
