/* headrace.records._streams: record batches as entries of Redis Streams, and entries as record batches.
 *
 * Optional: `records/fallback/streams.py` does the same. Tests compare both. */

#include "_base64.h"
#include "_header_text.h"

PyObject *headrace_corrupt_batch;

/* 0, or -1 with MemoryError set. */
static int make_room_or_fail(Bytes *bytes, size_t more)
{
    if (make_room(bytes, more) == 0)
        return 0;
    PyErr_NoMemory();
    return -1;
}

static inline void add_decimal(Bytes *bytes, int64_t number)
{
    char digits[20];
    int at = sizeof digits;
    uint64_t left = number < 0 ? 0 - (uint64_t)number : (uint64_t)number;
    do
        digits[--at] = (char)('0' + left % 10);
    while (left /= 10);
    if (number < 0)
        digits[--at] = '-';
    add(bytes, digits + at, sizeof digits - (size_t)at);
}

/* Records of a batch -> arguments of the append script */

enum { BULK_OVERHEAD = 1 + 20 + 2 + 2 };

static inline void add_bulk(Bytes *out, const void *data, size_t size)
{
    add(out, "$", 1);
    add_decimal(out, (int64_t)size);
    add(out, "\r\n", 2);
    add(out, data, size);
    add(out, "\r\n", 2);
}

static int put_field(Bytes *out, const char *name, const void *data, size_t size)
{
    size_t length = strlen(name);
    if (make_room_or_fail(out, 2 * BULK_OVERHEAD + length + size) < 0)
        return -1;
    add_bulk(out, name, length);
    add_bulk(out, data, size);
    return 0;
}

enum { MOST_HEADERS = 100000, MOST_HEADER_TEXT = 32 << 20 }; /* per batch, as in records/fallback/streams.py */
enum { SHORT_HEADER_TEXT = 64 << 10 }; /* other threads run while longer ones are read */
enum { SHORT_RECORD = 256 << 10 };     /* other threads run while longer ones are copied */

/* `left`: remaining bytes for the texts of the batch. */
static int put_headers(Bytes *out, const Record *record, Bytes *text, size_t *left)
{
    text->used = 0;
    if (headrace_write_header_text(text, record) < 0) {
        PyErr_NoMemory();
        return -1;
    }
    if (text->used > *left) {
        PyErr_Format(headrace_corrupt_batch, "headers of more than %d bytes as JSON in one batch for a native topic",
                     MOST_HEADER_TEXT);
        return -1;
    }
    *left -= text->used;
    return put_field(out, "headers", text->data, text->used);
}

static int put_record(Bytes *out, const Record *record, int64_t timestamp, Bytes *header_text,
                      size_t *left)
{
    int fields = 1 + (record->key_size >= 0) + (record->value_size >= 0) + (record->header_count > 0);
    char digits[24];
    if (make_room_or_fail(out, BULK_OVERHEAD + 2) < 0)
        return -1;
    digits[0] = (char)('0' + 2 * fields);
    add_bulk(out, digits, 1);
    if (record->key_size >= 0 && put_field(out, "key", record->key, (size_t)record->key_size) < 0)
        return -1;
    if (record->value_size >= 0 && put_field(out, "value", record->value, (size_t)record->value_size) < 0)
        return -1;
    if (record->header_count > 0 && put_headers(out, record, header_text, left) < 0)
        return -1;
    Bytes text = {(uint8_t *)digits, 0, sizeof digits};
    add_decimal(&text, timestamp);
    return put_field(out, "timestamp", digits, text.used);
}

/* xadd_arguments(payload, count, last_offset_delta, base_timestamp, fixed_timestamp) -> (RESP bulk strings, their
 * number) */
static PyObject *xadd_arguments(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer payload;
    int count, last_offset_delta;
    long long base_timestamp;
    PyObject *fixed;
    if (!PyArg_ParseTuple(args, "y*iiLO:xadd_arguments", &payload, &count, &last_offset_delta, &base_timestamp, &fixed))
        return NULL;
    PyObject *result = NULL;
    Bytes out = {0}, header_text = {0};
    Py_ssize_t arguments = 0;
    int64_t headers = 0;
    size_t left = MOST_HEADER_TEXT;
    Walk walk;
    long long fixed_timestamp = fixed == Py_None ? 0 : PyLong_AsLongLong(fixed);
    if (fixed_timestamp == -1 && PyErr_Occurred())
        goto done;
    if (headrace_start_walk(&walk, &payload, count, last_offset_delta) < 0)
        goto done;
    if (make_room_or_fail(&out, (size_t)payload.len + (size_t)count * 64) < 0)
        goto done;
    while (walk.remaining > 0) {
        Record record;
        if (headrace_next_record(&walk, &record) < 0)
            goto done;
        headers += record.header_count;
        if (headers > MOST_HEADERS) {
            PyErr_Format(headrace_corrupt_batch, "more than %d headers in one batch for a native topic", MOST_HEADERS);
            goto done;
        }
        int64_t timestamp = fixed == Py_None ? headrace_add_wrapping(base_timestamp, record.timestamp_delta)
                                             : fixed_timestamp;
        if (put_record(&out, &record, timestamp, &header_text, &left) < 0)
            goto done;
        arguments += 3 + 2 * ((record.key_size >= 0) + (record.value_size >= 0) + (record.header_count > 0));
    }
    if (headrace_walk_ended(&walk) == 0)
        result = Py_BuildValue("(y#n)", out.data ? (const char *)out.data : "", (Py_ssize_t)out.used, arguments);
done:
    let_go(&out);
    let_go(&header_text);
    PyBuffer_Release(&payload);
    return result;
}

/* Entries -> record batches */

typedef struct {
    const uint8_t *key; /* NULL for null, as value */
    const uint8_t *value;
    Py_ssize_t key_size;
    Py_ssize_t value_size;
    int64_t timestamp;
    const uint8_t *headers; /* count, names and values */
    size_t headers_size;
} Row;

static const uint8_t NO_HEADERS[] = {0};

typedef struct {
    Bytes bytes;
    int64_t base_offset;
    int64_t last_offset;
    int64_t base_timestamp;
    int64_t max_timestamp;
    int32_t count;
} Batch;

static int finish(Batch *batch, PyObject *batches)
{
    if (!batch->count)
        return 0;
    const Closing fields = {
        .base_offset = batch->base_offset,
        .last_offset_delta = (int32_t)(batch->last_offset - batch->base_offset),
        .base_timestamp = batch->base_timestamp,
        .max_timestamp = batch->max_timestamp,
        .count = batch->count,
    };
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)batch->bytes.used);
    if (!bytes)
        return -1;
    PyThreadState *resting = batch->bytes.used > SHORT_RECORD ? PyEval_SaveThread() : NULL;
    close_batch(&batch->bytes, &fields);
    memcpy(PyBytes_AS_STRING(bytes), batch->bytes.data, batch->bytes.used);
    if (resting)
        PyEval_RestoreThread(resting);
    PyObject *made = Py_BuildValue("(LLN)", (long long)batch->base_offset, (long long)batch->last_offset + 1, bytes);
    batch->count = 0;
    batch->bytes.used = 0;
    if (!made)
        return -1;
    int result = PyList_Append(batches, made);
    Py_DECREF(made);
    return result;
}

static void add_sized(Bytes *bytes, const uint8_t *data, Py_ssize_t size)
{
    add_varint(bytes, data ? size : -1);
    if (data)
        add(bytes, data, (size_t)size);
}

static void set_headers(Row *row, const Bytes *section)
{
    row->headers = section->data;
    row->headers_size = section->used;
}

/* The headers section: count, then name and value of each. The tuple is ((bytes, bytes or None), ...). */
static int put_header_section(Bytes *bytes, PyObject *headers)
{
    Py_ssize_t count = PyTuple_GET_SIZE(headers);
    bytes->used = 0;
    if (make_room_or_fail(bytes, LONGEST_VARINT) < 0)
        return -1;
    add_varint(bytes, count);
    for (Py_ssize_t index = 0; index < count; index++) {
        const char *name;
        Py_ssize_t name_size;
        PyObject *value;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(headers, index), "y#O", &name, &name_size, &value))
            return -1;
        if (value != Py_None && !PyBytes_Check(value)) {
            PyErr_SetString(PyExc_TypeError, "a header's value is bytes or None");
            return -1;
        }
        Py_ssize_t value_size = value == Py_None ? 0 : PyBytes_GET_SIZE(value);
        if (make_room_or_fail(bytes, (size_t)(name_size + value_size) + 2 * LONGEST_VARINT) < 0)
            return -1;
        add_sized(bytes, (const uint8_t *)name, name_size);
        add_sized(bytes, value == Py_None ? NULL : (const uint8_t *)PyBytes_AS_STRING(value), value_size);
    }
    return 0;
}

static int put_row(Batch *batch, int64_t offset, const Row *row, PyObject *batches, Py_ssize_t limit)
{
    size_t most = 5 * LONGEST_VARINT + 1 + (size_t)row->key_size + (size_t)row->value_size + row->headers_size;
    if (most > INT32_MAX) {
        PyErr_SetString(PyExc_OverflowError, "an entry of more than 2 GiB");
        return -1;
    }
    if (batch->count
        && (offset - batch->base_offset > INT32_MAX || batch->bytes.used + most > (size_t)limit
            || batch->count == INT32_MAX)
        && finish(batch, batches) < 0)
        return -1;
    if (!batch->count) {
        batch->bytes.used = 0;
        if (make_room_or_fail(&batch->bytes, HEADER_SIZE) < 0)
            return -1;
        batch->bytes.used = HEADER_SIZE;
        batch->base_offset = offset;
        batch->base_timestamp = batch->max_timestamp = row->timestamp;
    }
    uint8_t deltas[1 + 2 * LONGEST_VARINT];
    deltas[0] = 0; /* attributes */
    size_t size = 1;
    size += write_varint(deltas + size, (int64_t)((uint64_t)row->timestamp - (uint64_t)batch->base_timestamp));
    size += write_varint(deltas + size, offset - batch->base_offset);
    size_t body = size + row->headers_size + varint_size(row->key ? row->key_size : -1) + (size_t)row->key_size
                  + varint_size(row->value ? row->value_size : -1) + (size_t)row->value_size;
    PyThreadState *resting = body > SHORT_RECORD ? PyEval_SaveThread() : NULL;
    int made = make_room(&batch->bytes, body + LONGEST_VARINT);
    if (made == 0) {
        add_varint(&batch->bytes, (int64_t)body);
        add(&batch->bytes, deltas, size);
        add_sized(&batch->bytes, row->key, row->key_size);
        add_sized(&batch->bytes, row->value, row->value_size);
        add(&batch->bytes, row->headers, row->headers_size);
    }
    if (resting)
        PyEval_RestoreThread(resting);
    if (made < 0) {
        PyErr_NoMemory();
        return -1;
    }
    batch->last_offset = offset;
    if (row->timestamp > batch->max_timestamp)
        batch->max_timestamp = row->timestamp;
    batch->count++;
    return 0;
}

static int read_digits(const char **at, const char *end, uint64_t *number)
{
    const char *start = *at;
    uint64_t value = 0;
    for (; *at < end && **at >= '0' && **at <= '9'; ++*at) {
        uint64_t digit = (uint64_t)(**at - '0');
        if (value > (UINT64_MAX - digit) / 10)
            return -1;
        value = value * 10 + digit;
    }
    *number = value;
    return *at > start ? 0 : -1;
}

/* A whole number of at most 18 digits, as this server writes timestamps. */
static int read_timestamp(PyObject *text, int64_t *timestamp)
{
    const char *at = PyBytes_AS_STRING(text), *end = at + PyBytes_GET_SIZE(text);
    int negative = at < end && *at == '-';
    at += negative;
    uint64_t number;
    if (end - at > 18 || read_digits(&at, end, &number) < 0 || at != end)
        return -1;
    *timestamp = negative ? -(int64_t)number : (int64_t)number;
    return 0;
}

static int is(PyObject *name, const char *word, Py_ssize_t size)
{
    return PyBytes_GET_SIZE(name) == size && memcmp(PyBytes_AS_STRING(name), word, (size_t)size) == 0;
}

static void set_bytes(PyObject *value, const uint8_t **data, Py_ssize_t *size)
{
    *data = (const uint8_t *)PyBytes_AS_STRING(value);
    *size = PyBytes_GET_SIZE(value);
}

/* Return 1 if the fields are a record as this server writes it, 0 if Python must read them, -1 without memory.
 * `section` gets the headers. */
static int read_plain(PyObject *fields, int64_t ms, Row *row, Bytes *section)
{
    Py_ssize_t count = PyList_GET_SIZE(fields);
    *row = (Row){.timestamp = ms, .headers = NO_HEADERS, .headers_size = sizeof NO_HEADERS};
    PyObject *headers = NULL;
    int seen_key = 0, seen_value = 0, seen_timestamp = 0;
    if (count < 2 || count % 2 || count > 8)
        return 0;
    for (Py_ssize_t index = 0; index < count; index++)
        if (!PyBytes_Check(PyList_GET_ITEM(fields, index)))
            return 0;
    if (count == 2 && !is(PyList_GET_ITEM(fields, 0), "timestamp", 9)) {
        set_bytes(PyList_GET_ITEM(fields, 1), &row->value, &row->value_size);
        return 1;
    }
    for (Py_ssize_t index = 0; index < count; index += 2) {
        PyObject *name = PyList_GET_ITEM(fields, index), *value = PyList_GET_ITEM(fields, index + 1);
        if (is(name, "value", 5) && !seen_value++)
            set_bytes(value, &row->value, &row->value_size);
        else if (is(name, "key", 3) && !seen_key++)
            set_bytes(value, &row->key, &row->key_size);
        else if (is(name, "headers", 7) && !headers)
            headers = value;
        else if (!(is(name, "timestamp", 9) && !seen_timestamp++ && read_timestamp(value, &row->timestamp) == 0))
            return 0;
    }
    if (!headers)
        return 1;
    const uint8_t *text = (const uint8_t *)PyBytes_AS_STRING(headers);
    size_t size = (size_t)PyBytes_GET_SIZE(headers);
    if (size > MOST_HEADER_TEXT) /* this server writes none of this length */
        return 0;
    int found;
    if (size <= SHORT_HEADER_TEXT) {
        found = headrace_read_header_text(text, size, section);
    } else {
        Py_BEGIN_ALLOW_THREADS
        found = headrace_read_header_text(text, size, section);
        Py_END_ALLOW_THREADS
    }
    set_headers(row, section);
    if (found < 0)
        PyErr_NoMemory();
    return found;
}

/* The result of Python: (key, value, timestamp, headers). */
static int read_tuple(PyObject *made, Row *row, Bytes *section)
{
    PyObject *key, *value, *headers;
    long long timestamp;
    if (!PyArg_ParseTuple(made, "OOLO!;a record is (key, value, timestamp, headers)", &key, &value, &timestamp,
                          &PyTuple_Type, &headers))
        return -1;
    if ((key != Py_None && !PyBytes_Check(key)) || (value != Py_None && !PyBytes_Check(value))) {
        PyErr_SetString(PyExc_TypeError, "key and value are bytes or None");
        return -1;
    }
    if (put_header_section(section, headers) < 0)
        return -1;
    *row = (Row){.timestamp = timestamp};
    set_headers(row, section);
    if (key != Py_None)
        set_bytes(key, &row->key, &row->key_size);
    if (value != Py_None)
        set_bytes(value, &row->value, &row->value_size);
    return 0;
}

static int put_entry(PyObject *entry, int bits, Batch *batch, Bytes *section, PyObject *read_fields, PyObject *batches,
                     PyObject *unfit, PyObject *gone, Py_ssize_t limit)
{
    if (!PyList_Check(entry) || PyList_GET_SIZE(entry) != 2 || !PyBytes_Check(PyList_GET_ITEM(entry, 0))) {
        PyErr_SetString(PyExc_ValueError, "an entry is a list of its id and its fields");
        return -1;
    }
    PyObject *id = PyList_GET_ITEM(entry, 0), *fields = PyList_GET_ITEM(entry, 1);
    const char *at = PyBytes_AS_STRING(id), *end = at + PyBytes_GET_SIZE(id);
    uint64_t ms, sequence;
    if (read_digits(&at, end, &ms) < 0 || at == end || *at++ != '-' || read_digits(&at, end, &sequence) < 0 || at != end) {
        PyErr_Format(PyExc_ValueError, "%R is no entry id", id);
        return -1;
    }
    if (fields == Py_None) /* deleted after its delivery */
        return PyList_Append(gone, id);
    if (!PyList_Check(fields) || sequence >> bits || ms >= (UINT64_C(1) << (62 - bits)))
        return PyList_Append(unfit, id);
    int64_t offset = (int64_t)(ms << bits | sequence);
    Row row;
    int known = read_plain(fields, (int64_t)ms, &row, section);
    if (known)
        return known < 0 ? -1 : put_row(batch, offset, &row, batches, limit);
    PyObject *number = PyLong_FromUnsignedLongLong(ms);
    PyObject *made = number ? PyObject_CallFunctionObjArgs(read_fields, fields, number, NULL) : NULL;
    Py_XDECREF(number);
    if (!made)
        return -1;
    if (made == Py_None) {
        Py_DECREF(made);
        return PyList_Append(unfit, id);
    }
    int result = read_tuple(made, &row, section) < 0 ? -1 : put_row(batch, offset, &row, batches, limit);
    Py_DECREF(made);
    return result;
}

/* build_batches(entries, bits, limit, read_fields) -> ([(base offset, next offset, batch)], [unfit id], [deleted
 * id]) */
static PyObject *build_batches(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *entries, *read_fields;
    int bits;
    Py_ssize_t limit;
    if (!PyArg_ParseTuple(args, "O!inO:build_batches", &PyList_Type, &entries, &bits, &limit, &read_fields))
        return NULL;
    if (bits < 0 || bits > 20) {
        PyErr_SetString(PyExc_ValueError, "sequence bits are 0 to 20");
        return NULL;
    }
    Batch batch = {.bytes = {0}};
    Bytes section = {0};
    PyObject *batches = PyList_New(0), *unfit = PyList_New(0), *gone = PyList_New(0), *result = NULL;
    if (!batches || !unfit || !gone)
        goto done;
    for (Py_ssize_t index = 0; index < PyList_GET_SIZE(entries); index++)
        if (put_entry(PyList_GET_ITEM(entries, index), bits, &batch, &section, read_fields, batches, unfit, gone, limit)
            < 0)
            goto done;
    if (finish(&batch, batches) == 0)
        result = PyTuple_Pack(3, batches, unfit, gone);
done:
    let_go(&batch.bytes);
    let_go(&section);
    Py_XDECREF(batches);
    Py_XDECREF(unfit);
    Py_XDECREF(gone);
    return result;
}

static PyMethodDef methods[] = {
    {"xadd_arguments", xadd_arguments, METH_VARARGS, "The records of a batch as arguments of the append script."},
    {"build_batches", build_batches, METH_VARARGS, "Entries of a stream as record batches."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "headrace.records._streams",
    .m_doc = "Records to and from entries of Redis Streams, in C.",
    .m_size = -1,
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit__streams(void)
{
    headrace_crc32c_prepare();
    headrace_base64_prepare();
    PyObject *errors = PyImport_ImportModule("headrace.records.errors");
    if (!errors)
        return NULL;
    headrace_corrupt_batch = PyObject_GetAttrString(errors, "CorruptBatch");
    Py_DECREF(errors);
    return headrace_corrupt_batch ? PyModule_Create(&definition) : NULL;
}
