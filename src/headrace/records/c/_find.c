/* Search of a record by time, without Python objects for other records. Other threads run. */

#include "_compiled.h"

typedef struct {
    int64_t base_offset;
    int64_t base_timestamp;
    int64_t fixed_timestamp;
    int64_t first_offset;
    int64_t not_before;
    int is_fixed;
    int is_bounded; /* otherwise find the largest timestamp */
} Search;

/* Return 1 and the place, 0 without a match, or -1 with CorruptBatch set. */
static int find(Walk *walk, const Search *search, int64_t *offset, int64_t *timestamp)
{
    int found = 0;
    Record record;
    while (walk->remaining > 0) {
        if (headrace_next_record(walk, &record) < 0)
            return -1;
        int64_t at = headrace_add_wrapping(search->base_offset, record.offset_delta);
        if (at < search->first_offset)
            continue;
        int64_t time = search->is_fixed ? search->fixed_timestamp
                                        : headrace_add_wrapping(search->base_timestamp, record.timestamp_delta);
        if (search->is_bounded ? time < search->not_before : found && time <= *timestamp)
            continue;
        *offset = at;
        *timestamp = time;
        found = 1;
        if (search->is_bounded)
            return 1;
    }
    return found;
}

static int read_number(PyObject *object, int64_t *number, int *is_there)
{
    *is_there = object != Py_None;
    if (!*is_there)
        return 0;
    *number = PyLong_AsLongLong(object);
    return *number == -1 && PyErr_Occurred() ? -1 : 0;
}

PyObject *headrace_find(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer payload;
    int count, last_offset_delta;
    long long base_offset, base_timestamp, first_offset;
    PyObject *fixed, *not_before;
    if (!PyArg_ParseTuple(args, "y*iiLLOLO:find", &payload, &count, &last_offset_delta, &base_offset, &base_timestamp,
                          &fixed, &first_offset, &not_before))
        return NULL;
    Search search = {.base_offset = base_offset, .base_timestamp = base_timestamp, .first_offset = first_offset};
    Walk walk;
    PyObject *result = NULL;
    int64_t offset = 0, timestamp = 0;
    if (read_number(fixed, &search.fixed_timestamp, &search.is_fixed) == 0
        && read_number(not_before, &search.not_before, &search.is_bounded) == 0
        && headrace_start_walk(&walk, &payload, count, last_offset_delta) == 0) {
        PyThreadState *others = PyEval_SaveThread();
        int found = find(&walk, &search, &offset, &timestamp);
        PyEval_RestoreThread(others);
        if (found > 0)
            result = Py_BuildValue("LL", (long long)offset, (long long)timestamp);
        else if (found == 0)
            result = Py_NewRef(Py_None);
    }
    PyBuffer_Release(&payload);
    return result;
}
