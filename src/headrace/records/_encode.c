/* The records section of a batch, written from Python tuples or from Arrow columns. */

#include "_writing.h"

enum { LENGTH_ROOM = 5 };

static int put_varint(Buffer *out, int64_t number)
{
    if (reserve(out, LONGEST_VARINT) < 0)
        return -1;
    out->used += write_varint((uint8_t *)PyBytes_AS_STRING(out->bytes) + out->used, number);
    return 0;
}

static int put_sized(Buffer *out, const void *data, Py_ssize_t size)
{
    if (put_varint(out, size) < 0 || reserve(out, (size_t)size) < 0)
        return -1;
    put(out, data, (size_t)size);
    return 0;
}

static int put_bytes_or_null(Buffer *out, PyObject *object)
{
    if (object == Py_None)
        return put_varint(out, -1);
    Py_buffer view;
    if (PyObject_GetBuffer(object, &view, PyBUF_SIMPLE) < 0)
        return -1;
    int result = put_sized(out, view.buf, view.len);
    PyBuffer_Release(&view);
    return result;
}

static int put_header(Buffer *out, PyObject *header)
{
    PyObject *key, *value;
    if (!PyTuple_Check(header)) {
        PyErr_SetString(PyExc_TypeError, "a header is a tuple (str, bytes or None)");
        return -1;
    }
    if (!PyArg_ParseTuple(header, "UO;a header is a tuple (str, bytes or None)", &key, &value))
        return -1;
    Py_ssize_t size;
    const char *text = PyUnicode_AsUTF8AndSize(key, &size);
    return !text || put_sized(out, text, size) < 0 ? -1 : put_bytes_or_null(out, value);
}

static int put_headers(Buffer *out, PyObject *object)
{
    PyObject *headers = PySequence_Fast(object, "headers are a sequence of tuples (str, bytes or None)");
    if (!headers)
        return -1;
    int result = put_varint(out, PySequence_Fast_GET_SIZE(headers));
    for (Py_ssize_t index = 0; result == 0 && index < PySequence_Fast_GET_SIZE(headers); index++)
        result = put_header(out, PySequence_Fast_GET_ITEM(headers, index));
    Py_DECREF(headers);
    return result;
}

static int put_record(Buffer *out, PyObject *record, Py_ssize_t offset_delta, long long base_timestamp)
{
    if (!PyTuple_Check(record) || PyTuple_GET_SIZE(record) != 4) {
        PyErr_SetString(PyExc_TypeError, "a record is a tuple (key, value, timestamp, headers)");
        return -1;
    }
    long long timestamp = PyLong_AsLongLong(PyTuple_GET_ITEM(record, 2));
    if (timestamp == -1 && PyErr_Occurred())
        return -1;
    /* The length comes first but is known last: leave room for the longest, then move the record up to it. */
    size_t start = out->used;
    if (reserve(out, LENGTH_ROOM + 1) < 0)
        return -1;
    out->used += LENGTH_ROOM;
    put(out, "", 1); /* attributes */
    if (put_varint(out, (int64_t)((uint64_t)timestamp - (uint64_t)base_timestamp)) < 0
        || put_varint(out, offset_delta) < 0 || put_bytes_or_null(out, PyTuple_GET_ITEM(record, 0)) < 0
        || put_bytes_or_null(out, PyTuple_GET_ITEM(record, 1)) < 0
        || put_headers(out, PyTuple_GET_ITEM(record, 3)) < 0)
        return -1;
    size_t size = out->used - start - LENGTH_ROOM;
    if (size > INT32_MAX) {
        PyErr_SetString(PyExc_OverflowError, "a record of more than 2 GiB");
        return -1;
    }
    uint8_t *at = (uint8_t *)PyBytes_AS_STRING(out->bytes) + start;
    uint8_t length[LONGEST_VARINT];
    size_t length_size = write_varint(length, (int64_t)size);
    memmove(at + length_size, at + LENGTH_ROOM, size);
    memcpy(at, length, length_size);
    out->used = start + length_size + size;
    return 0;
}

/* encode(records, base_timestamp): the tuples (key, value, timestamp, headers) as bytes, offset deltas from 0. */
PyObject *headrace_encode(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *object;
    long long base_timestamp;
    if (!PyArg_ParseTuple(args, "OL:encode", &object, &base_timestamp))
        return NULL;
    PyObject *records = PySequence_Fast(object, "records are a sequence of tuples");
    if (!records)
        return NULL;
    Buffer out = {0};
    int result = 0;
    for (Py_ssize_t index = 0; result == 0 && index < PySequence_Fast_GET_SIZE(records); index++)
        result = put_record(&out, PySequence_Fast_GET_ITEM(records, index), index, base_timestamp);
    Py_DECREF(records);
    if (result < 0) {
        drop(&out);
        return NULL;
    }
    return take(&out);
}

/* A column of byte strings as Arrow has it: row n's bytes are data[offsets[n] .. offsets[n + 1]]. */
typedef struct {
    Py_buffer validity; /* a bit per row; without one every row has a value */
    Py_buffer offsets;  /* int32 */
    Py_buffer data;
    Py_ssize_t first; /* the row of the buffers that is the column's row 0 */
    int given;        /* 0: every row is null */
} ArrowColumn;

static void release_column(ArrowColumn *column)
{
    if (column->validity.obj)
        PyBuffer_Release(&column->validity);
    if (column->offsets.obj)
        PyBuffer_Release(&column->offsets);
    if (column->data.obj)
        PyBuffer_Release(&column->data);
}

static int open_column(ArrowColumn *column, PyObject *object, Py_ssize_t rows)
{
    memset(column, 0, sizeof *column);
    if (object == Py_None)
        return 0;
    if (!PyTuple_Check(object)) {
        PyErr_SetString(PyExc_TypeError, "a column is None or a tuple (validity or None, offsets, data, first row)");
        return -1;
    }
    if (!PyArg_ParseTuple(object, "z*y*y*n;a column is (validity or None, offsets, data, first row)",
                          &column->validity, &column->offsets, &column->data, &column->first))
        return -1;
    column->given = 1;
    Py_ssize_t last = column->first + rows;
    if (column->first < 0 || last < column->first || column->offsets.len / 4 <= last
        || (column->validity.obj && column->validity.len < (last + 7) / 8)) {
        PyErr_SetString(PyExc_ValueError, "a column has fewer rows than asked for");
        release_column(column);
        return -1;
    }
    return 0;
}

/* The bytes of a row: its size, -1 for null; -2 with an error set for offsets that cannot be. */
static Py_ssize_t column_row(const ArrowColumn *column, Py_ssize_t row, const uint8_t **bytes)
{
    if (!column->given)
        return -1;
    row += column->first;
    if (column->validity.obj && !(((const uint8_t *)column->validity.buf)[row / 8] >> (row % 8) & 1))
        return -1;
    int32_t edges[2];
    memcpy(edges, (const uint8_t *)column->offsets.buf + row * 4, sizeof edges);
    if (edges[0] < 0 || edges[1] < edges[0] || edges[1] > column->data.len) {
        PyErr_SetString(PyExc_ValueError, "a column's offsets lie outside of its data");
        return -2;
    }
    *bytes = (const uint8_t *)column->data.buf + edges[0];
    return edges[1] - edges[0];
}

static uint8_t *write_field(uint8_t *at, const uint8_t *bytes, Py_ssize_t size)
{
    at += write_varint(at, size);
    if (size > 0) {
        memcpy(at, bytes, (size_t)size);
        at += size;
    }
    return at;
}

/* Write rows from `start` on until `max_bytes` are reached; the row to go on from, -1 with an error set. */
static Py_ssize_t put_rows(Buffer *out, const ArrowColumn *keys, const ArrowColumn *values, Py_ssize_t start,
                           Py_ssize_t stop, Py_ssize_t max_bytes)
{
    Py_ssize_t row = start;
    for (; row < stop && row - start < INT32_MAX; row++) {
        const uint8_t *key = NULL, *value = NULL;
        Py_ssize_t key_size = column_row(keys, row, &key), value_size = column_row(values, row, &value);
        if (key_size < -1 || value_size < -1)
            return -1;
        Py_ssize_t content = (key_size > 0 ? key_size : 0) + (value_size > 0 ? value_size : 0);
        if (content > INT32_MAX - 64) {
            PyErr_SetString(PyExc_OverflowError, "a record of more than 2 GiB");
            return -1;
        }
        /* attributes, timestamp delta 0 and no headers are a byte each */
        size_t size = 3 + varint_size(row - start) + varint_size(key_size) + varint_size(value_size) + (size_t)content;
        size_t whole = varint_size((int64_t)size) + size;
        if (row > start && out->used + whole > (size_t)max_bytes)
            break;
        if (reserve(out, whole) < 0)
            return -1;
        uint8_t *at = (uint8_t *)PyBytes_AS_STRING(out->bytes) + out->used;
        at += write_varint(at, (int64_t)size);
        *at++ = 0;
        *at++ = 0;
        at += write_varint(at, row - start);
        at = write_field(at, key, key_size);
        at = write_field(at, value, value_size);
        *at = 0;
        out->used += whole;
    }
    return row;
}

/* encode_columns(key, value, start, stop, max_bytes): rows as records without headers, all at the base timestamp. */
PyObject *headrace_encode_columns(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *key, *value;
    Py_ssize_t start, stop, max_bytes;
    if (!PyArg_ParseTuple(args, "OOnnn:encode_columns", &key, &value, &start, &stop, &max_bytes))
        return NULL;
    if (start < 0 || stop <= start || max_bytes < 1) {
        PyErr_SetString(PyExc_ValueError, "encode_columns: no rows, or no room");
        return NULL;
    }
    ArrowColumn keys, values;
    if (open_column(&keys, key, stop) < 0)
        return NULL;
    if (open_column(&values, value, stop) < 0) {
        release_column(&keys);
        return NULL;
    }
    Buffer out = {0};
    Py_ssize_t row = put_rows(&out, &keys, &values, start, stop, max_bytes);
    release_column(&keys);
    release_column(&values);
    PyObject *section = row < 0 ? NULL : take(&out);
    if (!section) {
        drop(&out);
        return NULL;
    }
    return Py_BuildValue("(Nn)", section, row);
}
