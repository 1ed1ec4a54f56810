"""`aotkit view`, and the page as a file."""

import json
import webbrowser

import torch

import aotkit
from aotkit import cli


def graphs():
    return aotkit.extract(torch.sin, torch.ones(3, requires_grad=True))


def test_view_makes_a_page_of_json_and_opens_it(tmp_path, monkeypatch, capsys):
    opened = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    source = tmp_path / "graphs.json"
    source.write_text(json.dumps(graphs().json()))
    assert cli.main(["view", str(source)]) == 0
    assert opened == [(tmp_path / "graphs.html").as_uri()]
    assert cli.main(["view", str(source), "-o", str(tmp_path / "other.html")]) == 0
    assert len(opened) == 1
    assert (tmp_path / "other.html").read_text() == (tmp_path / "graphs.html").read_text()
    assert str(tmp_path / "graphs.html") in capsys.readouterr().out
    assert cli.main(["view", str(source), "-o", str(tmp_path / "other.html"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["page"] == str(tmp_path / "other.html")


def test_view_says_what_it_wants(tmp_path, capsys):
    for text in ("no JSON", "[]", '{"schema": 0}'):
        (tmp_path / "x.json").write_text(text)
        assert cli.main(["view", str(tmp_path / "x.json")]) == 2
    assert "json.dump(graphs.json(), file)" in capsys.readouterr().err
    assert cli.main(["view", str(tmp_path / "missing.json")]) == 2


def test_a_page_is_one_file_and_the_same_each_time(tmp_path):
    for name in ("a.html", "b.html"):
        graphs().save_html(tmp_path / name)
    text = (tmp_path / "a.html").read_text()
    assert text == (tmp_path / "b.html").read_text()
    for loading in ("src=", "href=", "@import", "url(http"):
        assert loading not in text
