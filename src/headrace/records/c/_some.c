/* A few records of a batch that may have millions, without Python objects for the others. Other threads run. */

#include "_compiled.h"

typedef struct {
    int64_t base_offset;
    int64_t first_offset;
    const uint8_t *part; /* bytes that a key must contain, `part_size` of them; 0: any key, or null */
    Py_ssize_t part_size;
} Wanted;

static int has(const Wanted *wanted, const Record *record)
{
    if (!wanted->part_size)
        return 1;
    const uint8_t *at = record->key;
    for (Py_ssize_t left = record->key_size; left >= wanted->part_size; left--, at++) {
        const uint8_t *next = memchr(at, wanted->part[0], (size_t)(left - wanted->part_size + 1));
        if (!next)
            return 0;
        left -= next - at;
        at = next;
        if (memcmp(at, wanted->part, (size_t)wanted->part_size) == 0)
            return 1;
    }
    return 0;
}

/* Find the next matching record. Return 1, 0 without one, or -1 with CorruptBatch set. `before` is the state before
 * that record. */
static int next_wanted(Walk *walk, const Wanted *wanted, Record *record, Walk *before)
{
    int found = 0;
    PyThreadState *others = PyEval_SaveThread();
    while (walk->remaining > 0 && !found) {
        *before = *walk;
        if (headrace_next_record(walk, record) < 0)
            found = -1;
        else if (headrace_add_wrapping(wanted->base_offset, record->offset_delta) >= wanted->first_offset)
            found = has(wanted, record);
    }
    PyEval_RestoreThread(others);
    return found;
}

/* some(type, payload, count, last_offset_delta, base_offset, base_timestamp, fixed_timestamp, first_offset, part,
 * most, most_bytes, most_headers).
 *
 * Returns a list of (record, its number of headers), the next offset, the bytes of the payload before it, and the
 * number of later records. */
PyObject *headrace_some(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyTypeObject *type;
    Py_buffer payload, part;
    int count, last_offset_delta, most_headers;
    long long base_offset, base_timestamp, first_offset;
    Py_ssize_t most, most_bytes, bytes = 0;
    PyObject *fixed;
    if (!PyArg_ParseTuple(args, "O!y*iiLLOLy*nni:some", &PyType_Type, &type, &payload, &count, &last_offset_delta,
                          &base_offset, &base_timestamp, &fixed, &first_offset, &part, &most, &most_bytes,
                          &most_headers))
        return NULL;
    Wanted wanted = {base_offset, first_offset, part.buf, part.len};
    int64_t following = headrace_add_wrapping(base_offset, (int64_t)last_offset_delta + 1);
    PyObject *records = NULL;
    Walk walk, before;
    const uint8_t *start = NULL;
    Record record;
    int found = 0;
    long long fixed_timestamp = fixed == Py_None ? 0 : PyLong_AsLongLong(fixed);
    if ((fixed_timestamp == -1 && PyErr_Occurred()) || headrace_check_type(type) < 0
        || headrace_start_walk(&walk, &payload, count, last_offset_delta) < 0)
        goto done;
    start = walk.at;
    records = PyList_New(0);
    while (records && (found = next_wanted(&walk, &wanted, &record, &before)) > 0) {
        int64_t offset = headrace_add_wrapping(base_offset, record.offset_delta);
        if (PyList_GET_SIZE(records) >= most || (bytes && bytes >= most_bytes)) {
            following = offset;
            walk = before;
            break;
        }
        int64_t timestamp = fixed == Py_None ? headrace_add_wrapping(base_timestamp, record.timestamp_delta)
                                             : fixed_timestamp;
        int32_t headers = record.header_count;
        if (record.header_count > most_headers)
            record.header_count = most_headers;
        bytes += record.header_bytes;
        bytes += (record.key_size > 0 ? record.key_size : 0) + (record.value_size > 0 ? record.value_size : 0);
        PyObject *object = headrace_record_object(type, &record, offset, timestamp);
        PyObject *pair = object ? Py_BuildValue("Ni", object, (int)headers) : NULL;
        if (!pair || PyList_Append(records, pair) < 0)
            Py_CLEAR(records);
        Py_XDECREF(pair);
    }
    if (found < 0 || (records && found == 0 && headrace_walk_ended(&walk) < 0))
        Py_CLEAR(records);
done:
    PyBuffer_Release(&payload);
    PyBuffer_Release(&part);
    return records ? Py_BuildValue("NLni", records, (long long)following, (Py_ssize_t)(walk.at - start),
                                   (int)walk.remaining)
                   : NULL;
}
