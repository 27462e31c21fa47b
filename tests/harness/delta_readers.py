"""Readers of Delta tables that users have, each with a filter of one column: the rows that it finds."""

from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable, QueryBuilder

OPERATORS: Final = ("=", "<", ">", "is null", "is not null")
Reader = Callable[[str, str, str, str, pa.Scalar], list[int]]
"""Given a table's path, the column of row numbers, a column, an operator and a value; the numbers of the rows."""


def _expression(column: str, operator: str, value: pa.Scalar) -> ds.Expression:
    field = ds.field(column)
    return {
        "=": field == value,
        "<": field < value,
        ">": field > value,
        "is null": field.is_null(),
        "is not null": field.is_valid(),
    }[operator]


def _numbers(found: pa.Table, number: str) -> list[int]:
    return sorted(found.column(number).to_pylist())


def dataset(path: str, number: str, column: str, operator: str, value: pa.Scalar) -> list[int]:
    """pyarrow on delta-rs' `to_pyarrow_dataset`."""
    found = DeltaTable(path).to_pyarrow_dataset().to_table(filter=_expression(column, operator, value))
    return _numbers(found, number)


def table(path: str, number: str, column: str, operator: str, value: pa.Scalar) -> list[int]:
    """delta-rs' `to_pyarrow_table` with its own kind of filter."""
    if operator.startswith("is"):
        filters: Any = _expression(column, operator, value)
    else:
        filters = [(column, operator, value)]
    return _numbers(DeltaTable(path).to_pyarrow_table(filters=filters), number)


def datafusion(path: str, number: str, column: str, operator: str, value: pa.Scalar) -> list[int]:
    """delta-rs' QueryBuilder."""
    condition = operator if operator.startswith("is") else f"{operator} {_literal(value)}"
    query = f'SELECT "{number}" FROM t WHERE "{column}" {condition}'
    return _numbers(pa.table(QueryBuilder().register("t", DeltaTable(path)).execute(query).read_all()), number)


def duck(path: str, number: str, column: str, operator: str, value: pa.Scalar) -> list[int]:
    """DuckDB on delta-rs' `to_pyarrow_dataset`, as dbt does it."""
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone='UTC'")
        connection.register("t", DeltaTable(path).to_pyarrow_dataset())
        condition = operator if operator.startswith("is") else f"{operator} ?"
        query = f'SELECT "{number}" FROM t WHERE "{column}" {condition}'
        found = connection.execute(query, [] if operator.startswith("is") else [value.as_py()]).fetchall()
    return sorted(row[0] for row in found)


def _polars(path: str, number: str, column: str, operator: str, value: pa.Scalar, *, use_pyarrow: bool) -> list[int]:
    field, literal = pl.col(column), pl.from_arrow(pa.array([value.as_py()], value.type))
    assert isinstance(literal, pl.Series)
    wanted = pl.lit(literal.item(), literal.dtype)
    condition = {
        "=": field == wanted,
        "<": field < wanted,
        ">": field > wanted,
        "is null": field.is_null(),
        "is not null": field.is_not_null(),
    }[operator]
    return sorted(pl.scan_delta(path, use_pyarrow=use_pyarrow).filter(condition).collect()[number].to_list())


def polars(path: str, number: str, column: str, operator: str, value: pa.Scalar) -> list[int]:
    """Polars with its own reader of Parquet."""
    return _polars(path, number, column, operator, value, use_pyarrow=False)


def polars_by_pyarrow(path: str, number: str, column: str, operator: str, value: pa.Scalar) -> list[int]:
    """Polars on pyarrow's datasets."""
    return _polars(path, number, column, operator, value, use_pyarrow=True)


READERS: Final[tuple[Reader, ...]] = (dataset, table, datafusion, duck, polars, polars_by_pyarrow)


def _literal(value: pa.Scalar) -> str:
    """A value in DataFusion's SQL."""
    plain = value.as_py()
    text = "NaN" if plain != plain else str(plain)  # noqa: PLR0124
    if isinstance(plain, datetime):
        zone = "None" if plain.tzinfo is None else 'Some("UTC")'
        return f"arrow_cast('{plain.replace(tzinfo=None).isoformat()}', 'Timestamp(Microsecond, {zone})')"
    if isinstance(plain, bytes):
        return f"X'{plain.hex()}'"
    if isinstance(plain, Decimal):
        return f"CAST('{plain:f}' AS DECIMAL({value.type.precision}, {value.type.scale}))"
    kinds = {bool: "BOOLEAN", int: "BIGINT", float: "DOUBLE", str: "VARCHAR", date: "DATE"}
    kind = "REAL" if value.type == pa.float32() else kinds[type(plain)]
    escaped = text.replace("'", "''")
    return f"CAST('{escaped}' AS {kind})"
