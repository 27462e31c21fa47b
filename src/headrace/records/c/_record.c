/* Iteration over the decompressed records section of a batch. */

#include "_compiled.h"

/* Zigzag varints of at most 32 and 64 bits. They return the next position, or NULL for missing bytes, too many
 * bytes, or a value that does not fit. */

static const uint8_t *read_varint_slowly(const uint8_t *at, const uint8_t *end, int32_t *value)
{
    uint64_t bits = 0;
    for (int shift = 0; shift < 35 && at < end; shift += 7) {
        uint8_t byte = *at++;
        bits |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) {
            if (bits > UINT32_MAX)
                return NULL;
            *value = (int32_t)((uint32_t)(bits >> 1) ^ (0u - (uint32_t)(bits & 1)));
            return at;
        }
    }
    return NULL;
}

static inline const uint8_t *read_varint(const uint8_t *at, const uint8_t *end, int32_t *value)
{
    if (at < end && *at < 128) { /* most of them are one byte */
        *value = (int32_t)((uint32_t)*at >> 1 ^ (0u - (uint32_t)(*at & 1)));
        return at + 1;
    }
    return read_varint_slowly(at, end, value);
}

static inline const uint8_t *read_varlong(const uint8_t *at, const uint8_t *end, int64_t *value)
{
    uint64_t bits = 0;
    for (int shift = 0; shift < 70 && at < end; shift += 7) {
        uint8_t byte = *at++;
        if (shift == 63 && byte > 1)
            return NULL;
        bits |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) {
            *value = (int64_t)(bits >> 1 ^ (0u - (bits & 1)));
            return at;
        }
    }
    return NULL;
}

/* A length and that many bytes. As in Java's clients, any negative length is null. */
static inline const uint8_t *read_bytes(const uint8_t *at, const uint8_t *end, const uint8_t **data, int32_t *size)
{
    at = read_varint(at, end, size);
    if (!at)
        return NULL;
    *data = at;
    if (*size < 0) {
        *size = -1;
        return at;
    }
    return *size <= end - at ? at + *size : NULL;
}

static const uint8_t *read_headers(const uint8_t *at, const uint8_t *end, Record *record)
{
    Header header;
    for (int32_t count = record->header_count; count > 0 && at; count--) {
        at = read_bytes(at, end, &header.key, &header.key_size);
        if (!at || header.key_size < 0)
            return NULL;
        at = read_bytes(at, end, &header.value, &header.value_size);
        record->header_bytes += header.key_size;
        if (at && header.value_size > 0)
            record->header_bytes += header.value_size;
    }
    return at;
}

/* headrace_next_record has validated the header. */
const uint8_t *headrace_read_header(const uint8_t *at, const Record *record, Header *header)
{
    at = read_bytes(at, record->end, &header->key, &header->key_size);
    return read_bytes(at, record->end, &header->value, &header->value_size);
}

/* Also for callers without the GIL. */
static int corrupt(const Walk *walk, const char *what)
{
    PyGILState_STATE state = PyGILState_Ensure();
    PyErr_Format(headrace_corrupt_batch, "a record with %d more to come: %s", walk->remaining - 1, what);
    PyGILState_Release(state);
    return -1;
}

int headrace_start_walk(Walk *walk, const Py_buffer *payload, int32_t count, int32_t last_offset_delta)
{
    if (count < 0 || count > payload->len / SHORTEST_RECORD) {
        PyErr_Format(headrace_corrupt_batch, "%d records in %zd bytes", count, payload->len);
        return -1;
    }
    const uint8_t *start = payload->buf;
    *walk = (Walk){start, start + payload->len, count, last_offset_delta, -1};
    return 0;
}

const char *headrace_read_record(Walk *walk, Record *record)
{
    int32_t size;
    const uint8_t *at = read_varint(walk->at, walk->end, &size);
    if (!at || size < 0 || size > walk->end - at)
        return "its length goes beyond the batch";
    const uint8_t *end = at + size;
    if (at == end)
        return "it is empty";
    at++; /* attributes: none are defined */
    if (!(at = read_varlong(at, end, &record->timestamp_delta))
        || !(at = read_varint(at, end, &record->offset_delta))
        || !(at = read_bytes(at, end, &record->key, &record->key_size))
        || !(at = read_bytes(at, end, &record->value, &record->value_size))
        || !(at = read_varint(at, end, &record->header_count)) || record->header_count < 0)
        return "a field goes beyond the record";
    record->headers = at;
    record->header_bytes = 0;
    if (record->header_count && !(at = read_headers(at, end, record)))
        return "a header goes beyond the record";
    record->end = end;
    if (at != end)
        return "bytes are left over in it";
    if (record->offset_delta <= walk->previous_offset_delta || record->offset_delta > walk->last_offset_delta)
        return "its offset is not between the one before and the batch's last";
    walk->previous_offset_delta = record->offset_delta;
    walk->at = end;
    walk->remaining--;
    return NULL;
}

int headrace_next_record(Walk *walk, Record *record)
{
    const char *what = headrace_read_record(walk, record);
    return what ? corrupt(walk, what) : 0;
}

int headrace_walk_ended(const Walk *walk)
{
    if (walk->at == walk->end)
        return 0;
    PyErr_Format(headrace_corrupt_batch, "%zd bytes after the last record", (Py_ssize_t)(walk->end - walk->at));
    return -1;
}

static PyObject *bytes_or_none(const uint8_t *data, int32_t size)
{
    if (size < 0)
        Py_RETURN_NONE;
    return PyBytes_FromStringAndSize((const char *)data, size);
}

static PyObject *headers_of(const Record *record)
{
    PyObject *headers = PyTuple_New(record->header_count);
    if (!headers)
        return NULL;
    const uint8_t *at = record->headers;
    for (int32_t index = 0; index < record->header_count; index++) {
        Header header = {0, 0, NULL, NULL};
        at = headrace_read_header(at, record, &header);
        PyObject *key = PyUnicode_DecodeUTF8((const char *)header.key, header.key_size, "replace");
        PyObject *value = key ? bytes_or_none(header.value, header.value_size) : NULL;
        PyObject *pair = value ? PyTuple_Pack(2, key, value) : NULL;
        Py_XDECREF(key);
        Py_XDECREF(value);
        if (!pair) {
            Py_DECREF(headers);
            return NULL;
        }
        PyTuple_SET_ITEM(headers, index, pair);
    }
    return headers;
}

int headrace_check_type(PyTypeObject *type)
{
    if (PyType_FastSubclass(type, Py_TPFLAGS_TUPLE_SUBCLASS) && type->tp_itemsize == PyTuple_Type.tp_itemsize)
        return 0;
    PyErr_SetString(PyExc_TypeError, "records: the type must be a named tuple");
    return -1;
}

PyObject *headrace_record_object(PyTypeObject *type, const Record *record, int64_t offset, int64_t timestamp)
{
    PyObject *object = type->tp_alloc(type, 5);
    if (!object)
        return NULL;
    PyTuple_SET_ITEM(object, 0, PyLong_FromLongLong(offset));
    PyTuple_SET_ITEM(object, 1, PyLong_FromLongLong(timestamp));
    PyTuple_SET_ITEM(object, 2, bytes_or_none(record->key, record->key_size));
    PyTuple_SET_ITEM(object, 3, bytes_or_none(record->value, record->value_size));
    PyTuple_SET_ITEM(object, 4, headers_of(record));
    for (int field = 0; field < 5; field++)
        if (!PyTuple_GET_ITEM(object, field)) {
            Py_DECREF(object);
            return NULL;
        }
    return object;
}

/* records(type, payload, count, last_offset_delta, base_offset, base_timestamp, fixed_timestamp) -> list of `type`, a
 * named tuple (offset, timestamp, key, value, headers). */
PyObject *headrace_records(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyTypeObject *type;
    Py_buffer payload;
    int count, last_offset_delta;
    long long base_offset, base_timestamp;
    PyObject *fixed;
    if (!PyArg_ParseTuple(args, "O!y*iiLLO:records", &PyType_Type, &type, &payload, &count, &last_offset_delta,
                          &base_offset, &base_timestamp, &fixed))
        return NULL;
    PyObject *records = NULL;
    long long fixed_timestamp = fixed == Py_None ? 0 : PyLong_AsLongLong(fixed);
    if (fixed_timestamp == -1 && PyErr_Occurred())
        goto done;
    Walk walk;
    if (headrace_check_type(type) < 0
        || headrace_start_walk(&walk, &payload, count, last_offset_delta) < 0)
        goto done;
    records = PyList_New(0);
    while (records && walk.remaining > 0) {
        Record record;
        PyObject *object = NULL;
        if (headrace_next_record(&walk, &record) == 0) {
            int64_t timestamp = fixed == Py_None ? headrace_add_wrapping(base_timestamp, record.timestamp_delta)
                                                 : fixed_timestamp;
            int64_t offset = headrace_add_wrapping(base_offset, record.offset_delta);
            object = headrace_record_object(type, &record, offset, timestamp);
        }
        if (!object || PyList_Append(records, object) < 0)
            Py_CLEAR(records);
        Py_XDECREF(object);
    }
    if (records && headrace_walk_ended(&walk) < 0)
        Py_CLEAR(records);
done:
    PyBuffer_Release(&payload);
    return records;
}
