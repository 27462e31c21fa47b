/* The records section of a batch, written from Python tuples. */

#include "_native.h"

enum { LONGEST_VARINT = 10, LENGTH_ROOM = 5 };

static size_t write_varint(uint8_t *at, int64_t number)
{
    uint64_t bits = (uint64_t)number << 1 ^ (number < 0 ? UINT64_MAX : 0);
    size_t size = 0;
    for (; bits > 127; bits >>= 7)
        at[size++] = (uint8_t)(bits | 128);
    at[size++] = (uint8_t)bits;
    return size;
}

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
