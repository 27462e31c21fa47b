/* headrace.protocol._produce: decodes the most common Produce request, checks its batch, and encodes the response.
 *
 * Optional: `read` returns None for any other request, which the message tables then decode. Every read is
 * bounds-checked, as the bytes are not trusted. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#include "../records/c/_header.h"
#include "../records/c/_compiled.h"

enum { OLDEST = 3, FLEXIBLE = 9, TOPIC_IDS = 13, NEWEST = 13, ID_SIZE = 16, LONGEST_CACHED = 1024 };

typedef struct {
    const uint8_t *at;
    const uint8_t *end;
    int odd; /* missing bytes, or an uncommon value */
} Cursor;

static const uint8_t *skip(Cursor *cursor, Py_ssize_t size)
{
    const uint8_t *here = cursor->at;
    if (size < 0 || size > cursor->end - here) {
        cursor->odd = 1;
        return NULL;
    }
    cursor->at += size;
    return here;
}

static int16_t read_int16(Cursor *cursor)
{
    const uint8_t *at = skip(cursor, 2);
    return at ? (int16_t)(at[0] << 8 | at[1]) : 0;
}

static int32_t read_int32(Cursor *cursor)
{
    const uint8_t *at = skip(cursor, 4);
    return at ? (int32_t)((uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3]) : 0;
}

/* At most four bytes of varint: lengths of less than 256 MiB. */
static int32_t read_varint(Cursor *cursor)
{
    uint32_t value = 0;
    for (int shift = 0; shift < 28; shift += 7) {
        const uint8_t *at = skip(cursor, 1);
        if (!at)
            return 0;
        value |= (uint32_t)(*at & 127) << shift;
        if (*at < 128)
            return (int32_t)value;
    }
    cursor->odd = 1;
    return 0;
}

/* A length or a count; -1 for null. */
static int32_t read_length(Cursor *cursor, int version, int wide)
{
    if (version >= FLEXIBLE)
        return read_varint(cursor) - 1;
    return wide ? read_int32(cursor) : read_int16(cursor);
}

static void expect(Cursor *cursor, int holds)
{
    if (!holds)
        cursor->odd = 1;
}

static void expect_no_tags(Cursor *cursor, int version)
{
    if (version >= FLEXIBLE)
        expect(cursor, read_varint(cursor) == 0);
}

static const char *read_ascii(Cursor *cursor, Py_ssize_t size)
{
    const uint8_t *at = skip(cursor, size);
    for (Py_ssize_t index = 0; at && index < size; index++)
        if (at[index] >= 128)
            cursor->odd = 1;
    return (const char *)at;
}

/* The name as a str. `last` caches it unless it is long, as it is usually the previous one. */
static PyObject *name_of(const char *name, Py_ssize_t size, PyObject **last)
{
    if (*last && PyUnicode_GET_LENGTH(*last) == size && !memcmp(PyUnicode_1BYTE_DATA(*last), name, (size_t)size))
        return Py_NewRef(*last);
    PyObject *made = PyUnicode_DecodeASCII(name, size, NULL);
    if (made && size <= LONGEST_CACHED)
        Py_XSETREF(*last, Py_NewRef(made));
    return made;
}

/* The memory that the log keeps: a view of the buffer if allowed, else a copy. */
static PyObject *kept(PyObject *buffer, Py_ssize_t start, const uint8_t *records, Py_ssize_t size, int owned)
{
    return owned ? PySequence_GetSlice(buffer, start, start + size)
                 : PyByteArray_FromStringAndSize((const char *)records, size);
}

/* Return the result or None. Steals no references. */
static PyObject *found_in(PyObject *buffer, const uint8_t *start, Cursor *cursor, int owned)
{
    expect(cursor, read_int16(cursor) == 0);
    int version = read_int16(cursor);
    expect(cursor, version >= OLDEST && version <= NEWEST);
    int32_t correlation_id = read_int32(cursor);
    int16_t client_id = read_int16(cursor);
    if (client_id != -1)
        read_ascii(cursor, client_id);
    expect_no_tags(cursor, version);

    int32_t transactional_size = read_length(cursor, version, 0);
    const char *transactional_id = transactional_size == -1 ? NULL : read_ascii(cursor, transactional_size);
    int16_t acks = read_int16(cursor);
    expect(cursor, acks == -1 || acks == 1);
    int32_t timeout_ms = read_int32(cursor);
    expect(cursor, read_length(cursor, version, 1) == 1);
    int32_t name_size = version >= TOPIC_IDS ? ID_SIZE : read_length(cursor, version, 0);
    const char *name = version >= TOPIC_IDS ? (const char *)skip(cursor, ID_SIZE) : read_ascii(cursor, name_size);
    expect(cursor, read_length(cursor, version, 1) == 1);
    int32_t index = read_int32(cursor);
    expect(cursor, index >= 0);
    int32_t size = read_length(cursor, version, 1);
    const uint8_t *records = skip(cursor, size);
    for (int tags = 0; tags < 3; tags++)
        expect_no_tags(cursor, version);
    expect(cursor, cursor->at == cursor->end);

    BatchHeader header;
    if (cursor->odd || headrace_check_batch(records, size, &header) != FINE)
        Py_RETURN_NONE;
    static PyObject *last_topic, *last_transactional_id;
    PyObject *topic = version >= TOPIC_IDS ? PyBytes_FromStringAndSize(name, ID_SIZE)
                                           : name_of(name, name_size, &last_topic);
    PyObject *batch = topic ? kept(buffer, records - start, records, size, owned) : NULL;
    PyObject *fields = batch ? headrace_header_tuple(&header) : NULL;
    PyObject *transaction = !fields             ? NULL
                            : !transactional_id ? Py_NewRef(Py_None)
                                                : name_of(transactional_id, transactional_size, &last_transactional_id);
    if (!transaction) {
        Py_XDECREF(topic);
        Py_XDECREF(batch);
        Py_XDECREF(fields);
        return NULL;
    }
    return Py_BuildValue("iiNiNNiiN", version, (int)correlation_id, topic, (int)index, batch, fields, (int)acks,
                         (int)timeout_ms, transaction);
}

static PyObject *produce_read(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (count != 4) {
        PyErr_Format(PyExc_TypeError, "read takes 4 arguments, not %zd", count);
        return NULL;
    }
    Py_ssize_t start = PyLong_AsSsize_t(args[1]);
    if (start == -1 && PyErr_Occurred())
        return NULL;
    Py_ssize_t stop = PyLong_AsSsize_t(args[2]);
    if (stop == -1 && PyErr_Occurred())
        return NULL;
    int owned = PyObject_IsTrue(args[3]);
    if (owned < 0)
        return NULL;
    Py_buffer view;
    if (PyObject_GetBuffer(args[0], &view, PyBUF_SIMPLE) < 0)
        return NULL;
    PyObject *found = NULL;
    if (start < 0 || stop < start || stop > view.len)
        PyErr_Format(PyExc_ValueError, "no frame from %zd to %zd in %zd bytes", start, stop, view.len);
    else {
        const uint8_t *bytes = view.buf;
        Cursor cursor = {.at = bytes + start, .end = bytes + stop};
        found = found_in(args[0], bytes, &cursor, owned);
    }
    PyBuffer_Release(&view);
    return found;
}

static uint8_t *put_number(uint8_t *at, uint64_t value, int size)
{
    for (int shift = 8 * size - 8; shift >= 0; shift -= 8)
        *at++ = (uint8_t)(value >> shift);
    return at;
}

static uint8_t *put_varint(uint8_t *at, uint32_t value)
{
    for (; value >= 128; value >>= 7)
        *at++ = (uint8_t)(value | 128);
    *at++ = (uint8_t)value;
    return at;
}

/* A length or count of a value that is not null. */
static uint8_t *put_length(uint8_t *at, int64_t version, uint32_t value, int size)
{
    return version >= FLEXIBLE ? put_varint(at, value + 1) : put_number(at, value, size);
}

static PyObject *produce_accepted(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    enum { VERSION, CORRELATION_ID, TOPIC, PARTITION, BASE_OFFSET, LOG_APPEND_TIME, LOG_START, ARGUMENTS };
    enum { LONGEST_NAME = 32767, MOST_BESIDE_NAME = 80 };
    int64_t numbers[ARGUMENTS] = {0};
    if (count != ARGUMENTS) {
        PyErr_Format(PyExc_TypeError, "accepted takes %d arguments, not %zd", ARGUMENTS, count);
        return NULL;
    }
    for (int index = 0; index < ARGUMENTS; index++) {
        if (index == TOPIC)
            continue;
        numbers[index] = PyLong_AsLongLong(args[index]);
        if (numbers[index] == -1 && PyErr_Occurred())
            return NULL;
    }
    int64_t version = numbers[VERSION];
    Py_ssize_t name_size;
    const char *name;
    if (version >= TOPIC_IDS) {
        char *id;
        if (PyBytes_AsStringAndSize(args[TOPIC], &id, &name_size) < 0)
            return NULL;
        if (name_size != ID_SIZE) {
            PyErr_Format(PyExc_ValueError, "a topic's id of %zd bytes", name_size);
            return NULL;
        }
        name = id;
    } else {
        name = PyUnicode_AsUTF8AndSize(args[TOPIC], &name_size);
        if (!name)
            return NULL;
    }
    if (name_size > LONGEST_NAME) {
        PyErr_Format(PyExc_ValueError, "a topic's name of %zd bytes", name_size);
        return NULL;
    }
    PyObject *frame = PyBytes_FromStringAndSize(NULL, name_size + MOST_BESIDE_NAME);
    if (!frame)
        return NULL;
    uint8_t *start = (uint8_t *)PyBytes_AS_STRING(frame);
    uint8_t *at = put_number(start + 4, (uint64_t)numbers[CORRELATION_ID], 4);
    if (version >= FLEXIBLE)
        *at++ = 0; /* no tags in the header */
    at = put_length(at, version, 1, 4);
    if (version < TOPIC_IDS)
        at = put_length(at, version, (uint32_t)name_size, 2);
    memcpy(at, name, (size_t)name_size);
    at = put_length(at + name_size, version, 1, 4);
    at = put_number(at, (uint64_t)numbers[PARTITION], 4);
    at = put_number(at, 0, 2); /* no error */
    at = put_number(at, (uint64_t)numbers[BASE_OFFSET], 8);
    at = put_number(at, (uint64_t)numbers[LOG_APPEND_TIME], 8);
    if (version >= 5)
        at = put_number(at, (uint64_t)numbers[LOG_START], 8);
    if (version >= 8) { /* no record errors and no message */
        at = put_length(at, version, 0, 4);
        at = version >= FLEXIBLE ? put_varint(at, 0) : put_number(at, 0xffff, 2);
    }
    if (version >= FLEXIBLE)
        at = put_number(at, 0, 2); /* no tags of the partition, none of the topic */
    at = put_number(at, 0, 4); /* throttle time */
    if (version >= FLEXIBLE)
        *at++ = 0;
    put_number(start, (uint64_t)(at - start) - 4, 4);
    return _PyBytes_Resize(&frame, at - start) < 0 ? NULL : frame;
}

static PyMethodDef methods[] = {
    {"read", (PyCFunction)(void (*)(void))produce_read, METH_FASTCALL,
     "read(buffer, start, stop, owned): version, correlation id, topic, partition, batch, its 13 header fields, acks,\n"
     "timeout and transactional id of a plain Produce request with a batch that a client may append; None of others."},
    {"accepted", (PyCFunction)(void (*)(void))produce_accepted, METH_FASTCALL,
     "accepted(version, correlation_id, topic, partition, base_offset, log_append_time_ms, log_start_offset): the\n"
     "answer that a batch was stored."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "headrace.protocol._produce",
    .m_doc = "The commonest Produce request, read in C.",
    .m_size = -1,
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit__produce(void)
{
    headrace_crc32c_prepare();
    return PyModule_Create(&definition);
}
