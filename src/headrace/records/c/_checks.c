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
