"""Cells of tables are labelled by the headers of their columns."""

from headrace.console.tables import labelled


def test_cells_have_the_name_of_their_column() -> None:
    html = (
        '<thead><tr><th scope="col">Topic</th><th scope="col" class="n"><a href="?sort=in">In/s'
        '<span aria-hidden="true"> ↓</span></a></th><th scope="col"><span class="hidden">Records</span></th></tr>'
        "</thead>"
        '<tbody><tr><th scope="row">a</th><td class="n">1</td><td>Browse</td></tr>'
        "<tr><th>b</th><td>2</td><td></td></tr></tbody>"
    )
    body = labelled(html).partition("</thead>")[2]
    assert body == (
        '<tbody><tr><th scope="row">a</th><td data-l="In/s" class="n">1</td><td>Browse</td></tr>'
        '<tr><th>b</th><td data-l="In/s">2</td><td></td></tr></tbody>'
    )


def test_a_number_at_the_head_of_a_row_has_the_name_of_its_column() -> None:
    body = labelled('<thead><tr><th class="n">Partition</th></tr></thead><tr><th scope="row" class="n">7</th></tr>')
    assert body.endswith('<tr><th scope="row" class="n" data-l="Partition">7</th></tr>')


def test_hostile_cells_and_headers_stay_text() -> None:
    body = labelled("<thead><tr><th>A &#34;&lt;b&gt;</th></tr></thead><tr><td>&lt;td&gt;</td></tr>")
    assert body.endswith('<tr><td data-l="A &quot;&lt;b&gt;">&lt;td&gt;</td></tr>')


def test_a_table_without_headers_is_unchanged() -> None:
    html = "<tbody><tr><th>k</th><td>v</td></tr></tbody>"
    assert labelled(html) == html
