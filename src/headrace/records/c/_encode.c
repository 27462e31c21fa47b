/* The records section of a batch, from Python tuples or Arrow columns. */

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
    /* The length is known last: reserve space for the longest one, then move the record. */
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

/* An Arrow column of byte strings: row n has data[offsets[n] .. offsets[n + 1]]. */
typedef struct {
    Py_buffer validity; /* a bit per row; without one every row has a value */
    Py_buffer offsets;  /* int32 */
    Py_buffer data;
    Py_ssize_t first; /* the row of the buffers that is the column's row 0 */
    int given;        /* 0: every row is null */
} ArrowColumn;

/* Also for a column that was not acquired. It can be called twice. */
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

/* The bytes of a row. Returns its size, -1 for null, or -2 with an error set for invalid offsets. */
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

/* A column of numbers: row n is values[first + n]. */
typedef struct {
    Py_buffer values; /* int64 */
    Py_ssize_t first;
} Numbers;

static int open_numbers(Numbers *numbers, PyObject *object, Py_ssize_t rows)
{
    memset(numbers, 0, sizeof *numbers);
    if (!PyTuple_Check(object)) {
        PyErr_SetString(PyExc_TypeError, "a column of numbers is a tuple (values, first row)");
        return -1;
    }
    if (!PyArg_ParseTuple(object, "y*n;a column of numbers is (values, first row)", &numbers->values, &numbers->first))
        return -1;
    Py_ssize_t last = numbers->first + rows;
    if (numbers->first < 0 || last < numbers->first || numbers->values.len / 8 < last) {
        PyErr_SetString(PyExc_ValueError, "a column has fewer rows than asked for");
        PyBuffer_Release(&numbers->values);
        numbers->values.obj = NULL;
        return -1;
    }
    return 0;
}

static int64_t number_at(const Numbers *numbers, Py_ssize_t row)
{
    int64_t number;
    memcpy(&number, (const uint8_t *)numbers->values.buf + (numbers->first + row) * 8, sizeof number);
    return number;
}

/* Lists of (name, value): those of row n are the pairs edges[first + n] .. edges[first + n + 1]. */
typedef struct {
    Py_buffer validity;
    Py_buffer edges; /* int32 */
    Py_ssize_t first;
    ArrowColumn names, values;
    int32_t pairs; /* number of pairs that have been validated */
    int given;
} HeaderLists;

static void release_lists(HeaderLists *lists)
{
    if (lists->validity.obj)
        PyBuffer_Release(&lists->validity);
    if (lists->edges.obj)
        PyBuffer_Release(&lists->edges);
    release_column(&lists->names);
    release_column(&lists->values);
}

static int open_lists(HeaderLists *lists, PyObject *object, Py_ssize_t rows)
{
    memset(lists, 0, sizeof *lists);
    if (object == Py_None)
        return 0;
    PyObject *names, *values;
    if (!PyTuple_Check(object)) {
        PyErr_SetString(PyExc_TypeError, "headers are None or a tuple (validity or None, edges, first row, names, values)");
        return -1;
    }
    if (!PyArg_ParseTuple(object, "z*y*nOO;headers are (validity or None, edges, first row, names, values)",
                          &lists->validity, &lists->edges, &lists->first, &names, &values))
        return -1;
    lists->given = 1;
    Py_ssize_t last = lists->first + rows;
    if (lists->first < 0 || last < lists->first || lists->edges.len / 4 <= last
        || (lists->validity.obj && lists->validity.len < (last + 7) / 8)) {
        PyErr_SetString(PyExc_ValueError, "a column has fewer rows than asked for");
        release_lists(lists);
        return -1;
    }
    memcpy(&lists->pairs, (const uint8_t *)lists->edges.buf + last * 4, sizeof lists->pairs);
    if (lists->pairs < 0) {
        PyErr_SetString(PyExc_ValueError, "a column's offsets lie outside of its data");
        release_lists(lists);
        return -1;
    }
    if (open_column(&lists->names, names, lists->pairs) < 0 || open_column(&lists->values, values, lists->pairs) < 0) {
        release_lists(lists);
        return -1;
    }
    return 0;
}

/* The pairs of a row, from low to before high; -1 with an error set. */
static int pairs_of(const HeaderLists *lists, Py_ssize_t row, int32_t *low, int32_t *high)
{
    *low = *high = 0;
    if (!lists->given)
        return 0;
    row += lists->first;
    if (lists->validity.obj && !(((const uint8_t *)lists->validity.buf)[row / 8] >> (row % 8) & 1))
        return 0;
    memcpy(low, (const uint8_t *)lists->edges.buf + row * 4, sizeof *low);
    memcpy(high, (const uint8_t *)lists->edges.buf + row * 4 + 4, sizeof *high);
    if (*low < 0 || *high < *low || *high > lists->pairs) {
        PyErr_SetString(PyExc_ValueError, "a column's offsets lie outside of its data");
        return -1;
    }
    return 0;
}

/* The bytes that a row's headers take; -1 with an error set. */
static int64_t headers_size(const HeaderLists *lists, int32_t low, int32_t high)
{
    int64_t size = (int64_t)varint_size(high - low);
    for (int32_t pair = low; pair < high; pair++) {
        const uint8_t *bytes;
        Py_ssize_t name = column_row(&lists->names, pair, &bytes), value = column_row(&lists->values, pair, &bytes);
        if (name < -1 || value < -1)
            return -1;
        if (name < 0) {
            PyErr_SetString(PyExc_ValueError, "a header without a name");
            return -1;
        }
        size += (int64_t)(varint_size(name) + varint_size(value)) + name + (value > 0 ? value : 0);
    }
    return size;
}

static uint8_t *write_headers(uint8_t *at, const HeaderLists *lists, int32_t low, int32_t high)
{
    at += write_varint(at, high - low);
    for (int32_t pair = low; pair < high; pair++) {
        const uint8_t *name = NULL, *value = NULL;
        Py_ssize_t name_size = column_row(&lists->names, pair, &name);
        Py_ssize_t value_size = column_row(&lists->values, pair, &value);
        at = write_field(at, name, name_size);
        at = write_field(at, value, value_size);
    }
    return at;
}

/* Sources of records. Without offsets and timestamps, offsets are consecutive, at the base timestamp. */
typedef struct {
    ArrowColumn keys, values;
    HeaderLists headers;
    Numbers offsets, timestamps; /* timestamps in microseconds */
    int numbered;
} Rows;

/* The section that is being written. */
typedef struct {
    int64_t base_timestamp, max_timestamp;
    int64_t last_delta;
} Span;

static int64_t milliseconds(int64_t microseconds)
{
    return microseconds / 1000 - (microseconds % 1000 < 0);
}

/* Offset of a row minus the section's first; -1: too large, -2 with an error set: not ascending. */
static int64_t offset_delta(const Rows *rows, Py_ssize_t start, Py_ssize_t row, int64_t last)
{
    if (!rows->numbered)
        return row - start;
    int64_t delta = (int64_t)((uint64_t)number_at(&rows->offsets, row) - (uint64_t)number_at(&rows->offsets, start));
    if (delta <= last) {
        PyErr_SetString(PyExc_ValueError, "offsets do not go up");
        return -2;
    }
    return delta < INT32_MAX ? delta : -1;
}

/* Write rows from `start` on, up to `max_bytes`. Return the next row, or -1 with an error set. */
static Py_ssize_t put_rows(Buffer *out, const Rows *rows, Py_ssize_t start, Py_ssize_t stop, Py_ssize_t max_bytes,
                           Span *span)
{
    Py_ssize_t row = start;
    span->last_delta = -1;
    for (; row < stop && row - start < INT32_MAX; row++) {
        const uint8_t *key = NULL, *value = NULL;
        Py_ssize_t key_size = column_row(&rows->keys, row, &key), value_size = column_row(&rows->values, row, &value);
        int32_t low, high;
        if (key_size < -1 || value_size < -1 || pairs_of(&rows->headers, row, &low, &high) < 0)
            return -1;
        int64_t delta = offset_delta(rows, start, row, span->last_delta);
        if (delta == -2)
            return -1;
        if (delta < 0)
            break;
        int64_t timestamp = rows->numbered ? milliseconds(number_at(&rows->timestamps, row)) : 0;
        if (row == start)
            span->base_timestamp = span->max_timestamp = timestamp;
        int64_t time_delta = (int64_t)((uint64_t)timestamp - (uint64_t)span->base_timestamp);
        int64_t headers = headers_size(&rows->headers, low, high);
        if (headers < 0)
            return -1;
        int64_t content = (key_size > 0 ? key_size : 0) + (value_size > 0 ? value_size : 0) + headers;
        if (content > INT32_MAX - 64) {
            PyErr_SetString(PyExc_OverflowError, "a record of more than 2 GiB");
            return -1;
        }
        /* attributes are a byte */
        size_t size = 1 + varint_size(time_delta) + varint_size(delta) + varint_size(key_size)
            + varint_size(value_size) + (size_t)content;
        size_t whole = varint_size((int64_t)size) + size;
        if (row > start && out->used + whole > (size_t)max_bytes)
            break;
        if (reserve(out, whole) < 0)
            return -1;
        uint8_t *at = (uint8_t *)PyBytes_AS_STRING(out->bytes) + out->used;
        at += write_varint(at, (int64_t)size);
        *at++ = 0;
        at += write_varint(at, time_delta);
        at += write_varint(at, delta);
        at = write_field(at, key, key_size);
        at = write_field(at, value, value_size);
        write_headers(at, &rows->headers, low, high);
        out->used += whole;
        span->last_delta = delta;
        if (timestamp > span->max_timestamp)
            span->max_timestamp = timestamp;
    }
    return row;
}

static void release_rows(Rows *rows)
{
    release_column(&rows->keys);
    release_column(&rows->values);
    release_lists(&rows->headers);
    if (rows->offsets.values.obj)
        PyBuffer_Release(&rows->offsets.values);
    if (rows->timestamps.values.obj)
        PyBuffer_Release(&rows->timestamps.values);
}

/* A section with the rows from `start` on; NULL with an error set. */
static PyObject *section_of(const Rows *rows, Py_ssize_t start, Py_ssize_t stop, Py_ssize_t max_bytes, Py_ssize_t *next,
                            Span *span)
{
    Buffer out = {0};
    *next = put_rows(&out, rows, start, stop, max_bytes, span);
    PyObject *section = *next < 0 ? NULL : take(&out);
    if (!section)
        drop(&out);
    return section;
}

static int check_bounds(Py_ssize_t start, Py_ssize_t stop, Py_ssize_t max_bytes)
{
    if (start >= 0 && stop > start && max_bytes >= 1)
        return 0;
    PyErr_SetString(PyExc_ValueError, "no rows to encode, or no room");
    return -1;
}

/* encode_columns(key, value, start, stop, max_bytes): rows as records without headers, all at the base timestamp. */
PyObject *headrace_encode_columns(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *key, *value;
    Py_ssize_t start, stop, max_bytes, next;
    if (!PyArg_ParseTuple(args, "OOnnn:encode_columns", &key, &value, &start, &stop, &max_bytes)
        || check_bounds(start, stop, max_bytes) < 0)
        return NULL;
    Rows rows = {0};
    Span span;
    PyObject *section = NULL;
    if (open_column(&rows.keys, key, stop) == 0 && open_column(&rows.values, value, stop) == 0)
        section = section_of(&rows, start, stop, max_bytes, &next, &span);
    release_rows(&rows);
    return section ? Py_BuildValue("(Nn)", section, next) : NULL;
}

/* encode_rows(key, value, headers, offsets, timestamps, start, stop, max_bytes): rows with their own offsets. */
PyObject *headrace_encode_rows(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *key, *value, *headers, *offsets, *timestamps;
    Py_ssize_t start, stop, max_bytes, next;
    if (!PyArg_ParseTuple(args, "OOOOOnnn:encode_rows", &key, &value, &headers, &offsets, &timestamps, &start, &stop,
                          &max_bytes)
        || check_bounds(start, stop, max_bytes) < 0)
        return NULL;
    Rows rows = {.numbered = 1};
    Span span;
    PyObject *section = NULL;
    if (open_column(&rows.keys, key, stop) == 0 && open_column(&rows.values, value, stop) == 0
        && open_lists(&rows.headers, headers, stop) == 0 && open_numbers(&rows.offsets, offsets, stop) == 0
        && open_numbers(&rows.timestamps, timestamps, stop) == 0)
        section = section_of(&rows, start, stop, max_bytes, &next, &span);
    release_rows(&rows);
    if (!section)
        return NULL;
    return Py_BuildValue("(NnLLL)", section, next, (long long)span.last_delta, (long long)span.base_timestamp,
                         (long long)span.max_timestamp);
}
