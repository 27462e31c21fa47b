/* Checks that a topic's configuration asks of each record, without Python objects for records. */

#include "_compiled.h"

/* Write the indexes of the first `most` records without key. Return the number of all, or -1 with CorruptBatch set. */
static int64_t find_keyless(Walk *walk, int32_t *indexes, int32_t most)
{
    int64_t found = 0;
    Record record;
    for (int32_t index = 0; walk->remaining > 0; index++) {
        if (headrace_next_record(walk, &record) < 0)
            return -1;
        if (record.key_size >= 0)
            continue;
        if (found < most)
            indexes[found] = index;
        found++;
    }
    return found;
}

static PyObject *listed(const int32_t *indexes, int64_t count)
{
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (int64_t at = 0; list && at < count; at++) {
        PyObject *index = PyLong_FromLong(indexes[at]);
        if (!index)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, (Py_ssize_t)at, index);
    }
    return list;
}

PyObject *headrace_keyless(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer payload;
    int count, last_offset_delta, most;
    if (!PyArg_ParseTuple(args, "y*iii:keyless", &payload, &count, &last_offset_delta, &most))
        return NULL;
    PyObject *result = NULL;
    int32_t *indexes = most < 0 ? NULL : PyMem_New(int32_t, most ? most : 1);
    Walk walk;
    if (!indexes) {
        PyErr_NoMemory();
    } else if (headrace_start_walk(&walk, &payload, count, last_offset_delta) == 0) {
        PyThreadState *others = payload.len < LARGE_BODY ? NULL : PyEval_SaveThread();
        int64_t found = find_keyless(&walk, indexes, most);
        if (others)
            PyEval_RestoreThread(others);
        PyObject *list = NULL;
        if (found >= 0 && headrace_walk_ended(&walk) == 0)
            list = listed(indexes, found < most ? found : most);
        if (list)
            result = Py_BuildValue("NL", list, (long long)found);
    }
    PyMem_Free(indexes);
    PyBuffer_Release(&payload);
    return result;
}

enum { BY_ID = 5, BY_GUID = 17 }; /* bytes of a reference to a schema: a form of 0 or 1, and the number */

typedef struct {
    const uint8_t *reference;
    int32_t size;
    int32_t first;
    int32_t count;
} Schema;

typedef struct {
    int of_value; /* otherwise of the key */
    const char *header;
    Py_ssize_t header_size;
    Schema *schemas;
    int32_t used;
    int32_t most_schemas;
    int32_t *malformed;
    int32_t most_malformed;
    int64_t malformed_count;
    int32_t excess; /* first record with a schema for which there was no room, or -1 */
} Schemas;

static int32_t reference_size(const uint8_t *data, int32_t size)
{
    if (size >= BY_ID && data[0] == 0)
        return BY_ID;
    return size >= BY_GUID && data[0] == 1 ? BY_GUID : 0;
}

/* Return the size of the reference to a schema, 0 if it is malformed, or -1 if the record has no such part. */
static int32_t find_reference(const Schemas *search, const Record *record, const uint8_t **reference)
{
    const uint8_t *data = search->of_value ? record->value : record->key;
    int32_t size = search->of_value ? record->value_size : record->key_size;
    if (size < 0)
        return -1;
    const uint8_t *at = record->headers;
    for (int32_t left = record->header_count; left > 0; left--) {
        Header header = {0, 0, NULL, NULL};
        at = headrace_read_header(at, record, &header);
        if (header.value_size >= 0 && header.key_size == search->header_size
            && memcmp(header.key, search->header, (size_t)header.key_size) == 0) {
            *reference = header.value;
            return reference_size(header.value, header.value_size);
        }
    }
    *reference = data;
    return size >= BY_ID && data[0] == 0 ? BY_ID : 0;
}

static void count_schema(Schemas *search, const uint8_t *reference, int32_t size, int32_t index)
{
    for (int32_t at = search->used; at-- > 0;) { /* the latest one is the likeliest */
        Schema *schema = &search->schemas[at];
        if (schema->size == size && memcmp(schema->reference, reference, (size_t)size) == 0) {
            schema->count++;
            return;
        }
    }
    if (search->used < search->most_schemas)
        search->schemas[search->used++] = (Schema){reference, size, index, 1};
    else if (search->excess < 0)
        search->excess = index;
}

static int find_schemas(Walk *walk, Schemas *search)
{
    Record record;
    for (int32_t index = 0; walk->remaining > 0; index++) {
        if (headrace_next_record(walk, &record) < 0)
            return -1;
        const uint8_t *reference = NULL;
        int32_t size = find_reference(search, &record, &reference);
        if (size > 0) {
            count_schema(search, reference, size, index);
        } else if (size == 0) {
            if (search->malformed_count < search->most_malformed)
                search->malformed[search->malformed_count] = index;
            search->malformed_count++;
        }
    }
    return 0;
}

static PyObject *found_schemas(const Schemas *search)
{
    PyObject *list = PyList_New(search->used);
    for (int32_t at = 0; list && at < search->used; at++) {
        const Schema *schema = &search->schemas[at];
        PyObject *found = Py_BuildValue("y#ii", (const char *)schema->reference, (Py_ssize_t)schema->size,
                                        schema->first, schema->count);
        if (!found)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, at, found);
    }
    return list;
}

PyObject *headrace_schemas(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer payload;
    int count, last_offset_delta;
    Schemas search = {.excess = -1};
    if (!PyArg_ParseTuple(args, "y*iipy#ii:schemas", &payload, &count, &last_offset_delta, &search.of_value,
                          &search.header, &search.header_size, &search.most_schemas, &search.most_malformed))
        return NULL;
    PyObject *result = NULL;
    int valid = search.most_schemas >= 0 && search.most_malformed >= 0;
    search.schemas = valid ? PyMem_New(Schema, search.most_schemas + 1) : NULL;
    search.malformed = valid ? PyMem_New(int32_t, search.most_malformed + 1) : NULL;
    Walk walk;
    if (!search.schemas || !search.malformed) {
        PyErr_NoMemory();
    } else if (headrace_start_walk(&walk, &payload, count, last_offset_delta) == 0) {
        PyThreadState *others = payload.len < LARGE_BODY ? NULL : PyEval_SaveThread();
        int read = find_schemas(&walk, &search);
        if (others)
            PyEval_RestoreThread(others);
        PyObject *schemas = read == 0 && headrace_walk_ended(&walk) == 0 ? found_schemas(&search) : NULL;
        int64_t shown = search.malformed_count < search.most_malformed ? search.malformed_count : search.most_malformed;
        PyObject *malformed = schemas ? listed(search.malformed, shown) : NULL;
        if (malformed)
            result = Py_BuildValue("NNLi", schemas, malformed, (long long)search.malformed_count, search.excess);
        else
            Py_XDECREF(schemas);
    }
    PyMem_Free(search.schemas);
    PyMem_Free(search.malformed);
    PyBuffer_Release(&payload);
    return result;
}
